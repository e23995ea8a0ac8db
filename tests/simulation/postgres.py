"""The simulated PostgreSQL server: its tables, locks and faults."""

from typing import Any

from stackmgr.database.pool import RECONNECT_INTERVAL
from stackmgr.database.statements import Statement
from tests.simulation import server_session
from tests.simulation.server_session import Backend, Blocked, ServerError, ServerSession, Transaction
from tests.simulation.tables import Row, Tables
from tests.simulation.world import World

# Seconds.
_SERVICE = (0.0001, 0.002)
_SLOW = (0.05, 4.0)
_RECONNECT = RECONNECT_INTERVAL + 0.05
_FAULTS = {
    "serialization failure": "40001", "deadlock": "40P01", "statement timeout": "57014",
    "backend terminated": "57P01", "disk full": "53100",
}  # fmt: skip
_ALL: Row = ("all tables",)


class Server:
    def __init__(self, world: World) -> None:
        self.world = world
        self.tables = Tables()
        self.move_key = self.tables.move_key
        self.sessions: list[ServerSession] = []
        self.lock_seconds = 0.3 * world.plan["deadline"]
        self.locks: dict[Row, object] = {}  # and who holds each
        self.waiting: list[ServerSession] = []  # for locks
        self.is_up = True
        self.is_pooler = bool(world.plan.get("pooler"))
        self.backends: list[Backend] = []
        self.frozen_until = 0.0
        self.hindered_until = 0.0  # an attempt to connect hangs, or has failed
        self.verified: set[Any] = set()  # connections whose settings are being read
        self.epoch = 0  # grows at each failover
        self.migrations = 0

    def any_backend(self) -> Backend:
        self.backends = [backend for backend in self.backends if backend.epoch == self.epoch]
        while len(self.backends) < 2:
            self.backends.append(Backend(self))
        return self.world.random.choice(self.backends)

    def service_seconds(self, session: ServerSession) -> float:
        return self.world.between(*(_SLOW if self.world.chance("slow statement", session) else _SERVICE))

    def _fault(self, statement: Statement, backend: Backend) -> None:
        if backend.epoch != self.epoch and statement.writes:
            raise ServerError("25006")
        if statement.name != "session_settings":
            for fault, sqlstate in _FAULTS.items():
                if self.world.chance(fault):
                    raise ServerError(sqlstate)

    def apply(
        self, statement: Statement, command: server_session.Command, backend: Backend, session: ServerSession
    ) -> list[Row]:
        """Run a statement in the transaction of *session*; return the rows.  Raises ServerError, Blocked."""
        self._fault(statement, backend)
        transaction = session.transaction = session.transaction or Transaction(self.tables, self.tables)
        if statement.name == "batch_begin":
            transaction.lock_seconds = server_session.BRIEF
        given = command.given(statement.parameters)
        if statement.writes:
            self._take(self.tables.lock(statement.name, given), session)
            transaction.look(self.tables)
        rows = transaction.seen.run(statement.name, given)
        if statement.name == "session_settings" and self.world.chance("other settings"):
            self.hinder()
            if self.world.random.random() < 0.5:
                raise ServerError("57014")
            rows = [(name, "other", wanted) for name, _, wanted in rows]
        if statement.writes and "request_id" in given and rows and rows[0][0] is not None:
            transaction.writes.append((statement.name, given["request_id"]))
        return rows

    def commit(self, transaction: Transaction) -> None:
        self.tables.commit(transaction.seen, transaction.before)
        for write in transaction.writes:
            self.world.note("committed", *write)
            self.tables.applied[write] += 1
            if self.tables.applied[write] > 1:
                self.world.fail("a write is applied once", repr(write))

    def _take(self, lock: Row | None, session: ServerSession) -> None:
        """Let the transaction of *session* have a lock.  Raises Blocked; a deadlock is a violation."""
        assert session.transaction is not None
        holder = self.locks.get(_ALL, self.locks.get(lock, session)) if lock else session
        if holder is not session:
            session.waits_for = lock
            while isinstance(holder, ServerSession) and self.world.violation is None:
                holder = self.locks.get(holder.waits_for)
                if holder is session:
                    self.world.fail("no two batches deadlock", repr(lock))
            raise Blocked
        if lock is not None:
            self.locks[lock] = session
            session.transaction.locks.add(lock)

    def release(self, lock: Row) -> None:
        self.locks.pop(lock, None)
        for session in [each for each in self.waiting if lock in (each.waits_for, _ALL)]:
            session.resume()

    def hold(self, seconds: float) -> None:
        ids = [(stack_id,) for stack_id in self.tables.stacks]
        lock = self.world.random.choice([*ids, _ALL])
        if lock not in self.locks:
            self.locks[lock] = "somebody else"
            self.world.at(seconds, self.release, lock)

    def hinder(self, seconds: float = _RECONNECT) -> None:
        self.hindered_until = max(self.hindered_until, self.world.now + seconds)

    def crash(self, seconds: float, sqlstate: str = "") -> None:
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
        self.epoch += 1

    def migrate(self) -> None:
        """Change the result types of what is prepared; a pooler must reconnect."""
        self.migrations += 1
        self.backends.clear()

    def kill_one(self) -> None:
        if sessions := [session for session in self.sessions if session.is_open]:
            self.world.random.choice(sessions).end("57P01")
