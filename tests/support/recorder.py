"""A database that records which statements it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stackmgr.database.connection import DatabaseConnection, Execution, Parameters
from stackmgr.database.pool import Database
from stackmgr.database.statements import Statement


class RecordedDatabase(Database):
    """The pool of one process; `names` has the names of the statements that were run, in order."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.names: list[str] = []

    def acquire(self, deadline: float) -> DatabaseConnection:
        connection = super().acquire(deadline)

        def run(statement: Statement, parameters: Parameters, deadline: float) -> Any:
            self.names.append(statement.name)
            return type(connection).run(connection, statement, parameters, deadline)

        def run_together(reads: Sequence[Execution], deadline: float) -> Any:
            self.names += [read.statement.name for read in reads]
            return type(connection).run_together(connection, reads, deadline)

        vars(connection).update(run=run, run_together=run_together)
        return connection


@contextmanager
def opened(url: str, **options: Any) -> Iterator[RecordedDatabase]:
    """Yield the pool of a process until the context ends."""
    database = RecordedDatabase(url, **options)
    database.open()
    try:
        yield database
    finally:
        database.close()
