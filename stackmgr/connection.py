"""One connection to PostgreSQL: a prepared statement, run within a deadline.

Written on psycopg's libpq layer.  A statement of ours is one prepared execution with a handful of text
parameters; a cursor, which must be ready for anything, costs three times as much, and it waits for a server
that has stopped answering as long as that takes.  Here every wait ends at the caller's deadline.
"""

import select
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from stackmgr import failures
from stackmgr.errors import DatabaseError
from stackmgr.seats import expect_writes, give_up
from stackmgr.statements import Statement

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Query = tuple[Statement, Parameters]

_WARNING = "01000"

# A server that has ever answered within so many seconds is near: it is worth while to wait for it a moment
# before another thread is let go on.
_NEAR = 0.0001
_A_MOMENT = 1  # millisecond
_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        if "\0" in value:
            # Text is sent as a C string: what follows would be cut off without a word.
            raise ValueError("U+0000 in a text parameter")
        return value.encode("utf-8")
    return (value.isoformat() if isinstance(value, datetime) else str(value)).encode("ascii")


class ServiceConnection(psycopg.Connection[TupleRow]):
    """A connection that runs statements by their names, preparing each when it is first needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[str, bytes] = {}
        self._transformer = Transformer(self)
        self._input = select.poll()
        self._input.register(self.pgconn.socket, select.POLLIN)
        self.lent_at = 0.0  # when the pool gave it, of the monotonic clock
        self._is_near = False
        self._warned = False
        self.add_notice_handler(self._notice)

    def is_stale(self) -> bool:
        """Whether the idle connection has something to read: the server said goodbye, or is gone."""
        return bool(self._input.poll(0))

    def run(self, statement: Statement, parameters: Parameters, deadline: float) -> list[Row]:
        """Run *statement* and return its rows.

        *deadline* is a time of the monotonic clock, in seconds.  Raises DatabaseError; where no answer came,
        its `sqlstate` is None, this connection is closed, and the statement may have run or not.
        """
        [result] = self._exchange([(statement, parameters)], deadline)
        return self._rows(result)

    def run_ahead(
        self, statement: Statement, parameters: Parameters, ahead: Query, deadline: float
    ) -> tuple[list[Row], list[Row] | None]:
        """Run *statement* as `run` does, and with the same round trip another one, which is to write nothing.

        Returns the rows of both; None for those of the other when it failed, for whatever reason.
        """
        result, other = self._exchange([(statement, parameters), ahead], deadline)
        return self._rows(result), self._rows(other) if other.status in _SUCCESS else None

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _exchange(self, queries: list[Query], deadline: float) -> list[pq.abc.PGresult]:
        """Return the results of *queries*, the first a good one, or raise DatabaseError."""
        try:
            for statement, _ in queries:
                if statement.name not in self._known:
                    self._prepare(statement, deadline)
            return self._execute(queries, deadline)
        except DatabaseError as ex:
            if failures.spoils_connection(ex):
                self.close()
            raise
        except psycopg.OperationalError as ex:
            self.close()
            raise DatabaseError(failures.CONNECTION_LOST, None) from ex

    def _prepare(self, statement: Statement, deadline: float) -> None:
        name = statement.name.encode("ascii")
        self.pgconn.send_prepare(name, statement.text)
        self._results(statement, 1, deadline)
        self._known[statement.name] = name

    def _execute(self, queries: list[Query], deadline: float) -> list[pq.abc.PGresult]:
        arguments = [
            [_encoded(parameters[name]) for name in statement.parameters] for statement, parameters in queries
        ]
        self._warned = False
        if queries[0][0].writes:
            expect_writes()
        if len(queries) > 1:
            self.pgconn.enter_pipeline_mode()
        for (statement, parameters), values in zip(queries, arguments, strict=True):
            formats = [isinstance(parameters[name], bytes) for name in statement.parameters]
            self.pgconn.send_query_prepared(self._known[statement.name], values, formats)
        if len(queries) > 1:
            self.pgconn.pipeline_sync()
        results = self._results(queries[0][0], len(queries), deadline)
        if len(queries) > 1:
            self.pgconn.exit_pipeline_mode()
        if self._warned and queries[0][0].writes:
            raise DatabaseError("unconfirmed", _WARNING)
        return results

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._warned = self._warned or diagnostic.severity_nonlocalized == "WARNING"

    def _results(self, statement: Statement, number: int, deadline: float) -> list[pq.abc.PGresult]:
        """Return the results of what was sent, or raise what the server said against it, the second left out.

        They count when the server is ready for the next statement and not before: the rows, and the word that
        the command is complete, come ahead of the commit, and the commit can still fail.
        """
        if self.pgconn.flush():
            self._flush(deadline)
        results: list[pq.abc.PGresult] = []
        lost = False
        try:
            self._collect(results, number > 1, deadline)
        except psycopg.OperationalError:
            lost = True
        # A server that ends the connection may have said why, and a commit fails after the rows.
        for result in [*results[:1], *results[number:]]:
            if result.status not in _SUCCESS:
                sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
                if sqlstate is None:
                    raise psycopg.OperationalError
                raise DatabaseError(statement.name, sqlstate.decode("ascii"))
        if lost or len(results) < number:
            raise psycopg.OperationalError
        return results

    def _collect(self, results: list[pq.abc.PGresult], pipelined: bool, deadline: float) -> None:
        """Gather what comes until the server is ready: in a pipeline, that is a result of its own."""
        while (result := self._next_result(deadline)) is not None or pipelined:
            if result is None:
                result = self._next_result(deadline)
                if result is None:
                    raise psycopg.OperationalError
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return
            results.append(result)

    def _next_result(self, deadline: float) -> pq.abc.PGresult | None:
        while self.pgconn.is_busy():
            self._wait(self._input, deadline)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _flush(self, deadline: float) -> None:
        """Send what the socket did not take at once, and hear the server meanwhile."""
        both_ways = select.poll()
        both_ways.register(self.pgconn.socket, select.POLLIN | select.POLLOUT)
        while self.pgconn.flush():
            self._wait(both_ways, deadline)
            self.pgconn.consume_input()

    def _wait(self, poller: select.poll, deadline: float) -> None:
        now = time.monotonic()
        if self._is_near and now < deadline and poller.poll(_A_MOMENT):
            return
        give_up()
        if not poller.poll(max(0.0, deadline - now) * 1000):
            # Whatever the server still does with the statement, nobody can be told any more.
            raise DatabaseError(failures.DEADLINE, None)
        self._is_near = self._is_near or time.monotonic() - now < _NEAR
