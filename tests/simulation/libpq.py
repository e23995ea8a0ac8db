"""libpq's calls as `DatabaseConnection` and psycopg_pool use them, on a simulated socket."""

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import psycopg
from greenlet import getcurrent
from psycopg import pq

from stackmgr.database.connection import CANCELLED_WAIT
from tests.simulation.kernel import IN, OUT, File, Kernel
from tests.simulation.postgres import Server
from tests.simulation.server_session import NOTICE, SYNC, Command, Result, ServerSession
from tests.simulation.world import World, asker

_LATENCY = (0.00005, 0.001)  # seconds, one way
_CONNECT_TIMEOUT = 2.0  # of `completed_conninfo`, in seconds


class ClientSocket(File):
    """The client's end: messages that have arrived, then perhaps the end or a reset."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.messages: deque[Any] = deque()
        self.has_ended = False
        self.ended_at = inf
        self.is_full = False  # nothing more can be sent for the moment

    def events(self) -> int:
        return (IN if self.messages or self.has_ended else 0) | (0 if self.is_full else OUT)

    def arrive(self, message: Any | None) -> None:
        if self.number < 0:
            return
        if message is None:
            self.has_ended, self.ended_at = True, self.kernel.world.now
        else:
            self.messages.append(message)
        self.changed()

    def drain(self) -> None:
        self.is_full = False
        self.changed()


class SimulatedPGconn:
    """A connection; the states are those of libpq's asyncStatus."""

    notify_handler = None
    used_gssapi = False
    _encoding = "utf-8"

    def __init__(self, world: World, kernel: Kernel, server: Server, conninfo: str) -> None:
        self.world = world
        self.socket_file = ClientSocket(kernel)
        self.status = pq.ConnStatus.OK
        self.options = conninfo.encode()
        self.notice_handler: Callable[[Any], None] | None = None
        self.user: object = None  # whose statement is under way
        self._arrives = 0.0  # the time at which the last message to the server, or from it, arrives
        self._comes = 0.0
        self.server_session = ServerSession(server, self._from_server)
        self._unsent: list[Command] = []
        self._parsed: deque[Result | str] = deque()
        self._pending: deque[str] = deque()  # sent, and not completed
        self._in_pipeline = self._null_is_due = False
        self._began = self._stalled_before = 0.0

    def _from_server(self, message: Any | None) -> None:
        world = self.world
        self._comes = max(self._comes + 1e-7, world.now + world.between(*_LATENCY))
        world.at(self._comes - world.now, self.socket_file.arrive, message)

    @property
    def socket(self) -> int:
        if self.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection is lost")
        return self.socket_file.number

    @property
    def transaction_status(self) -> pq.TransactionStatus:
        if self.status != pq.ConnStatus.OK:
            return pq.TransactionStatus.UNKNOWN
        return pq.TransactionStatus.ACTIVE if self._pending else pq.TransactionStatus.IDLE

    def finish(self) -> None:
        if self.socket_file.number >= 0:
            self.socket_file.close()
            self.world.at(self.world.between(*_LATENCY), self.server_session.closed_by_client)
        self.status = pq.ConnStatus.BAD

    def __del__(self) -> None:
        if not self.world.is_over:
            self.finish()

    def _call(self) -> None:
        self.user = self.user or getcurrent()
        if self.user is not getcurrent():
            self.world.fail("a connection has one owner", f"{asker()} uses it during another exchange")
        if self.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection is closed")
        if self.world.chance_of_raising("unforeseen exception", self.server_session):
            raise MemoryError

    def begin(self) -> None:
        self.world.touched.pop(self.server_session, None)
        self._began, self._stalled_before = self.world.now, self.world.stalled

    def causes(self) -> list[str]:
        session, world = self.server_session, self.world
        froze, stalled = session.server.frozen_until > self._began, world.stalled > self._stalled_before
        found = [*world.touched.get(session, ()), session.ended_by, "freeze" * froze, "stall" * stalled]
        return [*filter(None, found)]

    def _send(self, command: Command) -> None:
        self._call()
        if not self._in_pipeline and self._pending:
            raise psycopg.OperationalError("another command is already in progress")
        command.asker = asker()
        self._unsent.append(command)
        self._pending.append(command.kind)
        if not self._in_pipeline:
            self._unsent.append(Command(SYNC))

    def send_prepare(self, name: bytes, text: bytes) -> None:
        self._send(Command("prepare", name, text))

    def send_query_prepared(self, name: bytes, values: list[bytes | None], formats: list[int]) -> None:
        self._send(Command("execute", name, b"", values, formats))

    def send_query_params(
        self, text: bytes, values: list[bytes | None], types: None, formats: list[int]
    ) -> None:
        self._send(Command("execute", b"", text, values, formats))

    def enter_pipeline_mode(self) -> None:
        self._call()
        if self._pending or self._parsed:
            raise psycopg.OperationalError("cannot enter pipeline mode, connection not idle")
        self._in_pipeline = True

    def exit_pipeline_mode(self) -> None:
        self._call()
        if self._pending or self._parsed or self._null_is_due:
            raise psycopg.OperationalError("cannot exit pipeline mode with uncollected results")
        self._in_pipeline = False
        self.user = None

    def pipeline_sync(self) -> None:
        self._send(Command(SYNC))

    def flush(self) -> int:
        self._call()
        if not self._unsent:
            return 0
        world = self.world
        if self.socket_file.is_full:
            return 1
        if world.chance("full socket", self.server_session):
            self.socket_file.is_full = True
            world.at(world.between(0.001, 0.5), self.socket_file.drain)
            return 1
        self._arrives = max(self._arrives + 1e-7, world.now + world.between(*_LATENCY))
        world.at(self._arrives - world.now, self.server_session.receive, self._unsent)
        self._unsent = []
        return 0

    def consume_input(self) -> None:
        self._call()
        file = self.socket_file
        if not file.messages and file.has_ended:
            self.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        while file.messages:
            message = file.messages.popleft()
            if message != NOTICE:
                self._parsed.append(message)
            elif self.notice_handler is not None:
                self.notice_handler(SimpleNamespace(error_field=lambda _: CANCELLED_WAIT.encode()))
            if self.world.chance("partial read"):
                break

    def is_busy(self) -> bool:
        if self._null_is_due or not self._parsed:
            return bool(self._pending) and not self._null_is_due
        if not self._in_pipeline and self._parsed[0] == SYNC:
            # ReadyForQuery: the exchange is complete.
            self._parsed.popleft()
            self._pending.clear()
            self.user = None
        return False

    def get_result(self) -> Any:
        if self.status != pq.ConnStatus.OK or self._null_is_due:
            self._null_is_due = False
            return None
        if self.is_busy():
            self.world.fail("no call of libpq blocks", "PQgetResult without a result")
            raise psycopg.OperationalError
        if not self._parsed:
            return None
        result = self._parsed.popleft()
        # An error of the commit belongs to no statement.
        if self._in_pipeline and self._pending and (self._pending[0] == SYNC) == (result == SYNC):
            self._pending.popleft()
        self._null_is_due = self._in_pipeline and isinstance(result, Result)
        return Result(pq.ExecStatus.PIPELINE_SYNC) if result == SYNC else result


class SimulatedTransformer:
    """psycopg's Transformer: rows here are Python values already."""

    def __init__(self, connection: Any) -> None:
        self._world: World = connection.pgconn.world
        self._session = connection.pgconn.server_session
        self._result: Result | None = None

    def set_pgresult(self, result: Result | None) -> None:
        self._result = result

    def load_rows(self, first: int, end: int, make: Callable[[Any], Any]) -> list[Any]:
        assert self._result is not None
        if self._world.chance_of_raising("unforeseen exception", self._session):
            raise MemoryError
        if self._result.asker != asker():
            self._world.fail("no row to another request", f"{asker()} has rows of {self._result.asker}")
        return self._result.rows[first:end]


def connecting(world: World, kernel: Kernel, server: Server) -> Callable[[str], Iterator[Any]]:
    """Return what takes the place of psycopg's generator that connects; it blocks and yields nothing."""

    def connect(conninfo: str) -> Iterator[Any]:
        world.block(world.between(0.0005, 0.01))
        if world.chance("connecting hangs"):
            server.hinder(_CONNECT_TIMEOUT)
            world.block(_CONNECT_TIMEOUT)
            server.hinder()
            raise psycopg.errors._WaitTimeout
        if not server.is_up or world.chance("connection refused"):
            server.hinder()
            raise psycopg.OperationalError("connection refused")
        return SimulatedPGconn(world, kernel, server, conninfo)
        yield

    return connect
