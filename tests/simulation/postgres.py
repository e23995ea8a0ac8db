"""A simulated PostgreSQL server: its sessions run what arrives, one message after the other."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq

from stackmgr.database import retries
from stackmgr.database.pool import RECONNECT_INTERVAL
from stackmgr.database.statements import Statement
from tests.simulation.tables import Row, Tables, statement_of
from tests.simulation.world import World

# Seconds.
_SERVICE = (0.0001, 0.002)
_SLOW = (0.05, 4.0)
_RECONNECT = RECONNECT_INTERVAL + 0.05

SYNC, NOTICE = "sync", "notice"  # messages beside a Result
_FAULTS = {
    "serialization failure": "40001", "deadlock": "40P01", "statement timeout": "57014",
    "backend terminated": "57P01", "disk full": "53100",
}  # fmt: skip
_OF_POOLERS = (retries.INVALID_STATEMENT_NAME, retries.DUPLICATE_PREPARED_STATEMENT)


@dataclass(slots=True)
class Result:
    """A PGresult; *asker* is the request that sent the statement."""

    status: pq.ExecStatus
    rows: list[Row] = field(default_factory=list)
    sqlstate: str = ""
    asker: object = None

    @property
    def ntuples(self) -> int:
        return len(self.rows)

    def error_field(self, _: object) -> bytes | None:
        return self.sqlstate.encode("ascii") or None


@dataclass(slots=True)
class Command:
    """A message of a client: a name to prepare (*text*), to execute (*values*), both, or a Sync."""

    kind: str
    name: bytes = b""
    text: bytes = b""
    values: list[bytes | None] = field(default_factory=list)
    formats: list[int] = field(default_factory=list)
    asker: object = None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        return {
            name: value if value is None or is_binary else value.decode("utf-8")
            for name, value, is_binary in zip(names, self.values, self.formats, strict=True)
        }


class ServerError(Exception):
    """The server rejects a command; the text is the SQLSTATE."""


class CommitError(ServerError):
    """The server rejects a commit, after the rows and the completion of the statement."""


class Backend:
    """A server process: what is prepared there, since which migration, and whether it may write."""

    def __init__(self, server: "Server") -> None:
        self.prepared: dict[bytes, tuple[bytes, int]] = {}
        self.epoch = server.epoch


class ServerSession:
    """The server's side of one connection; *send* passes a message, or None (the end), to the client."""

    def __init__(self, server: "Server", send: Callable[[Any], None]) -> None:
        self.server, self.world, self.send = server, server.world, send
        self.is_open, self.ended_by = True, ""
        self.backend = Backend(server)
        self.commands: deque[Command] = deque()
        self.is_running = False
        self.is_aborted = False  # until the next Sync
        self.last_write: str | None = None  # the request of the last command, if it wrote
        self.lent: Backend | None = None  # by the pooler, until the next Sync
        server.sessions.append(self)

    def receive(self, commands: list[Command]) -> None:
        if self.is_open:
            self.commands.extend(commands)
            self._next()

    def _next(self) -> None:
        if self.commands and not self.is_running:
            self.is_running = True
            self.world.at(self.server.service_seconds(self), self._run)

    def _run(self) -> None:
        self.is_running = False
        world, thaws_at = self.world, self.server.frozen_until
        if not self.commands or not self.is_open:
            return
        if thaws_at > world.now:
            self.is_running = True
            world.at(thaws_at - world.now, self._run)
            return
        command = self.commands.popleft()
        if command.kind == SYNC:
            self.is_aborted, self.lent = False, None
            self.send(SYNC)
            if world.chance("idle connection lost"):
                world.at(world.between(0, 0.5), self.end)
        elif self.is_aborted:
            self.send(Result(pq.ExecStatus.PIPELINE_ABORTED, asker=command.asker))
        else:
            self._answer_command(command)
        self._next()

    def _answer_command(self, command: Command) -> None:
        world, server = self.world, self.server
        if world.chance("connection lost before the statement"):
            self.end()
            return
        try:
            rows = self._execute(command)
        except ServerError as ex:
            self.is_aborted, sqlstate = True, str(ex)
            if server.is_pooler or sqlstate not in _OF_POOLERS:
                world.touched[self].append(sqlstate)
            if isinstance(ex, CommitError):
                rows = [("uncommitted",) * 5]
                self.send(Result(pq.ExecStatus.TUPLES_OK, rows, asker=command.asker))
            self.send(Result(pq.ExecStatus.FATAL_ERROR, [], sqlstate, command.asker))
            if sqlstate.startswith("57P"):
                self.end()
            return
        if world.chance("connection lost after the statement"):
            self.end()
            return
        if world.chance("response never comes"):
            self.is_open, self.ended_by = False, "response never comes"
            return
        if world.chance("warning", self):
            self.send(NOTICE)
            if self.last_write is not None:
                server.tables.unconfirmed.add(self.last_write)
        status = pq.ExecStatus.TUPLES_OK if command.kind == "execute" else pq.ExecStatus.COMMAND_OK
        self.send(Result(status, rows, asker=command.asker))

    def _execute(self, command: Command) -> list[Row]:
        server, backend = self.server, self.backend
        self.last_write = None
        if server.is_pooler:
            backend = self.lent = self.lent or server.any_backend()
        prepared = backend.prepared
        if command.kind == "prepare":
            if command.name in prepared:
                raise ServerError(retries.DUPLICATE_PREPARED_STATEMENT)
            prepared[command.name] = command.text, server.migrations
            return []
        if command.name:
            if command.name not in prepared:
                raise ServerError(retries.INVALID_STATEMENT_NAME)
            text, since = prepared[command.name]
            if since != server.migrations and b"session_settings" not in command.name:
                raise ServerError(retries.FEATURE_NOT_SUPPORTED)
        else:
            text = command.text
        if text == b"DEALLOCATE ALL":
            prepared.clear()
            return []
        rows, self.last_write = server.apply(statement_of(text), command, backend)
        return rows

    def end(self, sqlstate: str = "") -> None:
        """Close the connection from this side, with a FATAL message if *sqlstate* is given."""
        if self.is_open:
            self.is_open, self.ended_by = False, sqlstate or "connection lost"
            if sqlstate:
                self.send(Result(pq.ExecStatus.FATAL_ERROR, [], sqlstate))
            self.send(None)

    def closed_by_client(self) -> None:  # what has arrived still runs
        for command in self.commands:
            if command.kind == "execute" and not self.is_aborted and self.server.is_up:
                try:
                    self._execute(command)
                except ServerError:
                    self.is_aborted = True
        self.commands.clear()
        self.is_open = False


class Server:
    def __init__(self, world: World) -> None:
        self.world = world
        self.tables = Tables()
        self.move_key = self.tables.move_key
        self.sessions: list[ServerSession] = []
        self.is_up = True
        self.is_pooler = bool(world.plan.get("pooler"))
        self.backends: list[Backend] = []
        self.frozen_until = 0.0
        self.hindered_until = 0.0  # an attempt to connect hangs, or has failed
        self.verified: set[Any] = set()  # connections whose settings are being read
        self.epoch = 0  # grows at each failover
        self.migrations = 0

    def any_backend(self) -> Backend:
        """Return a backend of the pooler, which has two."""
        self.backends = [backend for backend in self.backends if backend.epoch == self.epoch]
        while len(self.backends) < 2:
            self.backends.append(Backend(self))
        return self.world.random.choice(self.backends)

    def service_seconds(self, session: ServerSession) -> float:
        return self.world.between(*(_SLOW if self.world.chance("slow statement", session) else _SERVICE))

    def apply(self, statement: Statement, command: Command, backend: Backend) -> tuple[list[Row], str | None]:
        """Run a statement and commit, or raise ServerError; return the rows, and the request of a write."""
        world = self.world
        if backend.epoch != self.epoch and statement.writes:
            raise ServerError("25006")
        if statement.name != "session_settings":
            for fault, sqlstate in _FAULTS.items():
                if world.chance(fault):
                    raise ServerError(sqlstate)
        if statement.writes and world.chance("commit fails"):
            raise CommitError("53100")
        given = command.given(statement.parameters)
        rows = self.tables.run(statement.name, given)
        if statement.name == "session_settings" and world.chance("other settings"):
            self.hinder()
            if world.random.random() < 0.5:
                raise ServerError("57014")
            rows = [(name, "other", wanted) for name, _, wanted in rows]
        request = given.get("request_id") if statement.writes else None
        if self.tables.applied[statement.name, request] > 1:
            world.fail("a write is applied once", f"{statement.name} of {request}")
        if request is not None and rows:
            world.note("committed", statement.name, request)
        return rows, request

    def hinder(self, seconds: float = _RECONNECT) -> None:
        """Note that for so long nothing may connect."""
        self.hindered_until = max(self.hindered_until, self.world.now + seconds)

    def crash(self, seconds: float, sqlstate: str = "") -> None:
        """End each session, and accept connections again after *seconds*."""
        self.is_up = False
        for session in self.sessions:
            session.end(sqlstate)
        self.sessions.clear()
        self.world.at(seconds, self.come_up)

    def come_up(self) -> None:
        self.is_up = True

    def restart(self, seconds: float) -> None:
        self.crash(seconds, "57P01")

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    def fail_over(self) -> None:
        """Make this a standby for the sessions that exist; new ones reach the new primary."""
        self.epoch += 1

    def migrate(self) -> None:
        """Change the result types of what is prepared; a pooler must reconnect."""
        self.migrations += 1
        self.backends.clear()

    def kill_one(self) -> None:
        if sessions := [session for session in self.sessions if session.is_open]:
            self.world.random.choice(sessions).end("57P01")
