"""The connections of a worker: which of them wait, for what, and until when."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from time import monotonic

from stackmgr.scheduler import READABLE, Scheduler
from stackmgr.server.connection import ClientConnection
from stackmgr.server.protocol import CLOSED, IDLE, WRITING, State

BUFFER_BUDGET = 134_217_728  # bytes of unfinished requests and unread responses held at once
STEP_SECONDS = 0.004  # of a turn, in which requests are rejected, or connections end


class HttpConnections:
    """At most *limit* open connections; those that are parked wait for an event or their deadline.

    *on_freed* is called when one has been closed.
    """

    def __init__(
        self, scheduler: Scheduler, limit: int, keepalive: float, on_freed: Callable[[], None]
    ) -> None:
        self.open: dict[ClientConnection, int] = {}  # with the events that it is watched for
        # With its state and deadline, in the order of parking.
        self.parked: dict[ClientConnection, tuple[State, float]] = {}
        self.ready: OrderedDict[ClientConnection, None] = OrderedDict()  # with something to do at once
        self.receiving: OrderedDict[ClientConnection, None] = OrderedDict()  # so too, after these
        self.received = 0  # bytes since the last sweep, at most
        self._scheduler = scheduler
        self._limit = limit
        self._idle_seconds = keepalive
        self._on_freed = on_freed

    @property
    def has_ready(self) -> bool:
        """Whether a connection has something to do at once."""
        return bool(self.ready or self.receiving)

    @property
    def may_exceed_budget(self) -> bool:
        """Whether so much has been received that it is time for a sweep."""
        return self.received > BUFFER_BUDGET

    def add(self, conn: ClientConnection) -> None:
        """Watch a new connection."""
        if len(self.open) >= self._limit:
            self.close_longest_parked()
        self.open[conn] = READABLE
        try:
            self.parked[conn] = IDLE, monotonic() + IDLE.seconds
            self._scheduler.watch(conn.fd, READABLE, partial(self._notice, conn))
        except BaseException:
            self.close(conn)
            raise

    def _notice(self, conn: ClientConnection, events: int) -> None:
        conn.notice(events)
        if conn in self.parked and conn not in self.ready and conn not in self.receiving:
            self._queue(conn)
        else:  # what arrives before its turn is read in it, and must neither wake the thread nor hide others
            self._watch(conn, 0)

    def _queue(self, conn: ClientConnection) -> None:
        (self.receiving if conn.protocol.may_wait else self.ready)[conn] = None

    def take_next(self, queue: OrderedDict[ClientConnection, None]) -> ClientConnection:
        """Return the next connection of `ready` or `receiving`."""
        conn, _ = queue.popitem(last=False)
        self.received += conn.read_size
        return conn

    def _watch(self, conn: ClientConnection, events: int) -> None:
        """Watch a connection for *events*, if it is not watched for these already."""
        if self.open[conn] != events:
            self.open[conn] = events
            self._scheduler.change(conn.fd, events)

    def unpark(self, conn: ClientConnection) -> None:
        """Let the connection wait for nothing while its request waits or runs."""
        del self.parked[conn]

    def park(self, conn: ClientConnection) -> None:
        """Let the connection wait for its next event, until the deadline of its state."""
        state = conn.protocol.state
        if state is CLOSED:
            self.close(conn)
            return
        if conn.may_continue:
            self._queue(conn)
        before = self.parked.get(conn)
        if before is None or before[0] is not state:
            seconds = self._idle_seconds if state is IDLE else state.seconds
            self.parked[conn] = state, monotonic() + seconds
            if state is WRITING:
                conn.note_unread()
        self._watch(conn, state.events)

    def close(self, conn: ClientConnection) -> None:
        """Close a connection."""
        if conn not in self.open:
            return
        del self.open[conn]
        self.parked.pop(conn, None)
        self.ready.pop(conn, None)
        self.receiving.pop(conn, None)
        self._scheduler.forget(conn.fd)
        conn.sock.close()
        self._on_freed()

    def close_longest_parked(self) -> None:
        """Close the connection that has waited longest, in a flood a silent one."""
        for conn in self.parked:
            self.close(conn)
            return

    def limit_idle_seconds(self, seconds: float) -> None:
        """Close idle connections after *seconds* at the latest, those that are idle now included."""
        self._idle_seconds = min(seconds, self._idle_seconds)
        latest = monotonic() + self._idle_seconds
        for conn, (state, deadline) in self.parked.items():
            if state is IDLE:
                self.parked[conn] = state, min(deadline, latest)

    def sweep(self) -> list[ClientConnection]:
        """Return the connections whose deadline has passed; close the longest parked above the budget."""
        now, parked = monotonic(), list(self.parked.items())
        excess = sum(conn.protocol.held for conn in self.open) - BUFFER_BUDGET
        overdue = []
        for conn, (state, deadline) in parked:
            if excess > 0 and (held := conn.protocol.held):
                excess -= held
                self.close(conn)
                if monotonic() > now + STEP_SECONDS:
                    break
            elif deadline < now:
                if state is WRITING and conn.has_progressed():
                    self.parked[conn] = state, now + state.seconds
                else:
                    overdue.append(conn)
        self.received = 0 if excess <= 0 else BUFFER_BUDGET + 1  # which has the next turn sweep again
        return overdue
