"""A session: one request's use of the database, within one deadline.

Every operation is one statement: atomic, without an open transaction, at most one round trip, which
it may share with other requests.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stackmgr.database import retries
from stackmgr.database.connection import Parameters, Row, execution
from stackmgr.database.round_trips import MAX_ROWS, Connections
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.settings import Settings

# Seconds that one session may wait for the database, unless it is given another number.
SESSION_SECONDS = float(Settings.database_timeout)


class Operation(NamedTuple):
    """A statement of a request without the parameters of its caller; `row` names its columns.

    It returns at most `max_rows`; None if its rows are large.
    """

    statement: Statement
    parameters: Mapping[str, Any]
    row: Callable[..., Any]
    max_rows: int | None = 1


class Session:
    """One request's use of the database.  Not for use by two greenlets or threads at once.

    The deadline counts time spent on the database, not on a client's body or a remote verifier.
    """

    __slots__ = ("_connections", "_seconds_left")

    def __init__(self, connections: Connections, seconds: float) -> None:
        self._connections = connections
        self._seconds_left = seconds

    @property
    def has_variants(self) -> bool:
        """Whether statements run in variants, which verify no key: see sql/citus."""
        return bool(self._connections.variants)

    def row(self, statement: Statement, parameters: Parameters, *, max_rows: int | None = None) -> Row | None:
        """Run *statement* and return its first row, or None.  See `rows`."""
        rows = self.rows(statement, parameters, max_rows=max_rows)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters, *, max_rows: int | None = None) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        One that is known to return at most *max_rows* may share its round trip and its commit.
        """
        statement = self._connections.variants.get(statement.name, statement)
        encoded = execution(statement, parameters)
        may_share = max_rows is not None and max_rows <= MAX_ROWS
        deadline = time.monotonic() + self._seconds_left
        try:
            for attempt in itertools.count(1):
                try:
                    return self._connections.round_trips.run(
                        encoded, deadline, may_share=may_share and attempt == 1
                    )
                except DatabaseError as ex:
                    if not retries.should_retry(ex, writes=statement.writes, attempts=attempt):
                        raise
            raise AssertionError("unreachable")
        finally:
            self._seconds_left = deadline - time.monotonic()
