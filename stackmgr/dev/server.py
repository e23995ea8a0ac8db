"""`stackmgr dev`: everything on one machine, with the production configuration and a database in a folder."""

import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from uuid import uuid4

from stackmgr import api_keys, paths, settings
from stackmgr.database import migrations
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.dev import embedded_postgres
from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from stackmgr.errors import Unauthorized
from stackmgr.verifiers.database import DatabaseVerifier

_START_DEADLINE = 20.0
_STOP_DEADLINE = 35.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# One manager for all keys that are issued here, so that a new key finds the stacks of the old one.
_MANAGER = "7c9e6f3a-5d0b-4b51-9f39-6a1b0f4f2d10"


class DevError(Exception):
    """`stackmgr dev` cannot go on; the message says why in words."""


class _Stop(BaseException):
    """Raised in the main thread by the first signal that asks to stop."""


def _stop(signum: int, frame: FrameType | None) -> None:
    for each in _STOP_SIGNALS:
        # Stopping in good order is not to be interrupted by more impatience.
        signal.signal(each, signal.SIG_IGN)
    raise _Stop


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as ex:
        raise DevError(f"data cannot be kept in {folder}: {ex.strerror}") from ex
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as ex:
            raise DevError(f"another 'stackmgr dev' is using {folder}; stop it, or choose --data") from ex
        yield


def _require_free(port: int) -> None:
    if not 1 <= port <= 65535:
        raise DevError(f"{port} is not the number of a port; choose one from 1 to 65535 with --port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as ex:
            raise DevError(f"port {port} is in use or not permitted; choose another with --port") from ex


def _is_good(key: str, session: Session) -> bool:
    try:
        DatabaseVerifier().verify(key, session)
    except Unauthorized:
        return False
    return True


def _api_key(url: str, folder: Path) -> str:
    """Return the key kept in *folder*, or a new one where that one does not open the database."""
    path = folder / "api_key"
    key = path.read_text().strip() if path.exists() else ""
    database = Database(url, role="stackmgr_owner", pool_size=1)
    database.open()
    try:
        with database.session() as session:
            if _is_good(key, session):
                return key
            key = api_keys.issue(session, _MANAGER, label="stackmgr dev")
    finally:
        database.close()
    fresh = folder / "api_key.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(key + "\n")
    fresh.replace(path)
    return key


def _stop_left_over_service(pid_file: Path) -> None:
    """End a gunicorn that outlived its `stackmgr dev`, which only a kill -9 of the latter can bring about."""
    left_over = embedded_postgres.stop_left_over(pid_file, str(pid_file), signal.SIGTERM)
    if left_over is not None:
        print(f"stopped process {left_over}, a service left over from an earlier run", flush=True)
    pid_file.unlink(missing_ok=True)


@contextmanager
def _served(port: int, url: str, pid_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run gunicorn in a session of its own, so that a Ctrl-C reaches it once, from here."""
    command = [sys.executable, "-m", "gunicorn", "-c", str(paths.directory("deploy") / "gunicorn.conf.py")]
    server = subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}", "--pid", str(pid_file)],
        env={"STACKMGR_LOG_FORMAT": "text"}
        | os.environ
        | {"STACKMGR_DATABASE_URL": url, "STACKMGR_DATABASE_URL_FILE": "", "STACKMGR_VERIFIER": "database"},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + _START_DEADLINE
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise DevError("the service did not start; its messages stand above")
            time.sleep(0.05)
        yield server
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        try:
            server.wait(_STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            server.kill()


def _answers(port: int) -> bool:
    """Whether a worker answers: connections are accepted before there is one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_DEADLINE)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def curl_lines(base: str, key: str) -> list[str]:
    """Return four commands that work as they stand: create, list, get and update, on real tokens."""
    tokens = json.loads(settings.tokens_path(os.environ).read_bytes())["tokens"]
    allocation = [
        {"token_address": tokens[0]["address"], "weight_bps": 6000},
        {"token_address": tokens[1]["address"].lower(), "weight_bps": 4000},
    ]
    create = json.dumps({"name": "Growth", "allocation": allocation, "schedule": {"preset": "weekly"}})
    update = json.dumps({"schedule": {"preset": "monthly"}})
    auth = f"-H 'Authorization: Bearer {key}'"
    media = "-H 'Content-Type: application/json'"
    url = f"{base}/manager/stacks"
    newest = f"""$(curl -sS {auth} '{url}?limit=1' | sed 's/.*"id":"\\([^"]*\\)".*/\\1/')"""
    return [
        f"curl -sS -i {auth} {media} -H 'Idempotency-Key: {uuid4()}' -d '{create}' '{url}'",
        f"curl -sS -i {auth} '{url}'",
        f'curl -sS -i {auth} "{url}/{newest}"',
        f"""curl -sS -i -X PATCH {auth} {media} -d '{update}' "{url}/{newest}\"""",
    ]


def _announce(port: int, folder: Path, server: EmbeddedPostgres, key: str) -> None:
    base = f"http://127.0.0.1:{port}"
    lines = "\n\n".join(curl_lines(base, key))
    opened = "".join(
        f"\nPostgreSQL does not run as root: every user may now pass through, not read, {path}"
        for path in server.opened
    )
    print(
        f"{opened}\n"
        f"stackmgr is serving at  {base}\n"
        f"data are kept in        {folder}\n"
        f"API key                 {key}\n"
        f"export STACKMGR_DATABASE_URL='{server.url()}'\n\n"
        f"Create, list, get and update a stack:\n\n{lines}\n\nCtrl-C stops everything.",
        flush=True,
    )


def _run(port: int, folder: Path) -> None:
    pid_file = folder / "gunicorn.pid"
    with _locked(folder):
        _stop_left_over_service(pid_file)
        _require_free(port)
        with EmbeddedPostgres(folder / "postgres") as server:
            server.ensure_database()
            url = server.url()
            migrations.apply(url)
            key = _api_key(url, folder)
            with _served(port, url, pid_file) as gunicorn:
                _announce(port, folder, server, key)
                if gunicorn.wait() != 0:
                    raise DevError("the service ended by itself; its messages stand above")


def run(port: int, folder: Path) -> None:
    """Serve until a signal asks to stop.  Raises DevError, EmbeddedError or MigrationError."""
    for signum in _STOP_SIGNALS:
        # nohup has SIGHUP ignored, and means it; a shell's `&` has SIGINT ignored, and does not.
        if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _stop)
    try:
        _run(port, folder.resolve())
    except _Stop:
        print("stopped", flush=True)
