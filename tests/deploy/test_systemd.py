"""The units are accepted by systemd, and what they start works as they start it."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess

from stackmgr.settings import Settings
from tests.deploy.units import DEPLOY, GRACEFUL_TIMEOUT_SECONDS, unit, values
from tests.support.programs import require
from tests.support.server import free_port, listens, send_request
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60.0
UNITS = ("stackmgr.service", "stackmgr.socket")


def test_systemd_accepts_the_units(tmp_path):
    program = require(shutil.which("systemd-analyze"), "systemd-analyze")
    for name in UNITS:
        (tmp_path / name).write_text(unit(name))
    for arguments in (("verify", *UNITS), ("security", "--offline=true", "--threshold=15", UNITS[0])):
        command = [program, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_systemd_never_gives_up():
    assert values("stackmgr.service", "Restart") == ["always"]
    assert values("stackmgr.service", "StartLimitIntervalSec") == ["0"]
    assert int(values("stackmgr.service", "TimeoutStopSec")[0]) > GRACEFUL_TIMEOUT_SECONDS
    # The master alone gets SIGTERM, so that it does not replace workers that end; SIGKILL goes to all.
    assert values("stackmgr.service", "KillMode") == ["mixed"]


def test_journal_and_files_are_as_stated():
    [interval], [core], [mask] = (
        values("stackmgr.service", key) for key in ("LogRateLimitIntervalSec", "LimitCORE", "UMask")
    )
    assert (interval, core, int(mask, 8) & 0o077) == ("0", "0", 0o077)


def test_no_command_line_holds_a_setting_or_a_secret():
    commands = [line for line in unit("stackmgr.service").splitlines() if line.startswith("Exec")]
    assert len(commands) == 4
    assert not any("STACKMGR_" in command or "://" in command for command in commands)
    assert values("stackmgr.service", "EnvironmentFile") == ["/etc/stackmgr/stackmgr.env"]


def test_memory_and_tasks_are_bounded():
    environment = (DEPLOY / "stackmgr.env.example").read_text()
    workers = int(re.search(r"^WEB_CONCURRENCY=(\d+)$", environment, re.MULTILINE)[1])
    assert values("stackmgr.service", "MemoryMax") == [f"{2 * workers * 512 + 256}M"]
    assert int(*values("stackmgr.service", "TasksMax")) >= 2 * workers * (Settings.concurrency + 10)
    assert values("stackmgr.service", "OOMPolicy") == ["continue"]


def test_reload_begins_with_a_check(database_url):
    check, hang_up = values("stackmgr.service", "ExecReload")
    assert hang_up == "/bin/kill -s HUP $MAINPID"
    for url, outcome in ((database_url, 0), (f"{database_url} dbname=postgres", 1)):
        environ = os.environ | {"STACKMGR_DATABASE_URL": url}
        checked = subprocess.run(shlex.split(check), env=environ, check=False, capture_output=True)
        assert checked.returncode == outcome, checked.stderr


def test_service_takes_the_socket_of_systemd(database_url, tmp_path):
    program = require(shutil.which("systemd-socket-activate"), "systemd-socket-activate")
    port = free_port()
    environment = {"STACKMGR_DATABASE_URL": database_url, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    passed = [f"--setenv={name}={value}" for name, value in environment.items()]
    (command,) = values("stackmgr.service", "ExecStart")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(environment["NOTIFY_SOCKET"])
        notified.settimeout(PATIENCE_SECONDS)
        process = subprocess.Popen(
            [program, f"--listen=127.0.0.1:{port}", *passed, *shlex.split(command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            # The first connection is also what starts the service.
            eventually(lambda: listens(port), PATIENCE_SECONDS)
            assert send_request(port, "/")[0] == 404
            assert notified.recv(4096).startswith(b"READY=1")
            process.send_signal(signal.SIGHUP)
            assert send_request(port, "/")[0] == 404
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
