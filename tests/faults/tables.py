"""Cells of what a database holds and permits: tables, keys, logins and limits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg

from tests.faults.cell import DOWN, OUTAGE, Bound, Cell, Fault
from tests.faults.database import LONG, execute, holds
from tests.faults.stage import Setup, Stage

_TERMINATE = (
    "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
    " WHERE application_name = 'stackmgr'"
)
_LOGIN, _OTHER_LOGIN = "stackmgr_service", "faults_other"


def end_connections(stage: Stage) -> None:
    """End every connection of the service, so that it needs others."""
    execute(stage, _TERMINATE)


def _changes(change: str, undo: str, *, new_connections: bool = False) -> Fault:
    """Return the fault that is made by one statement and ended by another."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        execute(stage, change)
        try:
            if new_connections:
                end_connections(stage)
            yield
        finally:
            execute(stage, undo)

    return fault


def _login(change: str, undo: str) -> Fault:
    return _changes(f"ALTER ROLE {_LOGIN} {change}", f"ALTER ROLE {_LOGIN} {undo}", new_connections=True)


def _locks(table: str) -> Fault:
    return holds(f"LOCK TABLE stackmgr.{table} IN ACCESS EXCLUSIVE MODE")


@contextmanager
def _as_service_login(setup: Setup) -> Iterator[None]:
    """Let the service connect with a login that has no more than its rights."""
    setup.server.ensure_service_login()
    setup.login = _LOGIN
    yield


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


# The statement of a known key verifies it: a read that fails is 503, as a verification is, a write 500.
_FAILED, _UNKNOWN = Bound("500 503"), Bound("500")
_RECEIPTS_KEY = "CONSTRAINT creation_receipts_pkey"
_WITHOUT_RECEIPTS_KEY = _changes(
    f"ALTER TABLE stackmgr.creation_receipts DROP {_RECEIPTS_KEY}",
    f"ALTER TABLE stackmgr.creation_receipts ADD {_RECEIPTS_KEY} PRIMARY KEY (manager_id, idempotency_key)",
)
_ASYNCHRONOUS = _login("SET synchronous_commit = off", "RESET synchronous_commit")

CELLS = [
    Cell("table stacks", "hangs", _locks("stacks"), _FAILED, lasts=LONG),
    Cell("table api_keys", "hangs", _locks("api_keys"), _FAILED, lasts=LONG),
    # Only `/ready` reads it.
    Cell("table schema_migrations", "hangs", _locks("schema_migrations"), Bound(ready="fails"), lasts=LONG),
    Cell("primary key of creation_receipts", "dies", _WITHOUT_RECEIPTS_KEY, _UNKNOWN),
    Cell("login", "dies", _login("NOLOGIN", "LOGIN"), DOWN, setup=_as_service_login, lasts=LONG),
    Cell(
        *("max_connections", "is full", _connections_are_used_up, OUTAGE),
        setup=_as_service_login,
        lasts=LONG,
    ),
    Cell("synchronous_commit of the login", "lies", _ASYNCHRONOUS, OUTAGE, setup=_as_service_login),
]
