"""A database that records which statements it runs."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from stackmgr.database.connection import DatabaseConnection, Execution
from stackmgr.database.pool import Database


class RecordedDatabase(Database):
    """The pool of one process; `names` has the names of the statements that were run, in order."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.names: list[str] = []

    def acquire(self, deadline: float) -> DatabaseConnection:
        connection = super().acquire(deadline)

        def run(execution: Execution, deadline: float) -> Any:
            self.names.append(execution.statement.name)
            return type(connection).run(connection, execution, deadline)

        def run_together(executions: Sequence[Execution], deadline: float) -> Any:
            self.names += [each.statement.name for each in executions if each.values]
            return type(connection).run_together(connection, executions, deadline)

        vars(connection).update(run=run, run_together=run_together)
        return connection


def opened(url: str, **options: Any) -> closing[RecordedDatabase]:
    database = RecordedDatabase(url, **options)
    database.open()
    return closing(database)
