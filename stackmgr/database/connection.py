"""One connection to PostgreSQL: run a prepared statement within a deadline.

Written on psycopg's libpq layer (see DECISIONS.md): a statement is one prepared execution with a
few text parameters, and every wait ends at the deadline.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple, NoReturn

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from stackmgr.database import retries
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import READABLE, WRITABLE, wait_for

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]

# The function that warns that a standby may lack the commit: others use its SQLSTATE too.
CANCELLED_WAIT = "SyncRepWaitForLSN"
_DEALLOCATE = b"DEALLOCATE ALL"
_log = logging.getLogger("stackmgr.postgresql")
_log.addFilter(RateLimitFilter(by_arguments=True, seconds=60.0))
_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        if "\0" in value:
            # Text is sent as a C string: what follows would be cut off silently.
            raise ValueError("U+0000 in a text parameter")
        return value.encode("utf-8")
    return (value.isoformat() if isinstance(value, datetime) else str(value)).encode("ascii")


class Execution(NamedTuple):
    """A statement and its encoded parameters; a format is 1 where the value is binary."""

    statement: Statement
    values: list[bytes | None]
    formats: list[int]

    def value(self, name: str) -> bytes | None:
        names = self.statement.parameters
        return self.values[names.index(name)] if name in names else None

    @property
    def parameter_bytes(self) -> int:
        return sum(map(len, filter(None, self.values)))


def execution(statement: Statement, parameters: Parameters) -> Execution:
    """Encode the parameters of *statement*.  Raises ValueError for one that cannot be sent."""
    given = [parameters[name] for name in statement.parameters]
    values = [value if value is None or isinstance(value, bytes) else _encoded(value) for value in given]
    return Execution(statement, values, [isinstance(value, bytes) for value in given])


class RolledBack(DatabaseError):
    """A batch has changed nothing, because of an *error* of `failed`, or of the commit."""

    def __init__(self, error: DatabaseError, failed: Execution) -> None:
        super().__init__(ReasonSlug(error.reason), sqlstate=error.sqlstate)
        self.failed = failed


def _sqlstate(result: pq.abc.PGresult) -> str | None:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii") or None


def _require_success(statement: Statement, result: pq.abc.PGresult) -> None:
    if result.status not in _SUCCESS:
        sqlstate = _sqlstate(result)
        if sqlstate is None:
            raise psycopg.OperationalError
        raise DatabaseError(ReasonSlug.REJECTED, statement=statement.name, sqlstate=sqlstate)


class DatabaseConnection(psycopg.Connection[TupleRow]):
    """A connection that runs statements by name, and prepares each on first use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._statement_names: dict[str, bytes] = {}
        self._transformer = Transformer(self)
        self._warned = False
        self.add_notice_handler(self._notice)

    def is_stale(self) -> bool:
        """Whether the idle connection has input, which only means that the server has closed it."""
        return wait_for(self.pgconn.socket, READABLE, 0)

    def run(self, execution: Execution, deadline: float) -> list[Row]:
        """Run a statement and return its rows.

        *deadline* is a time of the monotonic clock, in seconds.  Raises DatabaseError.  Without a
        response its `sqlstate` is None, this connection is closed, and the outcome is unknown.
        """
        statement = execution.statement
        is_first = statement.name not in self._statement_names
        try:
            if is_first:
                self._prepare(statement, deadline)
            result = self._execute(execution, deadline)
            if self._warned and statement.writes:
                raise DatabaseError(ReasonSlug.UNCONFIRMED, sqlstate="01000")  # noqa: TRY301
            return self._rows(result)
        except BaseException as ex:  # noqa: BLE001 - raised by `_fail`
            self._fail(statement, ex, deadline if is_first else None)

    def run_together(self, executions: Sequence[Execution], deadline: float) -> list[list[Row]]:
        """Run statements in one round trip and one transaction, and return the rows of each.

        Raises RolledBack if nothing was changed, or another DatabaseError, as `run` does: then the
        outcome of all is unknown.
        """
        last, is_sent = executions[-1].statement, False
        try:
            for each in executions:
                if each.statement.name not in self._statement_names:
                    self._prepare(each.statement, deadline)
            is_sent = True
            self.pgconn.enter_pipeline_mode()
            for each in executions:
                self._send(each)
            self.pgconn.pipeline_sync()
            results = self._pipeline_results(deadline)
            self.pgconn.exit_pipeline_mode()
            self._require_commit(executions, results)
            return [self._rows(result) for result in results]
        except BaseException as ex:  # noqa: BLE001 - raised by `_fail`
            if isinstance(ex, DatabaseError) and not is_sent:
                ex = RolledBack(ex, executions[-1])
            self._fail(last, ex, None)

    def _require_commit(self, executions: Sequence[Execution], results: list[pq.abc.PGresult]) -> None:
        """Raise the first error of a pipeline; the server has reported it and is ready again."""
        for result, each in zip_longest(results, executions):
            try:
                _require_success(each.statement if each else executions[-1].statement, result)
            except DatabaseError as ex:
                raise RolledBack(ex, each or executions[-1]) from ex
        if self._warned and any(each.statement.writes for each in executions):
            raise DatabaseError(ReasonSlug.UNCONFIRMED, sqlstate="01000")

    def _fail(self, statement: Statement, ex: BaseException, first_until: float | None) -> NoReturn:
        """Raise *ex*, as a DatabaseError of *statement* if the connection or the server failed.

        The connection is used again only after some errors that the server has reported: another
        end of an exchange leaves results on it that would be the next statement's.  *first_until*
        is the deadline of a statement that was prepared just now.
        """
        if first_until and isinstance(ex, DatabaseError) and ex.sqlstate == retries.FEATURE_NOT_SUPPORTED:
            ex.reason = ReasonSlug.UNSUPPORTED.value
            self._forget_statements(statement, first_until)
        if not isinstance(ex, DatabaseError) or retries.must_close(ex):
            self.close()
        if isinstance(ex, DatabaseError):
            ex.statement = statement.name
        elif isinstance(ex, psycopg.OperationalError):
            raise DatabaseError(ReasonSlug.CONNECTION_LOST, statement=statement.name) from ex
        raise ex

    def _forget_statements(self, statement: Statement, deadline: float) -> None:
        """Prepare all statements again: a migration may have come since *statement*'s plan."""
        self._statement_names.clear()
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            with suppress(DatabaseError, psycopg.OperationalError):
                self.pgconn.send_query_params(_DEALLOCATE, [], None, [])
                self._result(statement, deadline)
                on_failure.pop_all()

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)  # or each connection would keep its last page
        return rows

    def _prepare(self, statement: Statement, deadline: float) -> None:
        self.pgconn.send_prepare(statement.prepared_name, statement.text)
        try:
            self._result(statement, deadline)
        except DatabaseError as ex:
            if ex.sqlstate != retries.DUPLICATE_PREPARED_STATEMENT:
                raise
        self._statement_names[statement.name] = statement.prepared_name

    def _execute(self, execution: Execution, deadline: float) -> pq.abc.PGresult:
        self._send(execution)
        try:
            return self._result(execution.statement, deadline)
        except DatabaseError as ex:
            if ex.sqlstate != retries.INVALID_STATEMENT_NAME:
                raise
        return self._execute_unprepared(execution, deadline)

    def _execute_unprepared(self, execution: Execution, deadline: float) -> pq.abc.PGresult:
        """Prepare and execute, if a pooler has led to a server session without the statement.

        In one pipeline, because the pooler may change the server session between two round trips.
        If another client has prepared the statement since, it is executed without a name.
        """
        statement, values, formats = execution
        self.pgconn.enter_pipeline_mode()
        self.pgconn.send_prepare(statement.prepared_name, statement.text)
        self._send(execution)
        self.pgconn.pipeline_sync()
        results = self._pipeline_results(deadline)
        self.pgconn.exit_pipeline_mode()
        if _sqlstate(results[0]) == retries.DUPLICATE_PREPARED_STATEMENT:
            self.pgconn.send_query_params(statement.text, values, None, formats)
            return self._result(statement, deadline)
        for result in results:
            _require_success(statement, result)
        return results[1]

    def _send(self, execution: Execution) -> None:
        self._warned = False
        name = self._statement_names[execution.statement.name]
        self.pgconn.send_query_prepared(name, execution.values, execution.formats)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.source_function == CANCELLED_WAIT:
            self._warned = True
        elif diagnostic.severity_nonlocalized == "WARNING":
            _log.warning("PostgreSQL warns: %s of %s", diagnostic.sqlstate, diagnostic.source_function)

    def _result(self, statement: Statement, deadline: float) -> pq.abc.PGresult:
        """Return the result of what was sent, or raise the server's error.

        The result counts once the server is ready for the next statement: rows and command
        completion arrive before the commit, which can still fail.
        """
        self._flush(deadline)
        results: list[pq.abc.PGresult] = []
        try:
            while (result := self._next_result(deadline)) is not None:
                results.append(result)
        except psycopg.OperationalError:
            # A server that closes the connection may have sent the reason.
            if all(result.status in _SUCCESS for result in results):
                raise
        for result in results:
            _require_success(statement, result)
        return results[0]

    def _pipeline_results(self, deadline: float) -> list[pq.abc.PGresult]:
        """Return the results of a pipeline, errors included, once the server is ready again.

        An error of the commit follows the others.
        """
        self._flush(deadline)
        results: list[pq.abc.PGresult] = []
        # None follows the result of each statement, but not the last result, which is the sync's.
        while (result := self._next_result(deadline) or self._next_result(deadline)) is not None:
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)
        raise psycopg.OperationalError  # as of a lost connection

    def _next_result(self, deadline: float) -> pq.abc.PGresult | None:
        while self.pgconn.is_busy():
            self._wait(READABLE, deadline)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _flush(self, deadline: float) -> None:
        """Send what the socket did not take at once, and read from the server meanwhile."""
        while self.pgconn.flush():
            self._wait(READABLE | WRITABLE, deadline)
            self.pgconn.consume_input()

    def _wait(self, events: int, deadline: float) -> None:
        if not wait_for(self.pgconn.socket, events, deadline - time.monotonic()):
            # The server may still run the statement, but no one can learn its outcome any more.
            raise DatabaseError(ReasonSlug.DEADLINE)
