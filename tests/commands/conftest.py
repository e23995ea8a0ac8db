"""Fixtures: a function that runs a command, and a database of stacks that are always the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stackmgr.operate import migrations
from tests.commands import saved
from tests.support.clusters import new_database
from tests.support.command_line import Outcome, runner


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs `stackmgr` with arguments, without a database."""
    monkeypatch.delenv("STACKMGR_DATABASE_URL", raising=False)
    monkeypatch.delenv("STACKMGR_TOKENS", raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    return runner(monkeypatch, capsys)


@contextmanager
def saved_database(server_url: str) -> Iterator[str]:
    """Yield a connection string to a new database that holds `saved.SAVED` and nothing else."""
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            saved.save(admin)
        yield url


@pytest.fixture(scope="session")
def saved_url(server_url: str) -> Iterator[str]:
    """A connection string to a database that holds the saved stacks; not to be changed."""
    with saved_database(server_url) as url:
        yield url


@pytest.fixture
def own_url(server_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same in a database of the test's own, which it may change; also what commands connect to."""
    with saved_database(server_url) as url:
        monkeypatch.setenv("STACKMGR_DATABASE_URL", url)
        yield url


@pytest.fixture
def on_saved(command, saved_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Return a function that runs `stackmgr` on the database of `saved_url`."""
    monkeypatch.setenv("STACKMGR_DATABASE_URL", saved_url)
    return command
