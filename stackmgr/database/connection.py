"""One connection to PostgreSQL: a prepared statement, run within a deadline.

Written on psycopg's libpq layer.  A statement of ours is one prepared execution with a handful of text
parameters; a cursor, which must be ready for anything, costs three times as much, and it waits for a server
that has stopped answering as long as that takes.  Here every wait ends at the caller's deadline.
"""

import select
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from stackmgr.database import retries
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.slots import before_write, give_up

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Query = tuple[Statement, Parameters]

_WARNING = "01000"

# A server that has ever answered within so many seconds is near: it is worth while to wait for it a moment,
# in which most commits are through, before another thread is let go on.
LOCAL_ROUND_TRIP = 0.0001
BLOCKING_THRESHOLD_MS = 20  # milliseconds

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


def _require_success(statement: Statement, result: pq.abc.PGresult) -> None:
    if result.status not in _SUCCESS:
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
        if sqlstate is None:
            raise psycopg.OperationalError
        raise DatabaseError(statement.name, sqlstate.decode("ascii"))


class DatabaseConnection(psycopg.Connection[TupleRow]):
    """A connection that runs statements by their names, preparing each when it is first needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[str, bytes] = {}
        self._transformer = Transformer(self)
        self._input = select.poll()
        self._input.register(self.pgconn.socket, select.POLLIN)
        self.acquired_at = 0.0  # when the pool gave it, of the monotonic clock
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
        try:
            if statement.name not in self._known:
                self._prepare(statement, deadline)
            self._send(statement, parameters)
            result = self._result(statement, deadline)
            if self._warned and statement.writes:
                raise DatabaseError("unconfirmed", _WARNING)  # noqa: TRY301
        except (DatabaseError, psycopg.OperationalError) as ex:
            self._fail(ex)
        return self._rows(result)

    def run_with_prefetch(
        self, statement: Statement, parameters: Parameters, prefetch: Query, deadline: float
    ) -> tuple[list[Row], list[Row] | None]:
        """Run *statement* as `run` does, and with the same round trip another one; neither writes anything.

        Returns the rows of both; None for those of the other one when it failed, for whatever reason, or when
        it was not sent, because this connection has not prepared it yet and that may take its time.
        """
        if statement.name not in self._known or prefetch[0].name not in self._known:
            return self.run(statement, parameters, deadline), None
        try:
            self.pgconn.enter_pipeline_mode()
            self._send(statement, parameters)
            self._send(*prefetch)
            self.pgconn.pipeline_sync()
            result, other = self._two_results(statement, deadline)
            self.pgconn.exit_pipeline_mode()
            _require_success(statement, result)
        except (DatabaseError, psycopg.OperationalError) as ex:
            self._fail(ex)
        return self._rows(result), self._rows(other) if other.status in _SUCCESS else None

    def _fail(self, ex: DatabaseError | psycopg.OperationalError) -> NoReturn:
        """Close the connection if *ex* leaves it of no use, and raise what the caller is to know."""
        if isinstance(ex, psycopg.OperationalError):
            self.close()
            raise DatabaseError(retries.CONNECTION_LOST, None) from ex
        if retries.must_close(ex):
            self.close()
        raise ex

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _prepare(self, statement: Statement, deadline: float) -> None:
        name = statement.name.encode("ascii")
        self.pgconn.send_prepare(name, statement.text)
        self._result(statement, deadline)
        self._known[statement.name] = name

    def _send(self, statement: Statement, parameters: Parameters) -> None:
        given = [parameters[name] for name in statement.parameters]
        values = [_encoded(value) for value in given]
        formats = [isinstance(value, bytes) for value in given]
        self._warned = False
        if statement.writes:
            before_write()
        self.pgconn.send_query_prepared(self._known[statement.name], values, formats)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._warned = self._warned or diagnostic.severity_nonlocalized == "WARNING"

    def _result(self, statement: Statement, deadline: float) -> pq.abc.PGresult:
        """Return the result of what was sent, or raise what the server said against it.

        It counts when the server is ready for the next statement and not before: the rows, and the word that
        the command is complete, come ahead of the commit, and the commit can still fail.
        """
        if self.pgconn.flush():
            self._flush(deadline)
        results: list[pq.abc.PGresult] = []
        try:
            while (result := self._next_result(deadline)) is not None:
                results.append(result)
        except psycopg.OperationalError:
            # A server that ends the connection may have said why.
            if all(result.status in _SUCCESS for result in results):
                raise
        for result in results:
            _require_success(statement, result)
        return results[0]

    def _two_results(self, statement: Statement, deadline: float) -> list[pq.abc.PGresult]:
        """Return both results of a pipeline, good or not, once the server is ready again."""
        if self.pgconn.flush():
            self._flush(deadline)
        results: list[pq.abc.PGresult] = []
        try:
            while (result := self._next_in_pipeline(deadline)).status != pq.ExecStatus.PIPELINE_SYNC:
                results.append(result)
        except psycopg.OperationalError:
            for result in results[:1]:
                _require_success(statement, result)
            raise
        return results

    def _next_in_pipeline(self, deadline: float) -> pq.abc.PGresult:
        # Behind the result of each statement comes None, but not behind the last, that the server is ready.
        result = self._next_result(deadline) or self._next_result(deadline)
        if result is None:
            raise psycopg.OperationalError
        return result

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
        if self._is_near and now < deadline and poller.poll(BLOCKING_THRESHOLD_MS):
            return
        give_up()
        if not poller.poll(max(0.0, deadline - now) * 1000):
            # Whatever the server still does with the statement, nobody can be told any more.
            raise DatabaseError(retries.DEADLINE, None)
        self._is_near = self._is_near or time.monotonic() - now < LOCAL_ROUND_TRIP
