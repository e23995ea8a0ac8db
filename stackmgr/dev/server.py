"""`stackmgr dev`: the service with its production configuration, and a PostgreSQL in a folder."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from uuid import uuid4

from stackmgr import paths, startup
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.dev import embedded_postgres, page
from stackmgr.dev.embedded_postgres import STOP_SIGNALS, EmbeddedPostgres, uninterrupted
from stackmgr.errors import CommandError, Unauthorized
from stackmgr.operate import keys, migrations
from stackmgr.operate.command import EVERYTHING, Commands, add_command, whole_number
from stackmgr.operate.operator import operating, request_session
from stackmgr.settings import OPTIONS

_START_DEADLINE = 20.0

# The manager of every key issued here, so that a new key has access to the stacks of the old one.
_MANAGER = "7c9e6f3a-5d0b-4b51-9f39-6a1b0f4f2d10"


class _Stop(BaseException):
    """Raised in the main thread by the first stop signal."""


def _stop(signum: int, frame: FrameType | None) -> None:
    for each in STOP_SIGNALS:
        # Further signals must not interrupt the orderly stop.
        signal.signal(each, signal.SIG_IGN)
    raise _Stop


def _require_free(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as ex:
        raise CommandError(f"port {port} is in use or not permitted; choose another with --port") from ex


def _api_key(url: str, folder: Path) -> str:
    """Return the key kept in *folder*, or a new one if that key is not valid in the database."""
    path = folder / "api_key"
    key = path.read_text().strip() if path.exists() else ""
    with suppress(Unauthorized), request_session(url) as session:
        DatabaseVerifier().verify(key, session)
        return key
    with operating(url) as operator:
        key = keys.create(operator, _MANAGER, label="stackmgr dev").key
    fresh = folder / "api_key.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(key + "\n")
    fresh.replace(path)
    return key


@contextmanager
def _served(port: int, url: str, pid_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run gunicorn in a session of its own, so that a Ctrl-C reaches it once, from here."""
    command = [sys.executable, "-m", "gunicorn", "-c", str(paths.directory("deploy") / "gunicorn.conf.py")]
    # A browser sends the cookies of all programs on localhost.
    command += ["--bind", f"127.0.0.1:{port}", "--pid", str(pid_file), "--limit-request-field_size", "65536"]
    if page.swagger_ui():
        command.append("stackmgr.dev.page:application()")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free_port = probe.getsockname()[1]
    env = {"STACKMGR_LOG_FORMAT": "text", "STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port}"} | os.environ
    own = {"STACKMGR_DATABASE_URL": url, "STACKMGR_DATABASE_URL_FILE": "", "STACKMGR_VERIFIER": "database"}
    own[startup.DEV] = "yes"
    paths_given = {each.variable for each in OPTIONS.values() if each.parse is Path} & os.environ.keys()
    own |= {name: str(Path(env[name]).absolute()) for name in paths_given if env[name]}
    with ExitStack() as stack:
        with uninterrupted():
            # Python and gunicorn import from the current folder, which may have files of the user.
            server = subprocess.Popen(command, cwd="/", env=env | own, start_new_session=True)
            stack.callback(embedded_postgres.end, server, signal.SIGTERM, signal.SIGKILL)
        deadline = time.monotonic() + _START_DEADLINE
        while not _probe_live(env["STACKMGR_ADMIN_BIND"]):
            if server.poll() is not None or time.monotonic() > deadline:
                raise CommandError("the service did not start; see the output above")
            time.sleep(0.05)
        yield server


def _probe_live(admin_bind: str) -> bool:
    """Return whether a worker responds, on the listener whose requests leave no line in the log."""
    connection = http.client.HTTPConnection(admin_bind, timeout=_START_DEADLINE)
    with suppress(OSError, http.client.HTTPException), closing(connection):
        connection.request("GET", "/live")
        return connection.getresponse().status == 200
    return False


def _lines_to_paste(base: str, key: str) -> str:
    """Return commands to run as printed: create, list, get and update, with whitelisted tokens."""
    has_proxy = {"http_proxy", "all_proxy", "ALL_PROXY"} & os.environ.keys()  # which curl reads for http://
    without_proxy = "export no_proxy=127.0.0.1,$no_proxy\n" if has_proxy else ""
    auth = '-H "Authorization: Bearer $API_KEY"'
    return f"""\
{without_proxy}export API_KEY={key}
export URL={base}/manager/stacks
export JSON='Content-Type: application/json'
export STACK='{json.dumps(page.sample())}'

curl -i $URL {auth} -H "$JSON" -H Idempotency-Key:{uuid4().hex[:8]} -d "$STACK"
curl -i $URL {auth}
ID=$(curl -sS "$URL?limit=1" {auth} | cut -d '"' -f 6)
curl -i $URL/$ID {auth}
curl -i $URL/$ID {auth} -H "$JSON" -X PATCH -d '{{"name": "Income"}}'"""


def _announce(port: int, server: EmbeddedPostgres, key: str) -> None:
    base = f"http://127.0.0.1:{port}"
    command = Path(sys.executable).with_name("stackmgr")
    browser = f"{base}/#{key}" if page.swagger_ui() else "no page: the extra 'dev' has it"
    print(
        f"\nstackmgr is serving at  {base}\n"
        f"try it in a browser     {browser}\n"
        f"data is kept in         {server.folder}\n\n"
        f"Create, list, get and update a stack from another terminal:\n\n{_lines_to_paste(base, key)}\n\n"
        f"Other commands, such as '{command} keys list', use this database after\n\n"
        f"export STACKMGR_DATABASE_URL='{server.url()}'\n\n"
        "Ctrl-C stops everything.",
        flush=True,
    )


def _run(port: int, folder: Path) -> None:
    pid_file = folder / "gunicorn.pid"
    folder.mkdir(parents=True, exist_ok=True)
    with embedded_postgres.locked(folder / "lock", "another 'stackmgr dev'"):
        embedded_postgres.stop_left_over(pid_file, str(pid_file), signal.SIGTERM)
        pid_file.unlink(missing_ok=True)
        _require_free(port)
        with EmbeddedPostgres(folder / "postgres") as server:
            server.ensure_database()
            url = server.url()
            migrations.apply(url)
            key = _api_key(url, folder)
            with _served(port, server.ensure_service_login(), pid_file) as gunicorn:
                _announce(port, server, key)
                if gunicorn.wait() != 0:
                    raise CommandError("the service ended by itself; see the output above")


def run(arguments: Namespace) -> None:
    for signum in STOP_SIGNALS:
        # nohup ignores SIGHUP on purpose; a shell's `&` also ignores SIGINT, where it should work.
        if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _stop)
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # libpq would use it for the connections to this database
    try:
        _run(arguments.port, arguments.data.resolve())
    except _Stop:
        print("stopped", flush=True)


def add_to(commands: Commands) -> None:
    about = "run everything locally, with a PostgreSQL of its own"
    parser = add_command(commands, "dev", about, run, reads=EVERYTHING, has_json=False)
    help_text = "where to listen on 127.0.0.1 (default 8000)"
    parser.add_argument("--port", type=whole_number(1, 65535), default=8000, help=help_text)
    help_text = "where to keep data (default .stackmgr)"
    parser.add_argument("--data", type=Path, default=".stackmgr", help=help_text)
