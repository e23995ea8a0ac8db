"""The operator's one connection.  It needs no pool and no thread.

Each failure is worded here, once, as a CommandError without a secret.
"""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, PollingStatus, TransactionStatus
from psycopg.raw_cursor import RawCursor, RawServerCursor
from psycopg.rows import namedtuple_row

from stackmgr.database import statements
from stackmgr.database.connection import CANCELLED_WAIT, Parameters
from stackmgr.database.conninfo import client_settings
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.database.statements import Statement
from stackmgr.errors import CommandError
from stackmgr.scheduler import READABLE, WRITABLE, wait_for

_ASSUME = statements.load("role_assume")

OWNER = "stackmgr_owner"
READER = "stackmgr_reader"

NO_SCHEMA = "the database has no schema of this release: run 'stackmgr migrate' first"
_NOT_ALLOWED = {
    OWNER: "this login may not assume stackmgr_owner: use that of the operator (operator.env)",
    READER: "{login} may not read the tables: GRANT stackmgr_reader TO {login}",
}
# A schema that is missing or older.  In a cluster whose other databases have the roles, an older
# schema has not granted them anything.
_WITHOUT_SCHEMA = (
    *(errors.UndefinedTable, errors.InvalidSchemaName),
    *(errors.UndefinedColumn, errors.InsufficientPrivilege),
)
_REJECTED = ("28000", "28P01", "42501")  # the login, its password, its right to connect
_ONLY_SQLSTATE = 3  # libpq's PQERRORS_SQLSTATE

_FETCHED_ROWS = 2000

# For a list of servers that do not respond: each address has `connect_timeout`, two seconds.
LONGEST_CONNECT_SECONDS = 30.0

# A login or a database may have other values: a time limit for requests, another search path, a
# commit that does not wait for the disk.
_SETTINGS = b"""
SET LOCAL search_path = pg_catalog; SET LOCAL jit = off; SET LOCAL synchronous_commit = on;
SET LOCAL client_min_messages = warning; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10s';
SET LOCAL TimeZone = 'UTC';
SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'
"""
_LONGEST_IDLE_SECONDS = 0.4  # a server may end a session that is idle for longer
_KEEP_SESSION = b"SELECT"
_RESET_ROLE = b"RESET ROLE"
_IDENTITY = b"SELECT pg_catalog.current_database(), pg_catalog.pg_postmaster_start_time()"
# A plain index scan marks entries of deleted rows as dead; a bitmap scan always reads the rows.
_PLAIN_INDEX_SCANS = b"SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
# TRUNCATE would wait for a lock in the way of all requests.  FREEZE: autovacuum_freeze_min_age is
# autovacuum's alone, and a page that this only visited would be read again against wraparound.
_VACUUM_RECEIPTS = b"VACUUM (FREEZE, INDEX_CLEANUP ON, TRUNCATE OFF) stackmgr.creation_receipts"

AnyConnection = TypeVar("AnyConnection", bound=psycopg.Connection[Any])


@contextmanager
def time_limit(seconds: float = LONGEST_CONNECT_SECONDS) -> Iterator[None]:
    """Raise CommandError in the body after *seconds*.  For the main thread of a process.

    The timeouts of libpq and PostgreSQL bound one attempt to connect or one statement each; a
    server that is frozen in between is bounded by none of them.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise CommandError(
            f"the database did not respond within {seconds:g} s: see whether its server runs and is reachable"
        )

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def worded() -> Iterator[None]:
    """Raise a failed statement of the body as CommandError."""
    try:
        yield
    except _WITHOUT_SCHEMA as ex:
        raise CommandError(NO_SCHEMA) from ex
    except psycopg.Error as ex:
        message = "the database rejected a statement or did not respond ({}): run 'stackmgr check'"
        raise CommandError(message.format(ex.sqlstate or "no connection")) from ex


class Rejected(CommandError):
    """The server responds, but rejects the login or its password, or has another service's tables."""


def connect(conninfo: str, connection_class: type[AnyConnection], **options: Any) -> AnyConnection:
    """Return a new connection in autocommit.  Raises CommandError."""
    try:
        return connection_class.connect(conninfo, autocommit=True, **options)
    except psycopg.OperationalError as ex:
        reason = " ".join(str(ex).split())
        if ex.pgconn and (ex.pgconn.needs_password or _sqlstate(conninfo, ex.pgconn) in _REJECTED):
            raise Rejected(f"the database rejects the login of STACKMGR_DATABASE_URL: {reason}") from ex
        if isinstance(ex, errors.ConnectionTimeout):
            limit = conninfo_to_dict(conninfo).get("connect_timeout")
            reason += f": an address has {limit} s; for a slow login, add connect_timeout=10 to the URL"
        raise CommandError(f"the database of STACKMGR_DATABASE_URL cannot be reached: {reason}") from ex


def _sqlstate(conninfo: str, failed: pq.abc.PGconn) -> str:
    """Return the SQLSTATE with which the server of *failed* rejects a login, "" without one.

    libpq's error has only words, which the server translates.  So log in again, and let libpq show
    the SQLSTATE in their place; psycopg does not have this call.
    """
    place = {name: getattr(failed, name).decode() for name in ("host", "hostaddr", "port")}
    seconds = float(conninfo_to_dict(conninfo).get("connect_timeout") or LONGEST_CONNECT_SECONDS)
    pgconn: Any = PGconn.connect_start(make_conninfo(conninfo, **place).encode())
    with suppress(OSError):  # psycopg written in Python is no library
        libpq = ctypes.CDLL(str(sys.modules[PGconn.__module__].__file__))
        libpq.PQsetErrorVerbosity(ctypes.c_void_p(pgconn.pgconn_ptr), _ONLY_SQLSTATE)
    events = {PollingStatus.READING: READABLE, PollingStatus.WRITING: WRITABLE}
    while (state := pgconn.connect_poll()) in events and wait_for(pgconn.socket, events[state], seconds):
        pass
    found = re.search(r":  (\w{5})\s*$", pgconn.get_error_message())
    pgconn.finish()
    return found[1] if found else ""


def assume(connection: psycopg.Connection[Any], role: str, *, local: bool = False) -> None:
    """Assume *role*, with *local* to the end of the transaction.  Raises CommandError."""
    try:
        connection.execute(_ASSUME.text, [role, local])
    except errors.InsufficientPrivilege as ex:
        raise CommandError(_NOT_ALLOWED[role].format(login=connection.info.user)) from ex
    except errors.InvalidParameterValue as ex:  # there is no such role
        raise CommandError(NO_SCHEMA) from ex


class Operator:
    """Runs statements in transactions that assume a role.

    Each statement is a transaction, unless `transaction` has opened one.  Role and settings end
    with the transaction: nothing is left in a pooler's session.  Rows are named tuples.
    """

    def __init__(self, connection: psycopg.Connection[Any], role: str) -> None:
        self._connection = connection
        self._role = role
        self._warning: str | None = None
        connection.add_notice_handler(self._notice)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.source_function == CANCELLED_WAIT:
            self._warning = diagnostic.message_primary

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction, unless one is open.  Raises CommandError if a standby may lack it."""
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            yield
            return
        with self._connection.transaction():
            assume(self._connection, self._role, local=True)
            self._connection.execute(_SETTINGS)
            self._warning = None
            yield
        if self._warning is not None:
            raise CommandError(f"committed, but the database warns: {self._warning}")

    def rows(self, statement: Statement, parameters: Parameters) -> list[Any]:
        values = [parameters[name] for name in statement.parameters]
        with self.transaction():
            return self._connection.execute(statement.text, values, binary=True).fetchall()

    def iterate(self, statement: Statement, parameters: Parameters) -> Iterator[Any]:
        """Run *statement* and yield its rows, holding a few thousand of them at a time.

        Outside of `transaction` the server keeps the rows, and no snapshot.
        """
        values = [parameters[name] for name in statement.parameters]
        with RawServerCursor(self._connection, statement.name, withhold=True) as cursor:
            cursor.itersize = _FETCHED_ROWS
            with self.transaction():
                cursor.execute(statement.text, values, binary=True)
            yield from cursor

    def pause(self, seconds: float) -> None:
        """Wait outside of a transaction, in a session that no limit on idle ones ends."""
        while seconds > 0:
            time.sleep(min(seconds, _LONGEST_IDLE_SECONDS))
            seconds -= _LONGEST_IDLE_SECONDS
            self._connection.execute(_KEEP_SESSION)

    def check_keys_by_index(self) -> None:
        """Let this transaction's checks of foreign keys pass over deleted rows."""
        self._connection.execute(_PLAIN_INDEX_SCANS)

    def vacuum_receipts(self) -> None:
        """Remove deleted receipts from their index, if no transaction may still read them."""
        assume(self._connection, self._role)
        self._connection.execute(_VACUUM_RECEIPTS)
        self._connection.execute(_RESET_ROLE)


@contextmanager
def operating(url: str, role: str = OWNER) -> Iterator[Operator]:
    """Connect for an operator's statements.  Raises CommandError for every failure in the body.

    Sends no start-up options and prepares no statement: any transaction pooler will do.
    """
    is_reader, service = role == READER, os.environ.get("SERVICE_DATABASE_URL")  # set by the runbook
    connection = _connect(url)
    connection.read_only = is_reader
    connection.isolation_level = (
        IsolationLevel.REPEATABLE_READ if is_reader else IsolationLevel.READ_COMMITTED
    )
    with worded(), connection:
        if service and not is_reader:
            with _connect(service) as other:
                if connection.execute(_IDENTITY).fetchone() != other.execute(_IDENTITY).fetchone():
                    message = "operator.env names another database than stackmgr.env: nothing is changed"
                    raise CommandError(message)
        yield Operator(connection, role)


def _connect(url: str) -> psycopg.Connection[Any]:
    factories = {"cursor_factory": RawCursor, "row_factory": namedtuple_row}
    conninfo = make_conninfo("", **client_settings(url))
    with time_limit():
        return connect(conninfo, psycopg.Connection[Any], **factories, prepare_threshold=None)


@contextmanager
def reading(url: str) -> Iterator[Operator]:
    """Open one read-only transaction as stackmgr_reader: every statement sees the same snapshot."""
    with operating(url, READER) as operator, operator.transaction():
        yield operator


@contextmanager
def request_session(url: str) -> Iterator[Session]:
    """Open a session as a request has it.  Its statements raise DatabaseError."""
    with closing(Database(url, pool_size=1)) as database:
        database.open()
        yield database.session()
