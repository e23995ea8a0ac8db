"""`stackmgr dev`: what it prints works, what is wrong is named, and nothing is left behind."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import psycopg
import pytest
from psycopg.pq import Conninfo

from stackmgr import paths
from stackmgr.dev import embedded_postgres
from stackmgr.dev import server as service
from stackmgr.dev.embedded_postgres import EmbeddedPostgres, uninterrupted
from stackmgr.errors import CommandError
from tests.deploy.dev_process import COMMAND, failed_dev, free_port, running_dev
from tests.support.memory import reachable
from tests.support.server import send_request
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines are curl's")
KEY = "^export API_KEY=(.*)$"
EXPORT = "^(export STACKMGR_DATABASE_URL=.*)$"


@pytest.fixture(scope="module")
def folder():
    """A folder of this module's own, where a server that does not run as root can reach it."""
    with tempfile.TemporaryDirectory(prefix="stackmgr dev ") as name:
        yield reachable(name)


@pytest.fixture(scope="module")
def dev(folder):
    """One that serves the tests, from a path with blanks, quotes and percent signs, where a proxy is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:1")
        with running_dev(folder / "it's 100 % mine", folder / "log") as running:
            yield running


def sh(line):
    ended = subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, text=True, timeout=60)
    head, _, body = ended.stdout.replace("\r\n", "\n").partition("\n\n")
    return int(head.split()[1]), json.loads(body)


def items(dev):
    status, page = sh(dev.curl_lines[1])
    assert status == 200
    return page["items"]


def stackmgr(dev, arguments):
    lines = f"{dev.printed(EXPORT)}\n'{sys.executable}' -m stackmgr {arguments}"
    return subprocess.check_output(["/bin/sh", "-c", lines], text=True, timeout=60)


def test_printed_lines_work_in_their_order(dev):
    create, page, get, update = dev.curl_lines
    status, created = sh(create)
    assert status == 201
    assert sh(page) == (200, {"items": [created], "next_cursor": None})
    assert sh(get) == (200, created)
    status, updated = sh(update)
    assert status == 200
    assert updated["id"] == created["id"]
    assert updated["name"] != created["name"]
    assert sh(create) == (200, updated)
    status, rejected = sh(create.replace("5000", "4999").replace("3000", "3001"))
    assert (status, rejected["code"]) == (409, "conflict")


def test_printed_database_suits_other_commands(dev):
    assert dev.printed(KEY)[-4:] in stackmgr(dev, "keys list")
    assert stackmgr(dev, "migrate") == "the schema is up to date\n"
    head = dev.output.partition("stackmgr is serving at")[0]
    assert "Listening at" in head
    assert " warning " not in head
    assert "request" not in head


def test_log_line_of_a_400_names_the_place_and_that_of_a_404_its_path(dev):
    [address] = re.findall(r'"(0x\w{40})", "weight_bps": 5000', dev.curl_lines[0])
    mistakes = {
        "preset_unknown": ('"weekly"', '"Weekly"', "schedule.preset must be one of ["),
        "token_checksum": (address, f"0x{address[2:].swapcase()}", "allocation[0].token_address"),
        "weights_total": ('": 5000', '": 4999', "allocation: 9999"),
        "body_unknown_field": ('"name"', '"nom": 1, "name"', "body must not contain {'nom'} properties"),
    }
    for reason, (valid, mistake, at) in mistakes.items():
        status, rejected = sh(dev.curl_lines[0].replace(valid, mistake, 1))
        assert (status, rejected["message"]) == (400, "The stack configuration is invalid.")
        start = rf"\n400 POST /manager/stacks \d+ ms reason='{reason}' at=(.*)\n"
        line = eventually(lambda start=start: re.search(start, dev.output))
        assert line[1][1:].startswith(at)
    assert sh(dev.curl_lines[1].replace(" $URL ", " $URL/../docs%0A "))[0] == 404
    eventually(lambda: re.search(r"\n404 GET /manager/docs\\n \d+ ms reason='route'", dev.output))


def test_second_server_on_the_data_is_rejected(dev, folder):
    data = folder / "it's 100 % mine"
    said = f"stackmgr: another 'stackmgr dev' is using {data}; stop it, or choose --data\n"
    assert failed_dev("--port", str(free_port()), "--data", data) == said
    assert dev.living() == dev.started


def test_a_port_or_a_folder_that_cannot_be_used_is_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failed_dev("--port", str(port), "--data", folder / "other")
    assert said == f"stackmgr: port {port} is in use or not permitted; choose another with --port\n"
    assert not (folder / "other" / "postgres").exists()
    (folder / "file").touch()
    assert failed_dev("--data", folder / "file") == f"stackmgr: {folder / 'file'}: File exists\n"


def test_a_service_that_does_not_start_is_not_announced(folder, monkeypatch):
    monkeypatch.setenv("STACKMGR_CONCURRENCY", "none")
    said = failed_dev("--port", str(free_port()), "--data", folder / "kept")
    assert "STACKMGR_CONCURRENCY must be" in said
    assert said.endswith("stackmgr: the service did not start; see the output above\n")


def test_signal_stops_all_and_keeps_the_data(folder, monkeypatch):
    others, admin_port = {"DATABASE_URL_FILE": "/nowhere", "VERIFIER": "unkey"}, free_port()
    own = {"TOKENS": "tokens.json", "LOG_FORMAT": "json", "ADMIN_BIND": f"127.0.0.1:{admin_port}"}
    own |= {"METRICS_DIR": "metrics"}
    for name, value in (others | own).items():
        monkeypatch.setenv(f"STACKMGR_{name}", value)
    for variable in filter(None, (each.envvar for each in Conninfo.get_defaults())):
        monkeypatch.setenv(variable.decode(), "nonsense")
    monkeypatch.chdir(folder)
    shutil.copy(paths.DEFAULT_WHITELIST, folder / "tokens.json")
    (folder / "gunicorn.py").write_text("raise SystemExit(3)")  # of the user
    created, keys = [], set()
    # A shell ignores SIGINT for what it starts with `&`, and `nohup` ignores SIGHUP.
    for signum, ignored in ((signal.SIGINT, "INT"), (signal.SIGTERM, "HUP"), (signal.SIGHUP, "QUIT")):
        command = ("sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh", *COMMAND)
        if (folder / "kept").exists():  # a process of another program now has the id of an earlier run's
            (folder / "kept" / "gunicorn.pid").write_text(f"{os.getpid()}\n")
        with running_dev(folder / "kept", folder / "log", command=command) as dev:
            assert (folder / "metrics").is_dir()
            if ignored == "HUP":
                dev.process.send_signal(signal.SIGHUP)
            # A Ctrl-C reaches a process group.
            assert os.getpgid(dev.process.pid) not in {os.getpgid(each.pid) for each in dev.started}
            assert stat.S_IMODE((folder / "kept" / "api_key").stat().st_mode) == 0o600
            assert items(dev) == created
            created.insert(0, sh(dev.curl_lines[0])[1])
            keys.add(dev.printed(KEY))
            assert "postgres" in {process.name() for process in dev.started}
            assert len(dev.started) > 2
            assert send_request(admin_port, "/live")[0] == 200
            assert '"route": "/manager/stacks"' in dev.output
            assert dev.stop(signum) == 0
            assert dev.living() == []
            assert dev.output.endswith("stopped\n")
    assert len(keys) == 1


def test_a_service_that_ends_is_reported(folder):
    with running_dev(folder / "kept", folder / "log") as dev:
        os.kill(int((folder / "kept" / "gunicorn.pid").read_text()), signal.SIGKILL)
        assert dev.process.wait(60) == 1
        assert "the service ended by itself; see the output above\n" in dev.output
        eventually(lambda: dev.living() == [])


@pytest.mark.parametrize("status", [1, 0])
def test_the_status_of_the_service_is_that_of_the_command(tmp_path, monkeypatch, status):
    for name in ("EmbeddedPostgres", "migrations", "_api_key", "_announce"):
        monkeypatch.setattr(service, name, MagicMock())
    ended = subprocess.Popen(["/bin/sh", "-c", f"exit {status}"])
    monkeypatch.setattr(service, "_served", lambda *_: nullcontext(ended))
    with pytest.raises(CommandError, match="ended by itself") if status else nullcontext():
        service._run(free_port(), tmp_path / "data")


@pytest.mark.parametrize("text", ["", "\n", "no number\n", "{}\n"])
def test_a_process_of_another_program_is_not_stopped(tmp_path, text):
    (tmp_path / "pid").write_text(text.format(os.getpid()))
    part_of_an_argument = psutil.Process().cmdline()[0][:-1]
    embedded_postgres.stop_left_over(tmp_path / "pid", part_of_an_argument, signal.SIGCONT)


def test_a_socket_is_beside_the_data_where_its_address_is_short_enough():
    longest = 103 - len("/.s.PGSQL.5432")
    for size in (longest, longest + 1):
        server = EmbeddedPostgres(Path("/" + "x" * (size - 1)))
        assert (server.socket_folder == server.folder) is (size == longest)


@pytest.mark.parametrize("variable", ["", "http_proxy", "all_proxy", "ALL_PROXY"])
def test_the_printed_lines_use_no_proxy(monkeypatch, variable):
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    shown = service._lines_to_paste("", "")
    assert shown.startswith("export no_proxy=127.0.0.1,$no_proxy\n") == bool(variable)


def test_what_ignores_a_signal_is_sent_the_next(monkeypatch):
    monkeypatch.setattr(embedded_postgres, "_STOP_DEADLINE", 0.5)
    command = ["/bin/sh", "-c", "trap '' INT QUIT; echo; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        embedded_postgres.end(process, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_taken(folder):
    server = EmbeddedPostgres(folder / ("y" * 100) / "data")
    server.socket_folder.mkdir()
    os.chown(server.socket_folder, 12345, 12345)
    with pytest.raises(CommandError, match="belongs to another user"), server:
        pass
    server.socket_folder.rmdir()


def test_left_over_database_is_stopped(folder):
    port = free_port()
    with running_dev(folder / "killed", folder / "log", port=port) as killed:
        created = sh(killed.curl_lines[0])[1]
        killed.process.kill()
        killed.process.wait()
        assert items(killed) == [created]
        # PostgreSQL, which goes on, keeps it from one in another container.
        with (folder / "killed" / "postgres.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with running_dev(folder / "killed", folder / "log of the next", port=port) as dev:
            assert killed.living() == []
            assert items(dev) == [created]
            dev.stop()
            assert dev.living() == []


@pytest.fixture(scope="module")
def made(folder):
    with EmbeddedPostgres(folder / "data") as server:
        server.ensure_database()
    return folder / "data"


def query(server, statement):
    with psycopg.connect(server.url("postgres")) as connection:
        return connection.execute(statement).fetchone()[0]


@pytest.mark.parametrize("name", ["x" * 100, "é" * 60, 'a "quoted", listed name', "it's", "a:b"],
    ids=["long", "wide", "odd", "apostrophe", "colon"])  # fmt: skip
def test_any_path_works(folder, name):
    data = folder / name / "data"
    with EmbeddedPostgres(data) as server:
        assert query(server, "SHOW data_directory") == str(data)
        sockets = Path(query(server, "SHOW unix_socket_directories").strip('"'))
        assert sockets == data or stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert sockets == data or not sockets.exists()


def test_reused_process_id_is_left_alone(made):
    user = "nobody" if os.geteuid() == 0 else None  # as the server's
    with subprocess.Popen(["/bin/sleep", "60"], user=user) as stranger:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (made / name).write_text(f"{stranger.pid}\n{made}\n0\n5432\n{made}\n\n0 0\nready\n")
        with EmbeddedPostgres(made) as server:
            assert query(server, "SELECT 1") == 1
        assert stranger.poll() is None
        stranger.kill()


def test_session_does_not_delay_a_stop(made):
    with EmbeddedPostgres(made) as server:
        session = psycopg.connect(server.url("postgres"))
    session.close()
    log = (made / "server.log").read_text()
    assert "received fast shutdown request" in log
    assert log.count("ready to accept connections") == 1  # of this start


@pytest.mark.parametrize("start", [EmbeddedPostgres, lambda at: service._served(free_port(), "", at / "pid")])
def test_signal_at_a_start_leaves_no_process(made, monkeypatch, start):
    @contextmanager
    def interrupted():
        with uninterrupted():
            yield
            signal.raise_signal(signal.SIGINT)

    for module in (embedded_postgres, service):
        monkeypatch.setattr(module, "uninterrupted", interrupted)
    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt), start(made):
        pass
    assert [each for each in psutil.Process().children() if each not in before] == []


def test_interrupted_initdb_is_repeated(folder, monkeypatch):
    monkeypatch.setenv("LC_ALL", "xx_YY.nowhere")
    monkeypatch.setenv("PGPORT", "1")
    unfinished = folder / "interrupted" / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder / "interrupted" / "data") as server:
        assert query(server, "SHOW server_encoding") == "UTF8"
        assert query(server, "SHOW lc_messages") == "C"
        assert server._options["env"].keys() == {"PATH", "LC_ALL"}
    assert not unfinished.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run the server as somebody else")
def test_unreachable_data_have_a_folder_of_root(folder, monkeypatch):
    monkeypatch.setattr(embedded_postgres, "ROOT_FOLDER", folder / "lib")
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    for closed_again in range(2):
        with EmbeddedPostgres(closed / "data") as server:
            assert server.folder.parent == folder / "lib"
            postmaster = int((server.folder / "postmaster.pid").read_text().split()[0])
            assert psutil.Process(postmaster).username() == "nobody"
            assert server.run_as["extra_groups"] == ()
            if closed_again:
                assert query(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 1
            else:
                with psycopg.connect(server.url("postgres")) as connection:
                    connection.execute("CREATE ROLE kept")
    with EmbeddedPostgres(closed / "other") as server:
        assert query(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert list(closed.iterdir()) == []
