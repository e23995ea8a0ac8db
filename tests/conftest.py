"""Fixtures: one PostgreSQL and one migrated database, shared by different managers, and clients."""

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import psutil
import psycopg
import pytest
from psycopg import sql

from stackmgr import paths
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.http.app import Application, create_app
from stackmgr.operate import keys, migrations
from stackmgr.stacks import whitelist
from tests.suite import EXTENDED, LONGEST_SECONDS
from tests.support.citus import citus, distribute
from tests.support.client import Client
from tests.support.clusters import binaries_of, cluster, new_database
from tests.support.pgbouncer import make_pooled_login, pgbouncer
from tests.support.recorder import RecordedDatabase, opened
from tests.support.server import RunningService, running_service
from tests.support.waiting import eventually

# Models take the same steps each time.  `--hypothesis-profile=explore` takes others, many more, and
# looks for the shortest that fail.
hypothesis.settings.register_profile(
    "explore", deadline=None, database=None, max_examples=1_000, stateful_step_count=40
)
hypothesis.settings.register_profile(
    "suite", hypothesis.settings.get_profile("explore"), derandomize=True, phases=[hypothesis.Phase.generate],
    max_examples=60, stateful_step_count=20,
)  # fmt: skip
hypothesis.settings.load_profile("suite")

# Seconds that a session may wait for the database.  A third of them is the lock timeout: by then a
# test that sees a request wait for a lock must have ended the wait, however busy the machine is.
PATIENCE = 60.0
# Of the folder below which tests make sockets, whose path has at most 107 bytes.
LONGEST_TEMPORARY = 40
# Modules and folders that start first: at the end, the other processes would be idle beside one of them.
LONGEST = ("deploy/test_image.py", "deploy/", "faults/", "monitoring/", "database/", "server/", "operate/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests that EXTENDED names longer, and move those that LONGEST names to the front."""
    places = {item: item.path.relative_to(Path(__file__).parent).as_posix() for item in items}
    for item, path in places.items():
        if f"tests/{path}".startswith(EXTENDED):
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))
    order = (*LONGEST, "")
    items.sort(
        key=lambda item: next(rank for rank, place in enumerate(order) if places[item].startswith(place))
    )


def pytest_configure() -> None:
    """Drop what a developer's shell sets for the service; on SIGTERM stop the servers, as after a Ctrl-C."""
    own = re.compile(r"STACKMGR_(?!TEST_).*|WEB_CONCURRENCY|GUNICORN_CMD_ARGS")
    for name in filter(own.fullmatch, list(os.environ)):
        del os.environ[name]
    if len(tempfile.gettempdir()) > LONGEST_TEMPORARY:
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"  # noqa: S108
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Children inherit what is ignored, as under `nohup`, and not what is handled.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def processes_of(run: str) -> list[str]:
    """Return the tests whose processes are left, by the environment that these inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environ = process.environ() if process.pid != os.getpid() else {}
            command = process.cmdline()  # Python's resource tracker ends with this process
            is_own = environ.get("TEST_RUN_ID") == run and "resource_tracker" not in str(command)
            if is_own and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{environ.get('PYTEST_CURRENT_TEST')} left {command}")
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fail, with the name of the test, if one leaves a process behind."""
    os.environ["TEST_RUN_ID"] = run = str(uuid4())
    yield
    with suppress(AssertionError):
        eventually(lambda: not processes_of(run), 20)
    assert not processes_of(run)


@pytest.fixture(scope="session")
def citus_nodes() -> Iterator[list[str]]:
    """The connection strings of a coordinator and its workers, where the tests are to run on Citus."""
    binaries = os.environ.get("STACKMGR_TEST_CITUS")
    if not binaries:
        yield []
        return
    with citus(Path(binaries)) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def server_url(citus_nodes: list[str]) -> Iterator[str]:
    """A connection string to a server on which databases and roles may be created."""
    given = os.environ.get("STACKMGR_TEST_DATABASE_URL")
    if citus_nodes or given:
        yield citus_nodes[0] if citus_nodes else given
        return
    other = os.environ.get("STACKMGR_TEST_POSTGRES")
    with cluster(Path(other) if other else None) as url:
        yield url


@pytest.fixture(scope="session")
def binaries(server_url: str) -> Path:
    return binaries_of(server_url)


@pytest.fixture(scope="session")
def database_url(server_url: str, citus_nodes: list[str]) -> Iterator[str]:
    """A connection string to a migrated database of this run's own, with the rights of its login."""
    with new_database(server_url) as url:
        migrations.apply(url)
        if citus_nodes:
            distribute(Path(os.environ["STACKMGR_TEST_CITUS"]), citus_nodes, url)
        yield url


@pytest.fixture(scope="session")
def service_url(database_url: str) -> Iterator[str]:
    """The connection string that the application uses: to the database itself, or through a PgBouncer."""
    program = os.environ.get("STACKMGR_TEST_PGBOUNCER")
    if not program:
        yield database_url
        return
    make_pooled_login(database_url)
    with pgbouncer(Path(program), database_url) as url:
        yield url


@pytest.fixture(scope="session")
def statements_run(database: RecordedDatabase) -> list[str]:
    """The names of the statements that the application's database has run, in order."""
    return database.names


@pytest.fixture(scope="session")
def service(database_url: str) -> Iterator[RunningService]:
    with running_service(database_url) as running:
        yield running


@pytest.fixture(scope="session")
def variant(citus_nodes: list[str]) -> str:
    return "citus" if citus_nodes else "plain"


@pytest.fixture(scope="session")
def database(service_url: str, database_url: str, variant: str) -> Iterator[RecordedDatabase]:
    # A pooler's sessions have the timeouts of the default deadline.
    deadline = PATIENCE if service_url == database_url else SESSION_SECONDS
    with opened(service_url, pool_size=4, deadline=deadline, variant=variant) as database:
        yield database


@pytest.fixture(scope="session")
def operator(database_url: str) -> Iterator[Database]:
    with opened(database_url, role="stackmgr_owner", pool_size=2, deadline=PATIENCE) as database:
        yield database


@pytest.fixture
def admin(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection with the rights of the login, to inspect the tables."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def row_counts(admin: psycopg.Connection) -> Callable[[], dict[str, int]]:
    found = admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stackmgr' ORDER BY tablename")
    tables = [table for (table,) in found]
    counts = (sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier("stackmgr", t)) for t in tables)
    query = sql.SQL("SELECT {}").format(sql.SQL(", ").join(counts))

    def count() -> dict[str, int]:
        return dict(zip(tables, admin.execute(query).fetchone(), strict=True))

    return count


@pytest.fixture(scope="session")
def spellings() -> dict[str, str]:
    return dict(whitelist.load(paths.DEFAULT_WHITELIST).spellings)


@pytest.fixture(scope="session")
def app(database: Database, spellings: dict[str, str]) -> Application:
    return create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)


@pytest.fixture(scope="session")
def new_key(operator: Database) -> Callable[..., str]:
    """Return a function that issues a key, for a new manager or the given one."""

    def issue(external_id: str | None = None) -> str:
        session = operator.session()
        return keys.create(session, external_id or str(uuid4())).key

    return issue


@pytest.fixture
def key(new_key) -> str:
    return new_key()


@pytest.fixture
def client_with(database: Database, spellings: dict[str, str], statements_run: list[str]):
    """Return a function that makes a client of an application with other *parts* than the fixture `app`."""

    def make(key: str, external_id: str = "", **parts: Any) -> Client:
        usual = {"database": database, "verifier": DatabaseVerifier(), "spellings": spellings}
        return Client(create_app(**usual | parts), key, external_id, statements_run)

    return make


@pytest.fixture
def make_client(app: Application, new_key, statements_run: list[str]):
    """Return a function that makes a client for a new manager, or a further client for a given one."""

    def make(external_id: str | None = None) -> Client:
        external_id = external_id or str(uuid4())
        return Client(app, new_key(external_id), external_id, statements_run)

    return make


@pytest.fixture
def client(make_client) -> Client:
    """A client of a manager that no other test uses."""
    return make_client()
