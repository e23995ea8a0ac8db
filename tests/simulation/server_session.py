"""A session of the simulated PostgreSQL: it runs what arrives, one message after the other."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq

from stackmgr.database import retries
from tests.simulation.tables import Row, Tables, statement_of

BRIEF = 0.02  # seconds, as in sql/batch_begin.sql
SYNC, NOTICE = "sync", "notice"  # messages beside a Result
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


class Blocked(Exception):
    """The statement waits for a lock."""


@dataclass(slots=True)
class Transaction:
    """What a session has not committed yet; *before* has the rows that it began with."""

    before: Tables
    seen: Tables
    locks: set[Row] = field(default_factory=set)
    writes: list[tuple[str, str]] = field(default_factory=list)  # statements and requests
    lock_seconds: float = 0.0  # for which a statement waits for a lock; 0: as the session does

    def look(self, tables: Tables) -> None:
        seen = tables.copy()
        seen.commit(self.seen, self.before)
        self.before, self.seen = tables.copy(), seen


class Backend:
    """A server process: what is prepared there, since which migration, and whether it may write."""

    def __init__(self, server: Any) -> None:
        self.prepared: dict[bytes, tuple[bytes, int]] = {}
        self.epoch = server.epoch


class ServerSession:
    """The server's side of one connection; *send* passes a message, or None (the end), to the client."""

    def __init__(self, server: Any, send: Callable[[Any], None]) -> None:
        self.server, self.world, self.send = server, server.world, send
        self.is_open, self.ended_by = True, ""
        self.backend = Backend(server)
        self.commands: deque[Command] = deque()
        self.is_running = False
        self.is_aborted = False  # until the next Sync
        self.transaction: Transaction | None = None  # until then, too
        self.waits_for: Row | None = None  # a lock
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
            self._end_transaction()
        elif self.is_aborted:
            self.send(Result(pq.ExecStatus.PIPELINE_ABORTED, asker=command.asker))
        else:
            self._answer_command(command)
        self._next()

    def _answer_command(self, command: Command) -> None:
        world = self.world
        if world.chance("connection lost before the statement"):
            self.end()
            return
        try:
            rows = self._execute(command)
        except Blocked:
            self._wait(command)
            return
        except ServerError as ex:
            self._fail(str(ex), command.asker)
            return
        status = pq.ExecStatus.TUPLES_OK if command.kind == "execute" else pq.ExecStatus.COMMAND_OK
        self.send(Result(status, rows, asker=command.asker))

    def _execute(self, command: Command) -> list[Row]:
        server, backend = self.server, self.backend
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
        return server.apply(statement_of(text), command, backend, self)

    def _fail(self, sqlstate: str, asker: object) -> None:
        self.is_aborted = True
        if self.server.is_pooler or sqlstate not in _OF_POOLERS:
            self.world.touched[self].append(sqlstate)
        self.send(Result(pq.ExecStatus.FATAL_ERROR, [], sqlstate, asker))
        if sqlstate.startswith("57P"):
            self.end()

    def _wait(self, command: Command) -> None:
        """Wait for a lock, at most for the time of the transaction or the session."""
        self.commands.appendleft(command)
        self.is_running = True
        self.server.waiting.append(self)
        assert self.transaction is not None
        seconds = self.transaction.lock_seconds or self.server.lock_seconds
        number = len(self.transaction.writes) + sum(each.kind == "execute" for each in self.commands)
        if number > 1 and seconds > BRIEF:
            self.world.fail("a batch waits for a lock only briefly", f"{number} for {seconds} s")
        self.world.touched[self].append("lock wait")
        self.world.at(seconds, self._give_up, command, self.waits_for)

    def _give_up(self, command: Command, lock: Row) -> None:
        if self.waits_for == lock and self.commands and self.commands[0] is command:
            self.resume()
            self.commands.popleft()
            self._fail("55P03", command.asker)

    def resume(self) -> None:
        self.server.waiting.remove(self)
        self.waits_for, self.is_running = None, False
        self._next()

    def _end_transaction(self) -> None:
        world, transaction = self.world, None if self.is_aborted else self.transaction
        if transaction is not None and transaction.writes and world.chance("commit fails"):
            transaction = None
            self._fail("53100", None)
        if transaction is not None:
            self.server.commit(transaction)
        self._release()
        self.is_aborted, self.lent = False, None
        if world.chance("connection lost after the statement"):
            self.end()
            return
        if world.chance("response never comes"):
            self.is_open, self.ended_by = False, "response never comes"
            return
        if world.chance("warning", self):
            self.send(NOTICE)
            if transaction is not None:
                self.server.tables.unconfirmed.update(request for _, request in transaction.writes)
        self.send(SYNC)
        if world.chance("idle connection lost"):
            world.at(world.between(0, 0.5), self.end)

    def _release(self) -> None:
        transaction, self.transaction = self.transaction, None
        if self in self.server.waiting:
            self.server.waiting.remove(self)
        for lock in transaction.locks if transaction is not None else ():
            self.server.release(lock)

    def end(self, sqlstate: str = "") -> None:
        """Close the connection from this side, with a FATAL message if *sqlstate* is given."""
        if self.is_open:
            self.is_open, self.ended_by = False, sqlstate or "connection lost"
            self._release()
            if sqlstate:
                self.send(Result(pq.ExecStatus.FATAL_ERROR, [], sqlstate))
            self.send(None)

    def closed_by_client(self) -> None:  # what has arrived still runs
        for command in self.commands if self.waits_for is None else ():
            if command.kind == SYNC and self.transaction is not None and not self.is_aborted:
                self.server.commit(self.transaction)
            elif command.kind == "execute" and not self.is_aborted and self.server.is_up:
                try:
                    self._execute(command)
                except (ServerError, Blocked):
                    self.is_aborted = True
        self.commands.clear()
        self._release()
        self.is_open = False
