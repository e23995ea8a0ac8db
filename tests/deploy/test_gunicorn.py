import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stackmgr import __version__
from tests.support.releases import make_release, switch
from tests.support.server import (
    GUNICORN_COMMAND,
    SETTINGS,
    free_port,
    listening_ports,
    running_service,
    send_request,
    workers_replaced,
)
from tests.support.waiting import eventually

FEW_FILES = 256
PATIENCE = 60.0


def reload(pid: int) -> None:
    """Send SIGHUP and return once no worker of before is left."""
    with workers_replaced(pid):
        os.kill(pid, signal.SIGHUP)


@pytest.fixture
def few_files():
    """What is started here may open few files at a time, unless it raises the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def settings_in_effect(database_url: str) -> dict[str, str]:
    printed = subprocess.run(
        [*GUNICORN_COMMAND, "--print-config"],
        env={**os.environ, "STACKMGR_DATABASE_URL": database_url},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return dict(re.findall(r"^(\w+) += (.*)$", printed, re.MULTILINE))


def test_a_reload_serves_the_release_on_disk_and_no_module_of_the_one_before(
    database_url, tmp_path, monkeypatch
):
    # Python looks for modules in the current folder first, and this checkout has them too.
    monkeypatch.chdir(tmp_path)
    for release in ("old", "new"):
        make_release(tmp_path / release, f"Said by the {release} release.")
    current = tmp_path / "current"
    switch(current, "old")
    with running_service(database_url, env={"PYTHONPATH": str(current)}) as service:
        assert "the old release" in send_request(service.port, "/")[1]
        switch(current, "new")
        reload(service.pid)
        assert "the new release" in send_request(service.port, "/")[1]


def test_the_operators_listener_outlives_reloads_and_leaves_the_managers_alone(database_url):
    admin_port = free_port()
    with running_service(database_url, env={"STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}"}) as service:
        lines = map(json.loads, service.log_path.read_text(encoding="utf-8").splitlines())
        assert [line["level"] for line in lines if line["message"] == f"stackmgr {__version__}"] == ["info"]
        for _ in range(3):
            assert json.loads(send_request(admin_port, "/live")[1])["version"] == __version__
            assert send_request(service.port, "/live")[0] == 404
            reload(service.pid)


SAME_PORT = "STACKMGR_ADMIN_BIND: the listener on 127.0.0.2 has the same port"


def test_the_admin_port_on_another_address_is_rejected_at_start(database_url):
    port = free_port()
    settings = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{port}"}
    with (
        pytest.raises(AssertionError, match=SAME_PORT),
        running_service(database_url, env=settings, args=["--bind", f"127.0.0.2:{port}"]),
    ):
        pass


@contextmanager
def activated(database_url: str, held: socket.socket, admin_port: int) -> Iterator[subprocess.Popen[str]]:
    """Start gunicorn as systemd does, with a socket that listens."""
    hand_over = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
        "os.execv(sys.executable, [sys.executable, '-m', 'gunicorn', '-c', sys.argv[2]])"
    )
    environment = {
        "STACKMGR_DATABASE_URL": database_url,
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "LISTEN_FDS": "1",
    }
    command = [sys.executable, "-c", hand_over, str(held.fileno()), str(SETTINGS)]
    with subprocess.Popen(
        command, env=os.environ | environment, pass_fds=[held.fileno()], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_the_admin_port_on_another_socket_of_systemd_is_rejected_at_start(database_url):
    port = free_port()
    with socket.create_server(("127.0.0.2", port)) as held, activated(database_url, held, port) as process:
        _, printed = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert SAME_PORT in printed


def test_a_socket_unit_without_the_admin_port_is_stated(database_url):
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as held, activated(database_url, held, port) as process:
        assert send_request(held.getsockname()[1], "/", timeout=PATIENCE)[0] == 404
        process.terminate()
        _, printed = process.communicate(timeout=PATIENCE)
    assert f"no listener has the port {port}: add it to stackmgr.socket" in printed


def test_the_admin_port_on_another_address_is_rejected_at_a_reload(database_url, tmp_path):
    port, admin_port = free_port(), free_port()
    settings = SETTINGS.read_text()
    changed, log_path = tmp_path / "gunicorn.conf.py", tmp_path / "log"
    changed.write_text(f"{settings}\nbind = ['127.0.0.1:{port}']\n")
    environment = {"STACKMGR_DATABASE_URL": database_url, "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}"}
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "gunicorn", "-c", str(changed)]
        process = subprocess.Popen(command, env=os.environ | environment, stderr=log)
    try:
        eventually(lambda: port in listening_ports(process.pid))
        assert send_request(port, "/")[0] == 404
        changed.write_text(f"{settings}\nbind = ['127.0.0.1:{port}', '127.0.0.2:{admin_port}']\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "The reload is refused" in log_path.read_text())
        assert SAME_PORT in log_path.read_text()
        assert send_request(port, "/")[0] == 404
        assert send_request(admin_port, "/live")[0] == 200
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_unix_socket_is_for_its_group_and_leads_no_host_to_the_operators_listener(database_url, tmp_path):
    admin_port = free_port()
    path = tmp_path / "managers.sock"
    with (
        running_service(
            database_url,
            env={"STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}"},
            args=["--bind", f"unix:{path}"],
        ),
        socket.socket(socket.AF_UNIX) as connection,
    ):
        assert path.stat().st_mode & 0o007 == 0
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        request = f"GET /live HTTP/1.1\r\nHost: localhost:{admin_port}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_a_worker_may_open_more_files_than_it_accepts_connections(database_url, few_files):
    accepted = int(settings_in_effect(database_url)["worker_connections"])
    with running_service(database_url) as service:
        limits = Path(f"/proc/{service.pid}/limits").read_text()
    may_open = int(re.search(r"^Max open files +(\d+)", limits, re.MULTILINE)[1])
    assert may_open > FEW_FILES
    assert accepted < may_open


@pytest.mark.parametrize(("given", "used"), [(None, "timeout:1 attempts:3"), ("rotate", "rotate")])
def test_a_lost_dns_query_is_repeated_soon_unless_the_operator_decides(
    database_url, monkeypatch, given, used
):
    monkeypatch.setenv("STACKMGR_DATABASE_URL", database_url)
    monkeypatch.delenv("RES_OPTIONS", raising=False)
    if given:
        monkeypatch.setenv("RES_OPTIONS", given)
    script = "import os, runpy, sys; runpy.run_path(sys.argv[1]); print(os.environ['RES_OPTIONS'])"
    ran = subprocess.run(
        [sys.executable, "-c", script, str(SETTINGS)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert ran.stdout.strip() == used


def test_what_is_wrong_with_the_environment_is_named_before_anything_listens(tmp_path):
    ended = subprocess.run(
        GUNICORN_COMMAND,
        env={**os.environ, "STACKMGR_DATABASE_URL": "", "STACKMGR_CONCURRENCY": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ended.returncode == 1
    said = [json.loads(line)["message"].partition(" ")[0] for line in ended.stderr.splitlines()]
    assert said == ["STACKMGR_DATABASE_URL", "STACKMGR_CONCURRENCY"]


# Without the automatic collection, what the settings leave behind does not depend on chance.
_LOADED_THREE_TIMES = """
import gc, runpy, sys
from types import ModuleType
gc.disable()
for _ in range(3):
    runpy.run_path(sys.argv[1])
modules = [each for each in gc.get_objects() if isinstance(each, ModuleType)]
print([module.__name__ for module in modules].count("stackmgr.monitoring.logs"))
"""


def test_a_reload_frees_the_modules_of_earlier_ones(database_url):
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADED_THREE_TIMES, str(SETTINGS)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"STACKMGR_DATABASE_URL": database_url},
    )
    assert int(loaded.stdout) <= 2
