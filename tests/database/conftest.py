"""Fixtures: a PostgreSQL for these tests alone, and the application on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from stackmgr.database import pool
from stackmgr.database.pool import Database
from tests.database.subject import PATIENCE, Subject, SubjectMaker, Watcher
from tests.support.greenlets import Running
from tests.support.postgres import FaultyPostgres, faulty_postgres
from tests.support.recorder import opened
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def own_server() -> Iterator[FaultyPostgres]:
    with faulty_postgres() as server:
        yield server
        server.restore()


@pytest.fixture
def server(own_server: FaultyPostgres) -> Iterator[FaultyPostgres]:
    """The server that a test may ill-treat; it is well again afterwards."""
    yield own_server
    own_server.restore()


@pytest.fixture
def admin(server: FaultyPostgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def watcher(server: FaultyPostgres) -> Iterator[Watcher]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        yield Watcher(connection)


@pytest.fixture(autouse=True)
def _idle_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pool shrink during a test that compares its connections, however long it takes."""
    monkeypatch.setattr(pool, "MAX_IDLE_SECONDS", 600.0)


@pytest.fixture
def deadline() -> float:
    """The deadline of services, in seconds; a test of deadlines replaces it by DEADLINE."""
    return PATIENCE


@pytest.fixture
def make_subject(server: FaultyPostgres, spellings: dict, deadline: float) -> Iterator[SubjectMaker]:
    with ExitStack() as cleanup:
        yield SubjectMaker(server, spellings, deadline, cleanup)


@pytest.fixture
def subject(make_subject: SubjectMaker) -> Subject:
    return make_subject()


@pytest.fixture
def greenlets() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(48, cleanup)


@pytest.fixture
def causes(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the cause of each failed request, as the log states it."""
    return lambda: [each.fields["causes"][0] for each in caplog.records if hasattr(each, "fields")]


@pytest.fixture
def make_database(server: FaultyPostgres) -> Iterator[Callable[[int], Database]]:
    with ExitStack() as cleanup:
        url = server.url()
        yield lambda size: cleanup.enter_context(opened(url, pool_size=size, deadline=PATIENCE))


@pytest.fixture
def standby_wanted(admin, subject):
    """Let commits wait for a synchronous standby that does not exist."""

    def want(names: bytes) -> None:
        admin.execute(b"ALTER SYSTEM SET synchronous_standby_names = '%s'" % names)
        admin.execute(b"SELECT pg_reload_conf()")
        eventually(lambda: admin.execute(b"SHOW synchronous_standby_names").fetchone() == (names.decode(),))

    want(b"nobody")
    yield
    want(b"")
