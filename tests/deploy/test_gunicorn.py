"""deploy/gunicorn.conf.py: listeners, limits, and what a reload leaves behind."""

import os
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from stackmgr import __version__
from stackmgr.server.worker import STOP_LINGER
from tests.deploy.reloads import messages
from tests.support import server
from tests.support.server import SETTINGS, free_port, running_service, send_request

SAME_PORT = "STACKMGR_ADMIN_BIND: the listener on 127.0.0.2 has the same port"
NOT_PASSED = "STACKMGR_ADMIN_BIND: no listener has the port 9108: add it to stackmgr.socket"


def at(port: int, host: str = "127.0.0.1") -> dict[str, str]:
    return {"STACKMGR_ADMIN_BIND": f"{host}:{port}"}


def test_admin_listener_outlives_reloads(database_url):
    admin_port = free_port()
    with running_service(database_url, env=at(admin_port)) as service:
        assert messages(service).count(f"stackmgr {__version__}") == 1
        os.kill(service.pid, signal.SIGTTIN)
        for _ in range(3):
            assert server.exchange(admin_port, "/live").json["version"] == __version__
            assert send_request(service.port, "/live")[0] == 404
            with server.workers_replaced(service.pid):
                os.kill(service.pid, signal.SIGHUP)
        assert sum("Listening at" in said for said in messages(service)) == 1
        assert psutil.Process(service.pid).net_connections("unix") == []  # no control socket


def test_unix_socket_is_for_its_group(database_url, tmp_path):
    admin_port, path = free_port(), tmp_path / "managers.sock"
    service = running_service(database_url, env=at(admin_port), args=["--bind", f"unix:{path}"])
    with service, socket.socket(socket.AF_UNIX) as connection:
        assert path.stat().st_mode & 0o777 == 0o770
        connection.settimeout(60)
        connection.connect(str(path))
        request = f"GET /live HTTP/1.1\r\nHost: localhost:{admin_port}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


HEAD = """
import gc, json, os, resource, runpy, signal, sys
from unittest.mock import Mock
def load(**changed):
    os.environ["STACKMGR.RELEASE"] = json.dumps(json.loads(sys.argv[2]) | {"warnings": []} | changed)
    return runpy.run_path(sys.argv[1])
"""


@pytest.fixture(scope="module")
def run_settings(database_url):
    environ = os.environ | {"STACKMGR_DATABASE_URL": database_url}

    def run(*command: str) -> str:
        return subprocess.check_output([sys.executable, *command], text=True, env=environ)

    checked = run("-m", "stackmgr.operate.check")
    return lambda script: run("-c", HEAD + script, str(SETTINGS), checked)


# What a script prints, and the script.
SCRIPTS = {
    "a lost DNS query": ("timeout:1 attempts:3\nrotate", """
for own in {}, {"RES_OPTIONS": "rotate"}:
    os.environ.pop("RES_OPTIONS", None); os.environ.update(own); load(); print(os.environ["RES_OPTIONS"])"""),
    "heartbeats": ("/dev/shm\nNone", """
print(load()['worker_tmp_dir']); os.access = lambda *_: False; print(load()['worker_tmp_dir'])"""),  # noqa: S108
    "few files": ("240\n240\n175", """
for most in resource.getrlimit(resource.RLIMIT_NOFILE)[1], 300, 200:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
    accepted = load()["worker_connections"]
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - accepted)"""),
    "files without limit": ("(10240, -1)\n10000\n10000", """
resource.setrlimit = lambda _, limits: print(limits)
for soft in 1024, -1:
    resource.getrlimit = lambda _: (soft, -1)
    print(load()["worker_connections"])"""),
    "a terminal's signal is no worker fewer": ("True [1]", """
os.isatty = lambda _: True; given = load(); os.SIGNALS = [signal.SIGTTOU, 1]
given["on_starting"].__globals__["Master"] = id; given["on_starting"](os)
print(signal.getsignal(signal.SIGTTOU) is signal.SIG_IGN, os.SIGNALS)"""),
    "a listener's name is its address": ("None\nNone", """
for bind, host in ("localhost", "127.0.0.1"), ("[::1]", "::1"):
    print(load(admin_bind=f"{bind}:9108")["_require_admin_port_of_its_own"]([(host, 9108)]))"""),
    "an unknown host is named": ("a..b UnicodeError\n[::z] gaierror", """
for bind in "a..b", "[::z]":
    settings = load(admin_bind=f"{bind}:9108")
    settings["_log"].error = lambda text, host, ex: print(host, type(ex).__name__)
    try: settings["_require_admin_port_of_its_own"]([])
    except SystemExit: pass"""),
    "listeners with the admin port, or without": (f"{SAME_PORT}\n1\n" * 2 + NOT_PASSED, """
server = Mock(**{"cfg.address": [("127.0.0.2", 1), "/run/socket", ("127.0.0.2", 9108)]})
own, wrong, other = (Mock(**{"sock.getsockname.return_value": each})
                     for each in (("127.0.0.1", 9108), ("127.0.0.2", 9108), "/run/socket"))
settings = load(admin_bind="127.0.0.1:9108", admin_port=9108)
settings["_log"].error = settings["_log"].warning = lambda text, value: print(text % value)
for hook, server.LISTENERS in (1, []), (0, [own, other]), (0, [own, wrong]), (0, [other]):
    try: settings["nworkers_changed"](server, 1, 0) if hook else settings["when_ready"](server)
    except SystemExit as ex: print(ex.code)"""),
    "a worker gets the checked settings": ("1.5 9108", """
load(queue_timeout=1.5, admin_port=9108)["post_fork"](0, worker := Mock())
print(worker.queue_seconds, worker.admin_port)"""),
    "process 1 keeps gunicorn's handler": ("False\nTrue", """
os.getpid = lambda: 1; handlers = [signal.SIG_DFL, print]
for each in handlers: signal.signal(15, each); load(); print(signal.getsignal(15) is each)"""),
    "a signal that the parent has blocked is not": ("set()", """
signal.pthread_sigmask(signal.SIG_BLOCK, [15]); load()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"""),
    "a reload finds new files in a folder as old as before": ("True", """
import importlib.util, tempfile
sys.path.insert(0, folder := (kept := tempfile.TemporaryDirectory()).name)
os.utime(folder, (1, 1)); importlib.util.find_spec("late")
open(f"{folder}/late.py", "w").close(); os.utime(folder, (1, 1)); load()
print(importlib.util.find_spec("late") is not None)"""),
    "a reload loads the package itself anew": ("False", """
load(); sys.modules["stackmgr"].old = True; load(); print(hasattr(sys.modules["stackmgr"], "old"))"""),
    # Without the automatic collection, what the settings leave behind does not depend on chance.
    "a reload frees the modules of earlier ones": ("True", """
gc.disable(); load(); load(); load()
modules = [each.__name__ for each in gc.get_objects() if isinstance(each, type(gc))]
print(modules.count("stackmgr.monitoring.logs") <= 2)"""),
}  # fmt: skip


@pytest.mark.parametrize(("printed", "script"), SCRIPTS.values(), ids=SCRIPTS)
def test_what_the_settings_set(run_settings, printed, script):
    assert run_settings(script) == f"{printed}\n"


def test_an_idle_connection_outlives_that_of_nginx(run_settings):
    upstream = (SETTINGS.parent / "nginx.conf").read_text().partition("upstream stackmgr {")[2]
    seconds = int(re.search(r"^ +keepalive_timeout (\d+)s;", upstream, re.MULTILINE)[1])
    assert int(run_settings("print(load()['keepalive'])")) > STOP_LINGER > seconds
