"""All cells.  Each takes another path through the service; the modules are ordered by where it begins."""

from tests.faults import database, files, fronts, network, processes, resources

CELLS = {
    cell.name: cell
    for module in (processes, files, resources, database, network, fronts)
    for cell in module.CELLS
}
