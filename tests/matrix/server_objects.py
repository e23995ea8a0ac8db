"""Cells of what a database holds and permits: tables, rows, indexes, grants, logins, limits and settings."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.matrix.cell import Bound, Cell, Fault
from tests.matrix.server_processes import LONG
from tests.matrix.stage import Setup, Stage
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres

_TERMINATE = (
    b"SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
    b" WHERE application_name = 'stackmgr'"
)
_RELOAD = "SELECT pg_catalog.pg_reload_conf()"
_LOGIN, _OTHER_LOGIN = "stackmgr_service", "matrix_other"
_PASSWORD_RULE = f"local all {_LOGIN} scram-sha-256\n"


def execute(stage: Stage, *statements: str | bytes) -> None:
    """Run *statements* as the superuser, each in a transaction of its own."""
    with psycopg.connect(stage.server.url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement if isinstance(statement, bytes) else statement.encode())


def end_connections(stage: Stage) -> None:
    """End every connection of the service, so that it needs others."""
    execute(stage, _TERMINATE)


def _changes(change: str, undo: str, *more: str, new_connections: bool = False) -> Fault:
    """Return the fault that is made by one statement and ended by others."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        execute(stage, change)
        try:
            if new_connections:
                end_connections(stage)
            yield
        finally:
            execute(stage, undo, *more)

    return fault


def _settings(**settings: str) -> Fault:
    """Return the fault that is a setting of the server, or several."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        execute(stage, *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()), _RELOAD)
        try:
            yield
        finally:
            execute(stage, *(f"ALTER SYSTEM RESET {name}" for name in settings), _RELOAD)

    return fault


def _holds(statement: str) -> Fault:
    """Return the fault in which a transaction of somebody else has executed *statement* and stays open."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with psycopg.connect(stage.server.url()) as connection:
            connection.execute(statement.encode())
            yield

    return fault


def _locks(table: str) -> Fault:
    return _holds(f"LOCK TABLE stackmgr.{table} IN ACCESS EXCLUSIVE MODE")


@contextmanager
def as_service_login(setup: Setup) -> Iterator[None]:
    """Let the service connect with a login that has no more than its rights."""
    setup.server.ensure_service_login()
    setup.login = _LOGIN
    yield


@contextmanager
def _with_password(setup: Setup) -> Iterator[None]:
    setup.server.ensure_service_login()
    rules = setup.server.folder / "pg_hba.conf"
    text = rules.read_text()
    rules.write_text(_PASSWORD_RULE + text)
    with psycopg.connect(setup.server.url(), autocommit=True) as admin:
        admin.execute(f"ALTER ROLE {_LOGIN} PASSWORD 'right'".encode())
        admin.execute(_RELOAD.encode())
    try:
        setup.login = f"{_LOGIN}:right"
        yield
    finally:
        rules.write_text(text)
        with psycopg.connect(setup.server.url(), autocommit=True) as admin:
            admin.execute(_RELOAD.encode())


@contextmanager
def _connections_are_used_up(stage: Stage) -> Iterator[None]:
    """Let another login take every connection that an ordinary login may have."""
    with suppress(psycopg.errors.DuplicateObject):
        execute(stage, f"CREATE ROLE {_OTHER_LOGIN} LOGIN")

    def take(held: ExitStack) -> bool:
        with suppress(psycopg.OperationalError):
            held.enter_context(psycopg.connect(stage.server.url(user=_OTHER_LOGIN)))
            return True
        return False

    with ExitStack() as held:
        while take(held):
            pass
        end_connections(stage)
        while take(held):
            pass
        yield


class _ArchivingPostgres(FaultyPostgres):
    def settings(self) -> dict[str, Any]:
        return super().settings() | {"archive_mode": "on"}


@contextmanager
def _archiving_server(setup: Setup) -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-archive-", dir=memory()) as folder,
        _ArchivingPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        setup.use(server)
        yield


def _archives_with(command: str) -> Fault:
    """Return the fault in which *command* archives a complete file of the WAL."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with _settings(archive_command=command)(stage):
            execute(stage, b"SELECT pg_catalog.pg_switch_wal()")
            yield

    return fault


def _without(table: str) -> Fault:
    return _changes(
        f"ALTER TABLE stackmgr.{table} RENAME TO away", f"ALTER TABLE stackmgr.away RENAME TO {table}"
    )


def _without_right(right: str) -> Fault:
    return _changes(f"REVOKE {right} FROM stackmgr_app", f"GRANT {right} TO stackmgr_app")


def _reconnecting(change: str, undo: str) -> Fault:
    return _changes(change, undo, new_connections=True)


_EITHER = Bound("500 503")
_REJECTED = Bound("503")
_UNKNOWN = Bound("500")
_LOCKED = {
    "stacks": _UNKNOWN,
    "stack_revisions": _UNKNOWN,
    "creation_receipts": _UNKNOWN,
    "managers": _REJECTED,
    "api_keys": _REJECTED,
    # Only `/ready` reads it.
    "schema_migrations": Bound(ready="fails"),
}
_STACK_ID_KEY = "stacks_page ON stackmgr.stacks (manager_id, created_at DESC, stack_id DESC)"
_RECEIPTS_KEY = "CONSTRAINT creation_receipts_pkey"
_INVALID = (
    "UPDATE pg_catalog.pg_index SET indisvalid = {} WHERE indexrelid = 'stackmgr.stacks_page'::regclass"
)
_REVISION_KEY = "CONSTRAINT stack_revisions_stack_fkey"
_DOWN = Bound("500 503", ready="fails")

CELLS = [
    *(Cell(f"table {table}", "hangs", _locks(table), bound, lasts=LONG) for table, bound in _LOCKED.items()),
    Cell("rows of managers", "hangs", _holds("SELECT FROM stackmgr.managers FOR UPDATE"), lasts=LONG),
    Cell("rows of api_keys", "hangs", _holds("SELECT FROM stackmgr.api_keys FOR UPDATE"), lasts=LONG),
    *(
        Cell(f"table {table}", "dies", _without(table), bound)
        for table, bound in {
            "stacks": _UNKNOWN,
            "stack_revisions": _UNKNOWN,
            "creation_receipts": _UNKNOWN,
            "managers": _EITHER,
            "api_keys": _REJECTED,
            "schema_migrations": Bound(ready="fails"),
        }.items()
    ),
    Cell(
        *("schema", "dies"),
        _changes("ALTER SCHEMA stackmgr RENAME TO away", "ALTER SCHEMA away RENAME TO stackmgr"),
        _DOWN,
    ),
    Cell(
        *("column", "dies"),
        _changes(
            "ALTER TABLE stackmgr.stacks RENAME preset TO away",
            "ALTER TABLE stackmgr.stacks RENAME away TO preset",
        ),
        _UNKNOWN,
    ),
    Cell("index (invalid)", "lies", _changes(_INVALID.format("false"), _INVALID.format("true"))),
    Cell("index", "dies", _changes("DROP INDEX stackmgr.stacks_page", f"CREATE INDEX {_STACK_ID_KEY}")),
    Cell(
        *("primary key of creation_receipts", "dies"),
        _changes(
            f"ALTER TABLE stackmgr.creation_receipts DROP {_RECEIPTS_KEY}",
            f"ALTER TABLE stackmgr.creation_receipts ADD {_RECEIPTS_KEY} PRIMARY KEY"
            " (manager_id, idempotency_key)",
        ),
        _UNKNOWN,
    ),
    Cell(
        *("foreign key of stack_revisions", "dies"),
        _changes(
            f"ALTER TABLE stackmgr.stack_revisions DROP {_REVISION_KEY}",
            f"ALTER TABLE stackmgr.stack_revisions ADD {_REVISION_KEY}"
            " FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id)"
            " DEFERRABLE INITIALLY DEFERRED",
        ),
    ),
    Cell("grant on the schema", "dies", _without_right("USAGE ON SCHEMA stackmgr"), _DOWN),
    Cell(
        "grant on api_keys",
        "dies",
        _without_right("SELECT ON stackmgr.api_keys"),
        Bound("503", ready="fails"),
    ),
    Cell(
        "grant on stack_revisions",
        "dies",
        _without_right("INSERT ON stackmgr.stack_revisions"),
        Bound("500", ready="fails"),
    ),
    Cell(
        *("membership of the login", "dies"),
        _reconnecting(f"REVOKE stackmgr_app FROM {_LOGIN}", f"GRANT stackmgr_app TO {_LOGIN}"),
        _DOWN,
        setup=as_service_login,
        lasts=LONG,
    ),
    Cell(
        *("login", "dies"),
        _reconnecting(f"ALTER ROLE {_LOGIN} NOLOGIN", f"ALTER ROLE {_LOGIN} LOGIN"),
        _DOWN,
        setup=as_service_login,
        lasts=LONG,
    ),
    Cell(
        *("password of the login", "lies"),
        _reconnecting(f"ALTER ROLE {_LOGIN} PASSWORD 'other'", f"ALTER ROLE {_LOGIN} PASSWORD 'right'"),
        _DOWN,
        setup=_with_password,
        lasts=LONG,
    ),
    Cell(
        *("connections of the login", "is full"),
        _reconnecting(f"ALTER ROLE {_LOGIN} CONNECTION LIMIT 2", f"ALTER ROLE {_LOGIN} CONNECTION LIMIT -1"),
        Bound("500 503", ready="may fail"),
        setup=as_service_login,
        lasts=LONG,
    ),
    Cell(
        *("connections of the database", "is full"),
        _reconnecting(
            "ALTER DATABASE stackmgr CONNECTION LIMIT 0", "ALTER DATABASE stackmgr CONNECTION LIMIT -1"
        ),
        _DOWN,
        setup=as_service_login,
        lasts=LONG,
    ),
    Cell(
        *("max_connections", "is full", _connections_are_used_up, Bound("500 503", ready="may fail")),
        setup=as_service_login,
        lasts=LONG,
    ),
    Cell(
        *("server (read-only)", "lies", _settings(default_transaction_read_only="on")),
        Bound("500 503", ready="fails"),
        lasts=LONG,
    ),
    Cell(
        *("timeouts of the login", "lies"),
        _reconnecting(
            f"ALTER ROLE {_LOGIN} SET statement_timeout = '1ms'",
            f"ALTER ROLE {_LOGIN} RESET statement_timeout",
        ),
        Bound("500 503", ready="may fail"),
        setup=as_service_login,
    ),
    Cell(
        *("synchronous_commit of the login", "lies"),
        _reconnecting(
            f"ALTER ROLE {_LOGIN} SET synchronous_commit = off",
            f"ALTER ROLE {_LOGIN} RESET synchronous_commit",
        ),
        Bound("500 503", ready="may fail"),
        setup=as_service_login,
    ),
    Cell("standby", "dies", _settings(synchronous_standby_names="nobody"), _UNKNOWN, lasts=LONG),
    Cell("archiver", "dies", _archives_with("false"), setup=_archiving_server, lasts=LONG),
    Cell("archiver", "hangs", _archives_with("sleep 60"), setup=_archiving_server, lasts=LONG),
    # Each flush of the WAL takes a tenth of a second more, the most that PostgreSQL can be told to.
    Cell("disk", "is slow", _settings(commit_delay="100000", commit_siblings="0"), lasts=LONG),
]

EMPTY = {
    "table: is full": "it has no limit of its own; see the volume of the tables",
    "table: is slow": "as its disk, or a lock",
    "settings of the service: lies": "a running process keeps its environment; a start checks it",
    "standby: hangs": "for the service, as a standby that is missing",
}
