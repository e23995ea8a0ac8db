"""What fails in one worker, in one file or in a new release does not end or stop the whole service."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import psutil
import pytest

from stackmgr import paths
from stackmgr.access import api_keys
from stackmgr.server.master import Master
from tests.support.examples import configuration
from tests.support.releases import make_release, switch
from tests.support.server import RunningService, free_port, running_service, send_request, workers_replaced
from tests.support.waiting import eventually

RELOAD_REJECTED = "The reload is refused for the reasons above; the workers keep serving as before"
# For the end of stackmgr/wsgi.py: only a worker gets there, not the check of the master.
IN_A_WORKER = '\nif __name__ != "__main__":\n    {}\n'
HANGING = IN_A_WORKER.format("import time; time.sleep(100)")


def messages(service: RunningService) -> list[str]:
    """Return what the service has logged.  A process that fails to import prints lines that are not JSON."""
    lines = service.log_path.read_text().splitlines()
    return [json.loads(line)["message"] for line in lines if line.startswith("{")]


def is_serving(service: RunningService) -> bool:
    return send_request(service.port, "/", timeout=20)[0] == 404


def workers(service: RunningService) -> set[psutil.Process]:
    return set(psutil.Process(service.pid).children())


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two releases, `old` and `new`; `current` is a link to the old one.

    A worker of the old one that has built its application leaves a file `booted-PID`.
    """
    monkeypatch.chdir(tmp_path)  # Python looks for modules in the current folder first
    for release in ("old", "new"):
        make_release(tmp_path / release, f"Said by the {release} release.")
    with (tmp_path / "old/stackmgr/wsgi.py").open("a") as module:
        module.write(IN_A_WORKER.format(f"open(f'{tmp_path}/booted-{{os.getpid()}}', 'w').close()"))
    switch(tmp_path / "current", "old")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "current"))
    return tmp_path


def switch_to_new(releases: Path, module: str, code: str) -> None:
    """Switch to the new release, a module of which ends in *code*."""
    with (releases / "new/stackmgr" / module).open("a") as file:
        file.write(f"\n{code}\n")
    switch(releases / "current", "new")


def rejected_reload(service: RunningService) -> None:
    """Send SIGHUP, and return once the reload is rejected, with the same workers as before."""
    before = workers(service)
    os.kill(service.pid, signal.SIGHUP)
    eventually(lambda: RELOAD_REJECTED in messages(service) or service.process.poll() is not None, 60)
    assert service.process.poll() is None
    eventually(lambda: workers(service) == before)
    assert is_serving(service)


def every_worker_of_the_old_release_is_replaced(service: RunningService, releases: Path) -> None:
    assert "Said by the old release." in send_request(service.port, "/", timeout=20)[1]
    switch(releases / "current", "old")
    before = workers(service)
    for worker in before:
        worker.kill()
    eventually(lambda: len(workers(service) - before) == len(before), 60)
    assert "Said by the old release." in send_request(service.port, "/", timeout=20)[1]


# The last two as where the files change after the check.
UNUSABLE = {
    "no check": ("http/app.py", "import nonexisting"),
    "no worker": (
        "server/worker.py",
        'import sys\nif "gunicorn.arbiter" in sys.modules:\n    raise ImportError',
    ),
    "no log": (
        "monitoring/logs.py",
        'import sys\nif "gunicorn.arbiter" in sys.modules:\n    raise ImportError',
    ),
}


@pytest.mark.parametrize(("module", "code"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_release_that_cannot_be_imported_is_rejected_and_the_workers_keep_serving(
    database_url, releases, module, code
):
    with running_service(database_url) as service:
        switch_to_new(releases, module, code)
        rejected_reload(service)
        every_worker_of_the_old_release_is_replaced(service, releases)


@pytest.mark.parametrize("broken", ["http/app.py", "server/connection.py"])
def test_check_refuses_a_release_that_cannot_be_imported(database_url, releases, broken):
    switch_to_new(releases, broken, "import nonexisting")
    environment = {**os.environ, "STACKMGR_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "stackmgr", "check"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "No module named 'nonexisting'" in ran.stderr


def test_a_release_whose_workers_cannot_boot_is_rejected_with_its_settings(database_url, releases):
    settings = impatient(releases)
    with running_service(database_url, args=["-c", str(settings)]) as service:
        os.kill(service.pid, signal.SIGTTIN)  # one worker more than the settings say
        eventually(lambda: len(list(releases.glob("booted-*"))) == 2)
        with settings.open("a") as file:
            file.write("\nworkers = 3\ndef pre_fork(server, worker): server.log.info('new settings')\n")
        switch_to_new(releases, "wsgi.py", IN_A_WORKER.format("raise OSError"))
        rejected_reload(service)
        assert "The new workers do not serve" in messages(service)
        assert messages(service).count("new settings") == 3
        every_worker_of_the_old_release_is_replaced(service, releases)
        assert messages(service).count("new settings") == 3
        assert len(workers(service)) == 2


def test_a_reload_that_only_some_workers_survive_ends_none_of_the_old_ones(database_url, releases):
    with running_service(database_url, env={"WEB_CONCURRENCY": "2"}) as service:
        eventually(lambda: len(list(releases.glob("booted-*"))) == 2)
        before = workers(service)
        switch_to_new(releases, "wsgi.py", IN_A_WORKER.format(f"os.mkdir({str(releases / 'second')!r})"))
        rejected_reload(service)
        time.sleep(1)  # in which an old worker would end if it had received a signal
        assert workers(service) == before
        every_worker_of_the_old_release_is_replaced(service, releases)


def impatient(folder: Path) -> Path:
    """Return settings with which the check of a release and the boot of a worker have eight seconds each."""
    settings = folder / "gunicorn.conf.py"
    shutil.copy(paths.directory("deploy") / "gunicorn.conf.py", settings)
    with settings.open("a") as file:
        file.write("\nfrom stackmgr.server import master\nmaster.BOOT_SECONDS = master.CHECK_SECONDS = 8\n")
    return settings


def test_a_release_whose_workers_hang_is_rejected_and_takes_no_place(database_url, releases):
    with running_service(database_url, args=["-c", str(impatient(releases))]) as service:
        before = workers(service)
        switch_to_new(releases, "wsgi.py", HANGING)
        rejected_reload(service)
        assert workers(service) == before
        every_worker_of_the_old_release_is_replaced(service, releases)


def hanging_check(folder: Path) -> None:
    """Switch to the new release, whose check leaves a file `checking` and waits."""
    code = f"import time\nopen({str(folder / 'checking')!r}, 'w').close()\ntime.sleep(100)"
    switch_to_new(folder, "errors.py", code)


def test_while_a_release_is_checked_dead_workers_are_replaced_and_a_signal_stops_the_service(
    database_url, releases
):
    with running_service(database_url) as service:
        hanging_check(releases)
        before = workers(service)
        os.kill(service.pid, signal.SIGHUP)
        eventually((releases / "checking").exists)
        check = workers(service) - before
        for worker in before:
            worker.kill()
        # The replacement imports the release on disk, which hangs as well.
        eventually(lambda: workers(service) - before - check)
        started = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started < 10


def test_a_check_that_takes_too_long_is_stated_and_refuses_the_reload(database_url, releases):
    with running_service(database_url, args=["-c", str(impatient(releases))]) as service:
        hanging_check(releases)
        rejected_reload(service)
        assert "The check of the release took longer than 8 s" in service.log_path.read_text()
        assert "Traceback" not in service.log_path.read_text()
        every_worker_of_the_old_release_is_replaced(service, releases)


def test_a_signal_to_stop_ends_a_reload_that_waits(database_url, releases):
    with running_service(database_url) as service:
        switch_to_new(releases, "wsgi.py", HANGING)
        os.kill(service.pid, signal.SIGHUP)
        eventually(lambda: len(workers(service)) == 2)
        os.kill(service.pid, signal.SIGHUP)
        os.kill(service.pid, signal.SIGQUIT)
        assert service.process.wait(60) == 0
        assert "The new workers do not serve" not in messages(service)


def test_reloads_that_are_requested_during_one_are_one(database_url):
    with running_service(database_url) as service:
        for _ in range(20):
            os.kill(service.pid, signal.SIGHUP)
            time.sleep(0.02)  # or several signals would be one for the kernel
        with workers_replaced(service.pid):
            os.kill(service.pid, signal.SIGHUP)
        assert service.stop() == 0
        assert sum("Hang up" in said for said in messages(service)) <= 10


def test_the_old_workers_serve_until_the_new_ones_do(database_url, releases):
    with running_service(database_url) as service:
        switch_to_new(releases, "wsgi.py", IN_A_WORKER.format("import time; time.sleep(4)"))
        with workers_replaced(service.pid):
            os.kill(service.pid, signal.SIGHUP)
            responses = []
            while not responses or "old" in responses[-1]:
                # Less than the new workers take: without the old ones the request would wait for them.
                responses.append(send_request(service.port, "/", timeout=2.5)[1])
        assert len(responses) > 2


def test_a_worker_that_hangs_at_its_boot_is_replaced(database_url, releases):
    with running_service(database_url, args=["-c", str(impatient(releases))]) as service:
        hang = releases / "hang"
        hang.touch()
        with (releases / "old/stackmgr/wsgi.py").open("a") as module:
            once = (
                f"import time; os.path.exists({str(hang)!r}) and (os.unlink({str(hang)!r}), time.sleep(100))"
            )
            module.write(IN_A_WORKER.format(once))
        [worker] = workers(service)
        worker.kill()
        eventually(lambda: not hang.exists())
        assert is_serving(service)


def create(service: RunningService, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": str(uuid4())}
    return send_request(service.port, "/manager/stacks", headers, "POST", json.dumps(configuration()))[0]


@pytest.mark.parametrize("replacement", ["{", "{other}", None], ids=["broken", "other tokens", "removed"])
def test_a_new_worker_uses_the_settings_that_the_master_has_checked(database_url, key, tmp_path, replacement):
    whitelist, url = tmp_path / "tokens.json", tmp_path / "url"
    shutil.copy(paths.default_whitelist(), whitelist)
    url.write_text(database_url)
    other = whitelist.read_text().replace(configuration()["allocation"][0]["token_address"], "0x" + "1" * 40)
    env = {
        "WEB_CONCURRENCY": "2",
        "STACKMGR_DATABASE_URL": "",
        "STACKMGR_DATABASE_URL_FILE": str(url),
        "STACKMGR_TOKENS": str(whitelist),
    }
    with running_service(database_url, env=env) as service:
        for path in (whitelist, url):
            if replacement is None:
                path.unlink()
            else:
                path.write_text(replacement.replace("{other}", other))
        before = workers(service)
        for worker in before:
            worker.kill()
        eventually(lambda: len(workers(service) - before) == 2 and is_serving(service), 60)
        assert {create(service, key) for _ in range(8)} == {201}
        assert not any("cannot boot" in said for said in messages(service))


def test_systemd_is_notified_once_a_worker_serves(database_url, releases):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, ThreadPoolExecutor() as threads:
        systemd.bind(str(releases / "notify"))
        systemd.settimeout(0)
        application = releases / "old/stackmgr/wsgi.py"
        intact = application.read_text()
        application.write_text(intact + IN_A_WORKER.format("raise OSError"))

        def start() -> None:
            with running_service(database_url, env={"NOTIFY_SOCKET": str(releases / "notify")}) as service:
                eventually(lambda: is_notified(systemd))
                assert is_serving(service)

        started = threads.submit(start)
        time.sleep(4)  # in which gunicorn itself would notify
        assert not is_notified(systemd)
        application.write_text(intact)
        started.result(60)


def is_notified(systemd: socket.socket) -> bool:
    try:
        return systemd.recv(1000).startswith(b"READY=1")
    except BlockingIOError:
        return False


def test_the_liveness_probe_waits_for_no_request_of_a_manager(server):
    port = free_port()
    # Longer than the test waits: a response while the database is frozen has not waited for it.
    env = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{port}", "STACKMGR_DATABASE_TIMEOUT": "25"}
    with running_service(server.url(), env=env) as service, ExitStack() as stack:
        assert send_request(port, "/ready")[0] == 200
        stack.enter_context(server.frozen())
        threads = stack.enter_context(ThreadPoolExecutor(40))
        stack.callback(server.thaw)
        headers = {"Authorization": f"Bearer {api_keys.generate()}"}
        managers = [threads.submit(send_request, service.port, "/manager/stacks", headers) for _ in range(20)]
        probes = [threads.submit(send_request, port, "/ready") for _ in range(20)]
        # Those that no greenlet takes are rejected, so that the others have all greenlets.
        eventually(lambda: sum(request.done() for request in managers) >= 12)
        assert [send_request(port, "/live", timeout=20)[0] for _ in range(20)] == [200] * 20
        assert sum(request.done() for request in managers) < 20
        assert not any(probe.done() and probe.result()[0] == 200 for probe in probes)


def test_a_gunicorn_without_what_is_replaced_stops_the_start():
    with pytest.raises(RuntimeError, match=r"gunicorn .* is not supported: no Arbiter\..*reload"):
        Master(SimpleNamespace())
