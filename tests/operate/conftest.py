"""Fixtures: a function that runs a command, and a database of stacks that are always the same."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr.operate import migrations
from tests.operate import saved
from tests.support import psql
from tests.support.clusters import login, new_database
from tests.support.command_line import Outcome, runner


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    monkeypatch.delenv("STACKMGR_DATABASE_URL", raising=False)
    monkeypatch.delenv("STACKMGR_TOKENS", raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def saved_url(server_url: str) -> Iterator[str]:
    """A connection string to a database that holds `saved.SAVED` and nothing else; not to be changed."""
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            saved.save(admin)
        yield url


@pytest.fixture
def own_saved_url(server_url: str, saved_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same in a database of the test's own, which it may change; also what commands connect to."""
    with new_database(server_url, template=str(conninfo_to_dict(saved_url)["dbname"])) as url:
        monkeypatch.setenv("STACKMGR_DATABASE_URL", url)
        yield url


@pytest.fixture
def on_saved(command, saved_url, tmp_path, monkeypatch) -> Callable[..., Outcome]:
    (tmp_path / "url").write_text(f"{saved_url}\n")
    monkeypatch.setenv("STACKMGR_DATABASE_URL_FILE", str(tmp_path / "url"))
    return command


@pytest.fixture(scope="session")
def support_login(server_url: str, saved_url: str) -> Iterator[str]:
    """A login that may do nothing but assume the reader's role, which the schema of `saved_url` has made."""
    with login(server_url, "NOINHERIT IN ROLE stackmgr_reader") as name:
        yield name


@pytest.fixture
def run_psql(binaries: Path, support_login: str) -> Callable[..., Outcome]:
    def run(url: str, *arguments: str | Path) -> Outcome:
        ran = psql.run_psql(make_conninfo(url, user=support_login), *arguments, binaries=binaries)
        return Outcome(ran.returncode, ran.stdout, ran.stderr)

    return run
