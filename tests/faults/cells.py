"""All cells.  Each takes another path through the service; the modules are ordered by where it begins."""

from tests.faults import database, fronts, network, processes, resources

CELLS = {
    cell.name: cell for module in (processes, resources, database, network, fronts) for cell in module.CELLS
}
