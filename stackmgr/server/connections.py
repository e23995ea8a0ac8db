"""The connections of a worker: which of them wait, for what, and until when."""

import select
import socket
from collections import deque
from functools import partial
from time import monotonic

from stackmgr.scheduler import Scheduler
from stackmgr.server import CLOSED, DRAINING, IDLE, LISTEN, READ, READING, WRITING
from stackmgr.server.connection import ClientConnection, Disconnected

BUFFER_BUDGET = 134_217_728  # bytes of unfinished requests and unread responses held at once
STEP_SECONDS = 0.004  # of a turn, in which requests are started, or rejected, or connections end
_GONE = select.EPOLLHUP | select.EPOLLERR


class HttpConnections:
    """At most *limit* open connections; those that are parked wait for an event or their deadline."""

    def __init__(self, scheduler: Scheduler, limit: int, keepalive: float) -> None:
        self.open: set[ClientConnection] = set()
        self.parked: dict[ClientConnection, None] = {}  # in the order of parking
        self.ready: deque[ClientConnection] = deque()  # with something to do at once
        self.continuing: deque[ClientConnection] = deque()  # so too, after a turn of the others
        self.paused: list[int] = []  # listeners that are not watched while descriptors are exhausted
        self.received = 0  # bytes since the last sweep
        self._scheduler = scheduler
        self._limit = limit
        self._idle_seconds = keepalive

    def add(self, conn: ClientConnection) -> None:
        """Watch a new connection."""
        if len(self.open) >= self._limit:
            self.close_longest_parked()
        self.open.add(conn)
        try:
            conn.deadline = monotonic() + IDLE.seconds
            conn.events = READ
            self._scheduler.watch(conn.fd, READ, partial(self._notice, conn))
            self.park(conn)
        except BaseException:
            self.close(conn)
            raise

    def _notice(self, conn: ClientConnection, events: int) -> None:
        """Note that something has happened on a connection."""
        conn.has_event = True
        if events & _GONE and conn.phase is not DRAINING:
            conn.is_gone = True
        if not conn.is_ready:
            conn.is_ready = True
            (self.continuing if conn.request else self.ready).append(conn)

    def watch(self, conn: ClientConnection, events: int) -> None:
        """Watch a connection for *events*, if it is not watched for these already."""
        if conn.events != events:
            conn.events = events
            self._scheduler.change(conn.fd, events)

    def park(self, conn: ClientConnection) -> None:
        """Let the connection wait for its next event, in the phase that follows.

        Raises Disconnected if there is none.
        """
        if conn.is_gone:
            raise Disconnected
        if conn.outbox:
            phase = WRITING
        elif conn.closing:
            phase = DRAINING
            if conn.phase is not DRAINING:
                conn.sock.shutdown(socket.SHUT_WR)
        else:
            phase = READING if conn.has_partial_request else IDLE
            if conn.may_continue and not conn.is_ready:
                conn.is_ready = True
                self.continuing.append(conn)
        if phase is not conn.phase:
            seconds = self._idle_seconds if phase is IDLE else phase.seconds
            conn.phase, conn.deadline = phase, monotonic() + seconds
            if phase is WRITING:
                conn.unread = conn.count_unread()
        self.watch(conn, phase.events)
        self.parked[conn] = None

    def close(self, conn: ClientConnection) -> None:
        """Close a connection."""
        if conn.phase is CLOSED:
            return
        conn.phase = CLOSED
        self.parked.pop(conn, None)
        self.open.discard(conn)
        self._scheduler.forget(conn.fd)
        conn.sock.close()
        if self.paused:
            self.resume_listeners()

    def resume_listeners(self) -> None:
        """Accept again: there may be a free descriptor."""
        while self.paused:
            self._scheduler.change(self.paused.pop(), LISTEN)

    def close_longest_parked(self) -> bool:
        """Close the connection that has waited longest, in a flood a silent one; return if one did."""
        for conn in self.parked:
            self.close(conn)
            return True
        return False

    def limit_idle_seconds(self, seconds: float) -> None:
        """Close idle connections after *seconds* at the latest, those that are idle now included."""
        self._idle_seconds = min(seconds, self._idle_seconds)
        latest = monotonic() + self._idle_seconds
        for conn in self.parked:
            if conn.phase is IDLE:
                conn.deadline = min(conn.deadline, latest)

    def sweep(self) -> list[ClientConnection]:
        """Return the connections whose deadline has passed; close the longest parked if all hold too much."""
        now, parked = monotonic(), list(self.parked)
        excess = sum(conn.held for conn in self.open) - BUFFER_BUDGET
        for conn in parked:
            if excess > 0 and (held := conn.held):
                excess -= held
                self.close(conn)
                if monotonic() > now + STEP_SECONDS:
                    break
        self.received = 0 if excess <= 0 else BUFFER_BUDGET + 1  # which has the next turn sweep again
        if excess <= 0:  # or a worker without descriptors would accept in vain in each turn
            self.resume_listeners()
        return [conn for conn in parked if conn.deadline < now and conn.phase is not CLOSED]
