"""Start, stop, reload and replacement of workers, and what the worker class relies on in gunicorn."""

import os
import re
import signal
from itertools import repeat
from types import SimpleNamespace
from unittest.mock import Mock, call

import psutil
import pytest
from gunicorn.config import Config

from stackmgr.server import master
from stackmgr.server.worker import UNSUPPORTED, Worker
from tests.server.gunicorn_process import get
from tests.support.server import listens
from tests.support.waiting import eventually


def test_sigterm_completes_requests(start):
    server = start("graceful_timeout = keepalive = 600")
    slow, late, kept = (server.connect(get(path)) for path in ("/sleep?1.5", "/", "/"))
    idle = server.connect()
    assert [late.response().status, kept.response().status] == [200, 200]
    server.wait_for_requests()
    server.process.terminate()
    eventually(lambda: not listens(server.port))
    late.send(get("/late-but-fine"))
    response = late.response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    response = slow.response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    for sock in (slow, late):
        sock.close()
    assert server.process.wait(30) == 0  # neither `keepalive` nor a deadline ends `idle` and `kept` by then
    for sock in (idle, kept):
        sock.close()


def test_waiting_requests_survive_a_reload(start):
    server = start("threads, graceful_timeout = 1, 20")
    socks = [server.connect(get("/sleep?1.2")) for _ in range(4)]
    server.wait_for_requests()
    server.process.send_signal(signal.SIGHUP)
    assert [sock.response().status for sock in socks] == [200] * 4  # the last after twice STOP_LINGER
    for sock in socks:
        sock.close()


def test_a_worker_whose_loop_fails_is_replaced(start):
    server = start(
        "import stackmgr.server.worker as w\nturn = w.Worker.turn\n"
        "def fail(self):\n"
        "    if self.age == 1: raise MemoryError\n"
        "    return turn(self)\n"
        "w.Worker.turn = fail"
    )
    eventually(lambda: server.boots == 2)
    assert "Exception in worker process" in server.log
    server.probe()


def test_sigquit_ends_a_hanging_worker(start):
    server = start("timeout = graceful_timeout = 600")
    with server.connect(get("/sleep?600")), server.connect(get("/hang")):
        server.wait_for_requests(2)
        server.process.send_signal(signal.SIGQUIT)
        assert server.process.wait(60) == 0


def test_sigabrt_ends_a_worker_at_once(start):
    server = start("timeout = graceful_timeout = 600")
    with server.connect(get("/sleep?600")), server.connect(get("/hang")):
        server.wait_for_requests(2)
        psutil.Process(server.process.pid).children()[0].send_signal(signal.SIGABRT)
        server.probe()
    assert server.boots == 2


def test_signals_of_the_master_end_no_worker(start):
    server = start()
    with server.connect(get("/sleep?1")) as slow:
        server.wait_for_requests()
        for sent in (signal.SIGHUP, signal.SIGUSR2):
            psutil.Process(server.process.pid).children()[0].send_signal(sent)
        response = slow.response()
        assert (response.status, response.headers["Connection"]) == (200, "keep-alive")


def test_a_worker_that_cannot_boot_stops(start):
    server = start(
        "graceful_timeout = 600\nimport stackmgr.server.worker as w\n"
        "w.BOOT_PAUSE, w.Worker.load_wsgi = 600.0, lambda self: 1 / 0"
    )
    eventually(lambda: "This worker cannot boot" in server.log)
    assert server.stop() == 0


def test_a_stop_before_the_handlers_of_a_worker_is_not_lost(start):
    server = start(
        "import os\nfrom stackmgr.server.master import Master as on_starting\n"
        "def post_fork(server, worker): os.kill(os.getpid(), [0, 2, 3, 15][worker.age] if worker.age < 4 else 0)"
    )
    eventually(lambda: server.boots == 4)


def test_a_waiting_worker_is_not_replaced(start):
    server = start("timeout = 3")  # a boot takes longer than 1 s on a busy machine
    with server.connect(get("/sleep?5")) as one, server.connect(get("/sleep?5")) as two:
        assert [one.response().status, two.response().status] == [200, 200]
    assert server.boots == 1


def test_graceful_timeout_bounds_sigterm(start):
    server = start("graceful_timeout = 1")
    with server.connect(get("/sleep?600")):
        server.wait_for_requests()
        assert server.stop() == 0


def test_max_requests_loses_no_request(start):
    server = start("max_requests = 20")
    responses = [server.request(get("/")) for _ in range(50)]
    assert all(response.status == 200 for response in responses)
    assert responses[19].headers["connection"] == "close"
    eventually(lambda: server.boots >= 3)


@pytest.fixture
def arbiter(monkeypatch):
    """gunicorn's, whose clock is `now`; a worker that it forks has the last heartbeat `heartbeat`, or that error."""

    def fork():
        pid = len(arbiter.WORKERS) + 1
        arbiter.WORKERS[pid] = Mock(age=pid, **{"tmp.last_update.side_effect": repeat(arbiter.heartbeat)})
        return pid

    arbiter = Mock(WORKERS={}, num_workers=1, worker_age=0, now=100.0, spawn_worker=fork)
    arbiter.cfg.worker_class_str = master.WORKER
    arbiter.pass_time = lambda seconds: setattr(arbiter, "now", arbiter.now + seconds)
    monkeypatch.setattr(
        master, "time", SimpleNamespace(monotonic=lambda: arbiter.now, sleep=arbiter.pass_time)
    )
    monkeypatch.setenv("NOTIFY_SOCKET", "socket")
    monkeypatch.setattr(master.systemd, "sd_notify", arbiter.notify)
    return arbiter


def test_one_worker_that_serves_notifies_systemd_once(arbiter):
    master.Master(arbiter)
    for arbiter.heartbeat, notified in ((1e9, 0), (ValueError, 0), (OSError, 0), (1.0, 1), (1.0, 1)):
        arbiter.spawn_worker()
        arbiter.manage_workers()
        assert arbiter.notify.call_count == notified


def test_a_worker_that_hangs_at_its_boot_is_ended_but_after_a_pause_of_the_master(arbiter):
    master.Master(arbiter)
    for arbiter.heartbeat in (1e9, 1.0):
        arbiter.spawn_worker()
    for seconds in (master.BOOT_SECONDS, 1.0, master.STILL_SECONDS):
        arbiter.pass_time(seconds)
        assert arbiter.kill_worker.mock_calls == []
        arbiter.murder_workers()
        arbiter.manage_workers()
    assert arbiter.kill_worker.mock_calls == [call(1, signal.SIGKILL)]


def test_only_who_is_superfluous_is_ended_and_not_before_the_others_serve(arbiter):
    ended = arbiter.manage_workers
    changed = master.Master(arbiter)
    for arbiter.heartbeat in (1.0, 1e9):
        arbiter.spawn_worker()
    arbiter.manage_workers()
    assert ended.mock_calls == []  # one more than wanted, which does not serve yet
    arbiter.num_workers = arbiter.worker_age = 2
    with pytest.raises(master._ReloadRejected):
        changed._wait_for_new_workers(1)
    assert arbiter.kill_worker.mock_calls == [call(1, signal.SIGTERM), call(2, signal.SIGKILL)]
    arbiter.manage_workers()  # both end by themselves, so two are forked
    assert (len(arbiter.WORKERS), ended.mock_calls) == (4, [])


@pytest.mark.parametrize("error", [OSError(11, "no more"), RuntimeError("no folder of heartbeats")])
def test_a_master_that_cannot_fork_heeds_a_stop(arbiter, error):
    arbiter.spawn_worker = Mock(side_effect=error)
    master.Master(arbiter)
    arbiter.spawn_worker()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    arbiter.log.error.assert_called_once()


def test_reloads_that_are_requested_during_one_are_one(arbiter, monkeypatch):
    """The release is checked once.  What cannot be run is named with its path."""
    queue, load, arbiter.app, arbiter.pid = arbiter.signal, arbiter.reload, SimpleNamespace(), os.getpid()
    arbiter.cfg = arbiter.app.cfg = Mock(worker_class_str=master.WORKER)
    check = Mock(side_effect=["checked", FileNotFoundError(2, "not there", "/python")])
    monkeypatch.setattr(master.start_check, "run_check", check)
    monkeypatch.setenv(master.start_check.RESULT, "")
    changed = master.Master(arbiter)
    load.side_effect = lambda: changed.signal(signal.SIGHUP, None)
    for number in (1, 2):
        changed.signal(signal.SIGHUP, None)
        changed.signal(signal.SIGHUP, None)
        assert queue.call_count == number
        arbiter.reload()
    load.assert_called_once_with()
    assert os.environ[master.start_check.RESULT] == "checked"
    arbiter.log.exception.assert_called_once_with("The reload failed: %s", "/python: not there")


@pytest.mark.parametrize("name", ["manage_workers", "WORKERS", "cfg", "kill_worker", "handle_usr2"])
def test_another_gunicorn_is_rejected(arbiter, name):
    delattr(arbiter, name)
    with pytest.raises(RuntimeError, match=rf"is not supported: no Arbiter\.{name}$"):
        master.Master(arbiter)


NAMES = [name for names in UNSUPPORTED.values() for name in names]


@pytest.mark.parametrize("settings", [
    {"keyfile": "/etc/hostname"}, {"certfile": "/etc/hostname", "preload_app": True}, {"protocol": "uwsgi"},
    {"proxy_protocol": "auto"}, {"accesslog": "-"}, {"statsd_host": "a:1"}, {"header_map": "refuse"},
    {"user": os.geteuid() + 1, "group": os.getegid() + 1}, {"casefold_http_method": True, "header_map": "refuse"},
    *({name: lambda _, __: None} for name in ("pre_request", "post_request")),
    *({name: True} for name in (
        "strip_header_spaces", "preload_app", "permit_obsolete_folding", "permit_unconventional_http_method",
        "permit_unconventional_http_version")),
])  # fmt: skip
def test_unsupported_settings_stop_the_start(settings):
    config = Config()
    Worker.check_config(config, None)
    for name, value in settings.items():
        config.set(name, value)
    with pytest.raises(RuntimeError) as failed:
        Worker.check_config(config, None)
    assert [name for name in NAMES if re.search(rf"\b{name}\b", str(failed.value))] == [*settings]
