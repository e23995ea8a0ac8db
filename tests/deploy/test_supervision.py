"""A failure of one worker, one file or a new release does not end or stop the service."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from stackmgr import paths
from tests.deploy.reloads import is_serving, kill_workers, messages, rejected_reload, workers
from tests.support import server
from tests.support.examples import configuration
from tests.support.releases import make_release, switch
from tests.support.server import RunningService, create_stack, running_service, send_request
from tests.support.waiting import eventually

# For the end of stackmgr/wsgi.py: only a worker gets there, not the check of the master.
IN_A_WORKER = '\nif __name__ != "__main__":\n    {}\n'
HANGING = IN_A_WORKER.format("import time; time.sleep(100)")
SECOND_HANGS = IN_A_WORKER.format("import os, time; os.system(f'mkdir {__file__}.first') and time.sleep(100)")
# As where the files change after the check.
NOT_IN_A_WORKER = 'import sys\nif "gunicorn.arbiter" in sys.modules:\n    raise ImportError'
# A check of a release, and the boot of a worker, have eight seconds each.
IMPATIENT = (
    "\nfrom stackmgr import start_check\nfrom stackmgr.server import master"
    "\nmaster.BOOT_SECONDS = start_check.CHECK_SECONDS = 8\n"
)
UNUSABLE = {
    "no check": ("http/app.py", "import nonexisting", "nonexisting"),
    "no worker": ("server/worker.py", NOT_IN_A_WORKER, "ImportError"),
    "no log": ("monitoring/logs.py", NOT_IN_A_WORKER, "ImportError"),
    "a hanging worker": ("wsgi.py", SECOND_HANGS, "The new workers do not serve"),
    "a hanging check": ("errors.py", "import time; time.sleep(100)", "The check of the release took longer"),
}


class Releases:
    """Two releases, `old` and `new`, in *folder*; `current` is a link to the old one.

    A worker of the old one that has built its application leaves a file `booted-PID`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for release in ("old", "new"):
            make_release(folder / release, f"Said by the {release} release.")
            self.append(release, "threads.py", f"RELEASE = {release!r}")
        code = "from stackmgr.threads import RELEASE\n    assert RELEASE == 'old'\n"
        code += f"    open(f'{folder}/booted-{{os.getpid()}}', 'w').close()"
        self.append("old", "wsgi.py", IN_A_WORKER.format(code))
        switch(folder / "current", "old")
        self.settings = folder / "gunicorn.conf.py"
        shutil.copy(paths.directory("deploy") / "gunicorn.conf.py", self.settings)

    def append(self, release: str, module: str, code: str) -> Path:
        path = self.folder / release / "stackmgr" / module
        path.write_text(f"{path.read_text()}\n{code}\n")
        return path

    def serve(self, url: str, impatience: str = "", **environ: str) -> AbstractContextManager[RunningService]:
        with self.settings.open("a") as file:
            file.write(impatience)
        # Python looks for modules in the current folder first.
        env = {"STACKMGR_DATABASE_URL": url, "PYTHONPATH": f"{self.folder}/current", **environ}
        command = (*server.GUNICORN_COMMAND[:-1], str(self.settings))
        return server.running(command, env=env, cwd=self.folder)

    def booted(self) -> int:
        return len(list(self.folder.glob("booted-*")))

    def switch_to_new(self, module: str, code: str) -> Path:
        switch(self.folder / "current", "new")
        return self.append("new", module, code)

    def replace_every_worker(self, service: RunningService) -> None:
        """See that the old release serves, and that it does so with workers that replace killed ones."""
        assert "Said by the old release." in send_request(service.port, "/", timeout=20)[1]
        switch(self.folder / "current", "old")
        kill_workers(service)
        assert "Said by the old release." in send_request(service.port, "/", timeout=20)[1]


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


@pytest.fixture(scope="module")
def impatient(database_url, tmp_path_factory) -> Iterator[tuple[RunningService, Releases]]:
    """A service of a module's releases; each test leaves it with the old one."""
    releases = Releases(tmp_path_factory.mktemp("releases"))
    with releases.serve(database_url, IMPATIENT, WEB_CONCURRENCY="2") as service:
        yield service, releases


@pytest.mark.parametrize(("module", "code", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_broken_release_is_rejected(impatient, module, code, reason):
    service, releases = impatient
    logged = len(service.log_path.read_text())
    changed = releases.switch_to_new(module, code)
    rejected_reload(service)
    said = service.log_path.read_text()[logged:]
    assert reason in said
    assert "Traceback" not in said or code != UNUSABLE["a hanging check"][1]
    assert "Worker exiting" in said or code != SECOND_HANGS  # the first one has served
    releases.replace_every_worker(service)
    changed.write_text(changed.read_text().removesuffix(f"\n{code}\n"))


def test_unbootable_release_keeps_old_settings(database_url, releases):
    with releases.serve(database_url, IMPATIENT) as service:
        os.kill(service.pid, signal.SIGTTIN)  # one worker more than the settings say
        eventually(lambda: releases.booted() == 2)
        with releases.settings.open("a") as file:
            file.write("\nworkers, wsgi_app = 3, 'x:y'\ndef pre_fork(server, _): server.log.info('new')\n")
        releases.switch_to_new("wsgi.py", IN_A_WORKER.format("raise OSError"))
        rejected_reload(service)
        assert "The new workers do not serve" in messages(service)
        assert messages(service).count("new") == 3
        releases.replace_every_worker(service)
        assert messages(service).count("new") == 3
        assert len(workers(service)) == 2


def test_master_works_during_a_check(database_url, releases):
    checking = releases.folder / "checking"
    with releases.serve(database_url, "timeout = 2\n") as service:
        code = f"import time\nopen({str(checking)!r}, 'w').close()\ntime.sleep(100)"
        releases.switch_to_new("errors.py", code)
        before = workers(service)
        os.kill(service.pid, signal.SIGHUP)
        eventually(checking.exists)
        check = workers(service) - before
        for worker in before:
            worker.suspend()
        # The replacement imports the release on disk, which hangs as well.
        eventually(lambda: workers(service) - before - check)
        started = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started < 10


def test_a_signal_to_stop_ends_a_reload_that_waits(database_url, releases):
    with releases.serve(database_url) as service:
        releases.switch_to_new("wsgi.py", HANGING)
        os.kill(service.pid, signal.SIGHUP)
        eventually(lambda: len(workers(service)) == 2)
        os.kill(service.pid, signal.SIGQUIT)
        time.sleep(0.01)  # or the other would be handled first
        os.kill(service.pid, signal.SIGHUP)
        assert service.process.wait(60) == 0
        assert "The new workers do not serve" not in messages(service)


def test_suspended_service_goes_on(database_url):
    with running_service(database_url, env={"WEB_CONCURRENCY": "2"}, args=["--timeout", "2"]) as service:
        before = workers(service)
        os.kill(service.pid, signal.SIGUSR2)
        eventually(lambda: any("SIGUSR2 is not supported: " in said for said in messages(service)))
        everything = [psutil.Process(service.pid), *before]
        for process in everything:
            process.suspend()
        time.sleep(4)
        for process in everything:
            process.resume()
        time.sleep(4)  # in which the master takes its turns
        assert workers(service) == before
        [stuck, other] = before
        stuck.suspend()
        eventually(lambda: stuck not in workers(service), 60)
        assert other in workers(service)
        assert sum("WORKER TIMEOUT" in said for said in messages(service)) == 1


def test_new_worker_has_the_checked_settings(database_url, key, tmp_path):
    whitelist, url = tmp_path / "tokens.json", tmp_path / "url"
    shutil.copy(paths.DEFAULT_WHITELIST, whitelist)
    url.write_text(database_url)
    other = whitelist.read_text().replace(configuration()["allocation"][0]["token_address"], "0x" + "1" * 40)
    env = {"WEB_CONCURRENCY": "2", "STACKMGR_DATABASE_URL": "", "STACKMGR_DATABASE_URL_FILE": str(url)}
    env["STACKMGR_TOKENS"] = str(whitelist)
    with running_service(database_url, env=env) as service:
        for replacement in ("{", other, None):
            for path in (whitelist, url):
                path.unlink() if replacement is None else path.write_text(replacement)
            kill_workers(service)
            eventually(lambda: is_serving(service))
            assert {create_stack(service.port, key)[0] for _ in range(8)} == {201}
        assert not any("cannot boot" in said for said in messages(service))
