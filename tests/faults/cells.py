"""All cells.  Each takes another path through the service; the modules are ordered by where it begins."""

from tests.faults import database, failover, files, fronts, network, processes, resources, verifier

CELLS = {
    cell.name: cell
    for module in (processes, files, resources, database, failover, network, verifier, fronts)
    for cell in module.CELLS
}
