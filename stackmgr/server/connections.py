"""The connections of a worker: which of them wait, for what, and until when."""

import os
import select
import socket
from collections.abc import Callable, Iterator
from time import monotonic

from stackmgr.server import DRAINING, IDLE, READING, WRITING
from stackmgr.server.connection import DRAIN_SECONDS, READ_DEADLINE, WRITE_DEADLINE, ClientConnection

INBOX_BUDGET = 134_217_728  # bytes of unfinished requests held at once, in one process
MAX_EVENTS = 4096
READ = select.EPOLLIN | select.EPOLLONESHOT
WRITE = select.EPOLLOUT | select.EPOLLONESHOT


class HttpConnections:
    """All open connections, and the epoll instance in which those without an owner are parked.

    Every descriptor is armed for one event. The thread that then takes the connection out of `parked`
    owns it: `dict.pop` is atomic, so of the request thread and the main thread one gets it.
    """

    def __init__(self, keepalive: float) -> None:
        self.epoll = select.epoll()
        self.open: set[ClientConnection] = set()
        self.parked: dict[int, ClientConnection] = {}  # in the order of parking
        self.paused: list[int] = []  # listeners that are not watched while descriptors are exhausted
        self.marker = os.eventfd(1)  # always readable: see `probe_queue`
        self.marker_is_queued = False
        self.epoll.register(self.marker, 0)
        self._idle_seconds = keepalive

    def add(self, conn: ClientConnection) -> None:
        """Watch a new connection."""
        self.open.add(conn)
        conn.phase, conn.deadline = IDLE, monotonic() + READ_DEADLINE
        try:
            self.epoll.register(conn.fd, 0)
            self.park(conn)
        except BaseException:
            self.close(conn)
            raise

    def park(self, conn: ClientConnection) -> None:
        """Let the connection wait for its next event. Its owner must not touch it afterwards."""
        events = READ
        if conn.outbox.size:
            phase, seconds, events = WRITING, WRITE_DEADLINE, WRITE
        elif conn.closing:
            phase, seconds = DRAINING, DRAIN_SECONDS
            if conn.phase is not DRAINING:
                conn.sock.shutdown(socket.SHUT_WR)
        else:
            if conn.has_partial_request:
                phase, seconds = READING, READ_DEADLINE
            else:
                phase, seconds = IDLE, self._idle_seconds
            if conn.yielded:
                events = READ | WRITE  # writable at once: it queues up behind the others
        if phase is not conn.phase:  # a deadline is for the whole phase: a trickle does not move it
            conn.phase, conn.deadline = phase, monotonic() + seconds
            if phase is WRITING:
                conn.unread = conn.count_unread()
        conn.events, conn.ready_since = events, 0.0
        self.parked[conn.fd] = conn
        self._watch(conn)

    def _watch(self, conn: ClientConnection) -> None:
        """Watch a parked connection, or the one that has got its descriptor since the caller looked."""
        self.arm(conn.fd, conn.events)
        found = self.parked.get(conn.fd)
        if found is not None and found is not conn:
            self._watch(found)

    def arm(self, fd: int, events: int) -> None:
        """Watch a descriptor for one event."""
        try:
            self.epoll.modify(fd, events)
        except OSError:  # a stopping worker has unregistered it, or the sweep has just closed it
            pass

    def probe_queue(self) -> bool:
        """Return whether greenlets have taken all that was ready at the last call. If so, queue a marker.

        To look at each connection that waits would pass the interpreter lock on once for each. So the
        marker goes through the queue, and only while it is stuck they are looked at.
        """
        if self.marker_is_queued:
            return False
        self.marker_is_queued = True
        self.arm(self.marker, READ)
        return True

    def poll_waiting(self) -> tuple[list[ClientConnection], list[int]]:
        """Return the connections that are ready and not taken by a greenlet yet, and the other descriptors.

        The connections keep their place in the queue and remember since when they have been waiting.
        """
        events = self.epoll.poll(0, MAX_EVENTS)
        now = monotonic()
        waiting, others = [], []
        for fd, _ in events:
            conn = self.parked.get(fd)
            if fd == self.marker:
                self.arm(fd, READ)
            if conn is None:
                others.append(fd)
                continue
            conn.ready_since = conn.ready_since or now
            waiting.append(conn)
            self._watch(conn)
        return waiting, others

    def take_overdue(self, waiting: list[ClientConnection], seconds: float) -> Iterator[ClientConnection]:
        """Claim those of *waiting* that have been ready for longer than *seconds*, one after the other."""
        latest = monotonic() - seconds

        def is_overdue(conn: ClientConnection) -> bool:  # parking resets `ready_since`
            return 0.0 < conn.ready_since < latest and conn.phase in (IDLE, READING)

        for conn in waiting:
            if self.claim(conn, is_overdue):
                yield conn

    def claim(self, conn: ClientConnection, applies: Callable[[ClientConnection], bool]) -> bool:
        """Become the owner of a connection if it is parked and *applies* to it.

        A greenlet may have served and parked it again since the caller looked at it.
        """
        if not applies(conn):
            return False
        taken = self.parked.pop(conn.fd, None)
        if taken is conn and applies(conn):
            return True
        if taken is not None:  # or another connection has that number now
            self.park(taken)
        return False

    def close(self, conn: ClientConnection) -> None:
        """Close a connection that the caller owns."""
        if self.parked.get(conn.fd) is conn:  # parking it failed
            del self.parked[conn.fd]
        self.open.discard(conn)
        conn.sock.close()
        conn.outbox.clear()  # the unread rest of a page may be large, and outlive the connection in a cycle
        if self.paused:
            self.resume_listeners()

    def resume_listeners(self) -> None:
        """Accept again: there may be a free descriptor."""
        try:
            while True:
                self.arm(self.paused.pop(), READ)
        except IndexError:
            pass

    def close_longest_parked(self) -> bool:
        """Close the connection that has waited longest, in a flood a silent one; return if one did."""
        for conn in list(self.parked.values())[:1]:
            deadline = conn.deadline
            if self.claim(conn, lambda conn: conn.deadline == deadline):  # noqa: B023 - called at once
                self.close(conn)
                return True
        return False

    def limit_idle_seconds(self, seconds: float) -> None:
        """Close idle connections after *seconds* at the latest, those that are idle now included."""
        self._idle_seconds = min(seconds, self._idle_seconds)
        for conn in list(self.parked.values()):
            if conn.phase is IDLE:
                conn.deadline = min(conn.deadline, monotonic() + self._idle_seconds)

    def take_expired(self) -> list[ClientConnection]:
        """Claim the connections whose deadline has passed; close the longest parked if they hold too much."""
        now = monotonic()
        parked = list(self.parked.values())
        excess = sum(len(conn.inbox) for conn in parked) - INBOX_BUDGET
        expired = []
        for conn in parked:
            if self.claim(conn, lambda conn: conn.deadline < now):
                expired.append(conn)
            elif excess > 0 and (held := len(conn.inbox)) and self.claim(conn, lambda conn: bool(conn.inbox)):
                excess -= held
                self.close(conn)
        return expired
