"""One connection, for what is not a request: commands, migrations and the check at start.

It needs no pool and no thread.  Each failure is worded here, once, as a CommandError without a secret.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from types import FrameType, MappingProxyType
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.raw_cursor import RawCursor, RawServerCursor

from stackmgr.database import session_settings, statements
from stackmgr.database.connection import DatabaseConnection, Parameters, Row
from stackmgr.database.conninfo import SERVICE_ROLE, completed_conninfo
from stackmgr.database.session import SESSION_SECONDS, PrefetchHints, Session
from stackmgr.database.shared_reads import SharedReads
from stackmgr.database.statements import Statement
from stackmgr.errors import CommandError, DatabaseError
from stackmgr.reasons import ReasonSlug

_ASSUME = statements.load("role_assume")

OWNER = "stackmgr_owner"
READER = "stackmgr_reader"

NO_SCHEMA = "the database has no schema of this release: run 'stackmgr migrate' first"
_NOT_ALLOWED = {
    OWNER: "this login may not become stackmgr_owner: use the operator's connection string (operator.env)",
    READER: "{login} may not read: GRANT stackmgr_reader TO {login}",
}
# SQLSTATEs of a schema that is missing or older.  In a cluster whose other databases have the roles, an older
# schema has not granted them anything.
_WITHOUT_SCHEMA = (
    errors.UndefinedTable.sqlstate,
    errors.InvalidSchemaName.sqlstate,
    errors.UndefinedColumn.sqlstate,
    errors.InsufficientPrivilege.sqlstate,
)

_TIME_LIMIT_SECONDS = 5.0
_CONNECT_TIMEOUT_SECONDS = 2  # for each host
_FETCHED_ROWS = 2000

# A login or a database may limit a statement to the time of a request; a scan of a large table takes longer.
# It may also name other schemas first, and compile a statement for longer than it runs.
_READER_SETTINGS = b"SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog; SET LOCAL jit = off"
# A plain index scan marks the entries of deleted rows as dead; a bitmap scan reads the rows every time.
_PLAIN_INDEX_SCANS = b"SET enable_seqscan = off; SET enable_bitmapscan = off"
# Without TRUNCATE, which would wait for a lock in the way of all requests.
_VACUUM_RECEIPTS = b"VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) stackmgr.creation_receipts"

ReaderConnection = psycopg.Connection[Row]
AnyConnection = TypeVar("AnyConnection", bound=psycopg.Connection[Any])


@contextmanager
def time_limit(seconds: float = _TIME_LIMIT_SECONDS) -> Iterator[None]:
    """Raise CommandError in the body after *seconds*.  For the main thread of a process.

    The time-outs of libpq and PostgreSQL bound one attempt to connect or one statement each; a server that is
    frozen in between, or a list of hosts, is bounded by none of them.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise CommandError(f"the database did not respond within {seconds:g} s")

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
    except (psycopg.Error, DatabaseError) as ex:
        if ex.sqlstate in _WITHOUT_SCHEMA:
            raise CommandError(NO_SCHEMA) from ex
        reason = ex.sqlstate or "no connection"
        raise CommandError(
            f"the database refused or did not respond ({reason}); see 'stackmgr check'"
        ) from ex


def connect(conninfo: str, connection_class: type[AnyConnection], **options: Any) -> AnyConnection:
    """Return a new connection in autocommit.  Raises CommandError."""
    try:
        return connection_class.connect(conninfo, autocommit=True, **options)
    except psycopg.OperationalError as ex:
        raise CommandError(f"the database cannot be reached: {' '.join(str(ex).split())}") from ex


def assume(connection: psycopg.Connection[Any], role: str, *, local: bool = False) -> None:
    """Assume *role*, with *local* to the end of the transaction.  Raises CommandError."""
    try:
        RawCursor(connection).execute(_ASSUME.text, [role, local])
    except errors.InsufficientPrivilege as ex:
        raise CommandError(_NOT_ALLOWED[role].format(login=connection.info.user)) from ex
    except errors.InvalidParameterValue as ex:  # there is no such role
        raise CommandError(NO_SCHEMA) from ex


class SingleConnection:
    """What `Session` needs of a pool, with one connection, which is replaced if it was lost."""

    variants: Mapping[str, Statement] = MappingProxyType({})

    def __init__(self, url: str, role: str) -> None:
        self.hints = PrefetchHints()
        self.shared_reads = SharedReads(self)
        self._url = url
        self._role = role
        self._connection: DatabaseConnection | None = None

    def open(self) -> DatabaseConnection:
        """Connect within five seconds.  Raises CommandError."""
        # The service's role is a start-up option, as in the pool.  The owner's is assumed once connected: a
        # refusal to connect has no SQLSTATE.
        is_service = self._role == SERVICE_ROLE
        conninfo = completed_conninfo(self._url, self._role if is_service else None, SESSION_SECONDS)
        try:
            with time_limit():
                self._connection = connect(conninfo, DatabaseConnection)
                if not is_service:
                    assume(self._connection, self._role)
                session_settings.verify(self._connection)
        except (CommandError, session_settings.SessionSettingsError) as ex:
            self.close()
            raise CommandError(str(ex)) from ex
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return the connection.  Raises DatabaseError."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            return self.open()
        except CommandError as ex:
            raise DatabaseError(ReasonSlug.NO_CONNECTION) from ex

    def release(self, connection: DatabaseConnection) -> None:
        """Keep the connection for the next statement."""

    def drain(self) -> None:
        """Replace nothing: the connection is closed by what failed on it."""


@contextmanager
def operator_session(url: str) -> Iterator[Session]:
    """Open a session with the owner's rights.  Raises CommandError."""
    with closing(SingleConnection(url, OWNER)) as source:
        source.open()
        with worded(), Session(source, SESSION_SECONDS) as session:
            yield session


@contextmanager
def service_session(url: str) -> Iterator[Session]:
    """Open a session as a request has it; without a connection its statements raise DatabaseError."""
    with (
        closing(SingleConnection(url, SERVICE_ROLE)) as source,
        Session(source, SESSION_SECONDS) as session,
    ):
        yield session


class _Runner:
    """Runs statements on one connection, without a deadline."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, statement: Statement, parameters: Parameters) -> list[Row]:
        """Run *statement* and return its rows."""
        values = [parameters[name] for name in statement.parameters]
        return RawCursor(self._connection).execute(statement.text, values, binary=True).fetchall()

    def _iterate(self, statement: Statement, parameters: Parameters, *, withhold: bool) -> Iterator[Row]:
        values = [parameters[name] for name in statement.parameters]
        with RawServerCursor(self._connection, statement.name, withhold=withhold) as cursor:
            cursor.itersize = _FETCHED_ROWS
            yield from cursor.execute(statement.text, values, binary=True)


class Reader(_Runner):
    """One read-only transaction as stackmgr_reader: every statement sees the same snapshot."""

    def iterate(self, statement: Statement, parameters: Parameters) -> Iterator[Row]:
        """Run *statement* and yield its rows, holding a few thousand of them at a time."""
        return self._iterate(statement, parameters, withhold=False)


class Operator(_Runner):
    """A connection with the owner's rights for work that takes long.  Each statement is a transaction."""

    def transaction(self) -> AbstractContextManager[psycopg.Transaction]:
        """Return a context in which all statements are one transaction."""
        return self._connection.transaction()

    def iterate(self, statement: Statement, parameters: Parameters) -> Iterator[Row]:
        """Run *statement* and yield its rows; the server keeps them, and no snapshot."""
        return self._iterate(statement, parameters, withhold=True)

    def check_keys_by_index(self) -> None:
        """Let the checks of foreign keys pass over the entries of rows that were deleted before."""
        self._connection.execute(_PLAIN_INDEX_SCANS)

    def vacuum_receipts(self) -> None:
        """Remove the entries of deleted receipts from their index, if no transaction may read the rows."""
        self._connection.execute(_VACUUM_RECEIPTS)


@contextmanager
def operating(url: str) -> Iterator[Operator]:
    """Connect with the owner's rights, for work that takes long.  Raises CommandError."""
    with time_limit():
        connection = connect(completed_conninfo(url, None, deadline=0), psycopg.Connection[Row])
        assume(connection, OWNER)
    with worded(), connection:
        yield Operator(connection)


@contextmanager
def reader_connection(url: str) -> Iterator[ReaderConnection]:
    """Connect to read.  Raises CommandError for every failure in the body.

    Sends no start-up options and prepares no statement, so that it works through any transaction pooler.
    """
    with time_limit():
        connection = connect(
            url,
            ReaderConnection,
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            application_name="stackmgr",
            client_encoding="UTF8",
            prepare_threshold=None,
        )
    connection.read_only = True
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    with worded(), connection:
        yield connection


@contextmanager
def reader_transaction(connection: ReaderConnection) -> Iterator[Reader]:
    """Open a read-only transaction.  Raises CommandError."""
    with connection.transaction():
        assume(connection, READER, local=True)
        connection.execute(_READER_SETTINGS)
        yield Reader(connection)


@contextmanager
def reading(url: str) -> Iterator[Reader]:
    """Connect and open the one transaction that most commands need.  Raises CommandError."""
    with reader_connection(url) as connection, reader_transaction(connection) as reader:
        yield reader
