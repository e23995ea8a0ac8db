"""`stackmgr dev` and the operator's commands on other people's machines, a row for each trait."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.deploy.dev_process import failed_dev, running_dev
from tests.support.processes import completed
from tests.support.server import free_port, send_request
from tests.support.waiting import eventually

COMMAND = str(Path(sys.executable).with_name("stackmgr"))
NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
OTHER_PIDS = (*NAMELESS, "--pid", "--fork", "--kill-child")
LIBPQ = {
    "PGHOSTADDR": "127.0.0.1", "PGPORT": "1", "PGOPTIONS": "-c x.y", "PGTZ": "Asia/Tokyo", "PGAPPNAME": "x",
    "PGCONNECT_TIMEOUT": "x", "PGCLIENTENCODING": "LATIN1", "PGDATESTYLE": "German",
}  # fmt: skip


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-euc", f'{script}; exec "$@"', "sh")


# Its files stay: the server of the tests has its socket there.
SHM_READ_ONLY = "mount --bind /dev/shm /dev/shm; mount -o remount,bind,ro,nosuid,nodev /dev/shm"
# What is put before a command.
TRAITS = {
    "no name": NAMELESS, "no HOME": ("env", "-u", "HOME"), "HOME read-only": ("env", "HOME=/proc"),
    "Turkish": ("env", "LANG=tr_TR.UTF-8", "LC_ALL=tr_TR.UTF-8"),
    "TMPDIR long": shell('TMPDIR=$(mktemp -d)/$(printf %0100d 0); export TMPDIR; mkdir "$TMPDIR"'),
    "umask": shell("umask 077"), "stdin closed": shell("exec <&-"),
    "no /dev/shm": ("unshare", *AS_ROOT, "--mount", *shell(SHM_READ_ONLY)),
    "a minute old": (*OTHER_PIDS, "--time", f"--monotonic={60 - int(time.monotonic())}"),
    "PID namespace": OTHER_PIDS,
    "libpq": ("env", *(f"{name}={value}" for name, value in LIBPQ.items())),
}  # fmt: skip
MODULES = ("queue", "logging", "secrets", "random", "types", "json", "socket")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} has run')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=TRAITS)
def prefix(request):
    return TRAITS[request.param]


def test_dev_serves(folder, prefix):
    port, command = free_port(), (*prefix, COMMAND, "dev")
    with running_dev(folder / "data", folder / "log", port=port, command=command) as dev:
        assert send_request(port, "/manager/stacks")[0] == 401
        if "--fork" in prefix:  # which ignores the signal
            psutil.Process(dev.process.pid).children()[0].terminate()
            assert dev.process.wait(60) == 0
    assert dev.output.endswith("stopped\n")
    assert "has run" not in dev.output


@pytest.mark.parametrize("command", ["migrate", "check", "keys list", "managers list", "tokens list"])
def test_a_command_prints_the_same(database_url, folder, prefix, command):
    if "--user" in prefix and os.geteuid() == 0:
        pytest.skip("in the namespace root may not enter the folder of the server's socket")
    environ = os.environ | {"STACKMGR_DATABASE_URL": database_url}
    known = completed([COMMAND, *command.split()], env=environ)
    assert known.returncode == 0
    ended = completed([*prefix, COMMAND, *command.split()], env=environ)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, known.stdout, known.stderr)
    ended = completed(["sh", "-c", 'exec "$@" >/dev/full', "sh", COMMAND, *command.split()], env=environ)
    unwritten = (1, "stackmgr: standard output: No space left on device\n") if known.stdout else (0, "")
    assert (ended.returncode, ended.stderr.removeprefix(known.stderr)) == unwritten


def test_the_database_of_another_pid_namespace_is_left_alone(folder):
    command = (*OTHER_PIDS, "sh", "-c", '"$@" & wait; sleep 600', "sh", COMMAND, "dev")
    with running_dev(folder / "data", folder / "log", command=command) as first:
        [program] = [each for each in first.started if COMMAND in each.cmdline()[:2]]
        program.kill()
        arguments = ("--port", str(free_port()), "--data", folder / "data")
        said = f"a PostgreSQL of another container is using {folder}/data; stop it, or choose --data\n"
        assert failed_dev(*arguments, command=(*NAMELESS, COMMAND, "dev")) == f"stackmgr: {said}"
        first.process.kill()
        first.process.wait()
        eventually(lambda: not first.living())
    with running_dev(folder / "data", folder / "log", command=(*NAMELESS, COMMAND, "dev")):
        pass


def test_dev_names_a_full_disk(folder):
    command = ("sh", "-c", 'exec "$@" >/dev/full', "sh", COMMAND, "dev")
    said = failed_dev("--port", str(free_port()), "--data", folder / "data", command=command)
    assert said.endswith("stackmgr: standard output: No space left on device\n")


def test_dev_ends_with_its_terminal(folder):
    """The terminal is that of `script`, whose end sends SIGHUP."""
    line = f"'{COMMAND}' dev --port {free_port()} --data '{folder}/data' 2>&1 | tee '{folder}/log'"
    command, log = ("/usr/bin/script", "-qec", line, "/dev/null"), folder / "log"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as terminal:
        eventually(lambda: log.exists() and "Ctrl-C stops everything." in log.read_text(), 60)
        below = psutil.Process(terminal.pid).children(recursive=True)
        terminal.kill()
    assert psutil.wait_procs(below, 60)[1] == []
