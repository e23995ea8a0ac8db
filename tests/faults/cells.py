"""All cells.  Each takes another path through the service; the modules are ordered by where it begins."""

from tests.faults import (
    database,
    failover,
    files,
    fronts,
    mutants,
    network,
    processes,
    resources,
    tables,
    verifier,
)

CELLS = {
    cell.name: cell
    for module in (
        *(processes, files, resources),  # master and workers
        *(database, tables, failover, network),  # the database and the way to it
        *(verifier, fronts),
        mutants,  # the service itself is wrong
    )
    for cell in module.CELLS
}
