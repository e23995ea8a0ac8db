"""The PostgreSQL of `stackmgr dev`: paths, users, and what an earlier run has left."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from stackmgr.dev import embedded_postgres
from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from stackmgr.errors import CommandError
from tests.support.memory import reachable

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run the server as somebody else")


@pytest.fixture(scope="module")
def folder():
    """Not below pytest's own folder, which each run of pytest closes again to the user the server runs as."""
    with tempfile.TemporaryDirectory(prefix="stackmgr-") as name:
        yield reachable(name)


@pytest.fixture(scope="module")
def made(folder):
    """The data folder of a server that has run before."""
    with EmbeddedPostgres(folder / "data") as server:
        server.ensure_database()
    return folder / "data"


@pytest.fixture
def stranger():
    """A process of the server's user that has nothing to do with anything."""
    with subprocess.Popen(["/bin/sleep", "60"], user="nobody" if os.geteuid() == 0 else None) as process:
        yield process
        process.kill()


def postmaster(data):
    return psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))


def query(server, statement):
    with psycopg.connect(server.url("postgres")) as connection:
        return connection.execute(statement).fetchone()[0]


@pytest.mark.parametrize(
    "name",
    ["x" * 100, "é" * 60, 'a "quoted", listed name', "it's"],
    ids=["long", "wide", "odd", "apostrophe"],
)
def test_any_path_works_and_the_folder_of_sockets_is_removed(folder, name):
    data = folder / name / "data"
    with EmbeddedPostgres(data) as server:
        assert query(server, "SHOW data_directory") == str(data)
        sockets = Path(query(server, "SHOW unix_socket_directories").strip('"'))
        assert sockets == data or stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert sockets == data or not sockets.exists()


def test_another_process_with_the_id_of_an_ended_server_is_not_stopped(made, stranger):
    (made / "postmaster.pid").write_text(f"{stranger.pid}\n{made}\n0\n5432\n{made}\n\n0 0\nready\n")
    with EmbeddedPostgres(made) as server:
        assert query(server, "SELECT 1") == 1
    assert stranger.poll() is None


def test_a_folder_whose_making_was_interrupted_is_made_again_whatever_the_locale(folder, monkeypatch):
    monkeypatch.setenv("LC_ALL", "xx_YY.nowhere")
    monkeypatch.setenv("PGPORT", "1")
    unfinished = folder / "interrupted" / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder / "interrupted" / "data") as server:
        assert query(server, "SHOW server_encoding") == "UTF8"
        assert query(server, "SHOW lc_messages") == "C"
    assert not unfinished.exists()


def test_a_server_that_does_not_start_says_why(made):
    version = made / "PG_VERSION"
    kept = version.read_text()
    version.write_text("9\n")
    try:
        with (
            pytest.raises(CommandError, match="database files are incompatible with server"),
            EmbeddedPostgres(made),
        ):
            pass
    finally:
        version.write_text(kept)


@as_root
def test_data_that_the_server_cannot_reach_are_kept_in_a_folder_for_root(folder, monkeypatch):
    monkeypatch.setattr(embedded_postgres, "ROOT_FOLDER", folder / "lib")
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    for closed_again in range(2):
        with EmbeddedPostgres(closed / "data") as server:
            assert server.folder.parent == folder / "lib"
            assert postmaster(server.folder).username() == "nobody"
            if closed_again:
                assert query(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 1
            else:
                with psycopg.connect(server.url("postgres")) as connection:
                    connection.execute("CREATE ROLE kept")
    with EmbeddedPostgres(closed / "other") as server:
        assert query(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert list(closed.iterdir()) == []
