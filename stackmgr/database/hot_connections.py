"""The connections in frequent use, in front of the pool of a process, and those who wait for one."""

import threading
import time
from collections import deque
from contextlib import suppress

from stackmgr.database.connection import DatabaseConnection
from stackmgr.scheduler import Signal

HOT_SECONDS = 1.0


class Waiter:
    """A request in line: `woken` is set once it has a connection, or none can be had because of *failure*."""

    __slots__ = ("connection", "failure", "woken")

    def __init__(self) -> None:
        self.connection: DatabaseConnection | None = None
        self.failure: BaseException | None = None
        self.woken = Signal()


class HotConnections:
    """The connections outside the pool: in a session, or kept here between two requests.

    The connection released last is acquired first, because its server process is still warm.  Where none is
    kept, requests wait in line.  (The pool's own queue costs a request more: create over 1 ms took 0.74 ms of
    CPU, not 0.54.)  Any thread may call this.  The invariants:

    - Each connection is in one place: in a session, here, on its way out of the pool, or in the pool, which
      counts the others as checked out.  They and the room are *size* together.
    - A connection, never room, is what a request gets: the first in line, or one that finds a connection kept
      here, which means that the line is empty.  So no request is overtaken, and none has to pass room on.
    - A request that leaves the line keeps the connection it has received.  If it fails, the next one gets it.
    - Whoever makes room, joins the line or ends a check-out then calls `take_room`, and follows each True by
      `end_check_out`.  So while there is room and a thread can be started, the line has its check-outs.
    - None that is in use stays outside for longer than HOT_SECONDS: the pool sees its age.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._room = size  # how many more may be checked out of the pool
        self._check_outs = 0  # under way, for those in line
        self._kept: list[DatabaseConnection] = []
        self._line: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def acquire(self) -> DatabaseConnection | Waiter:
        """Return a kept connection, or a place in the line."""
        with self._lock:
            if self._kept:
                return self._kept.pop()
            waiter = Waiter()
            self._line.append(waiter)
            return waiter

    def leave(self, waiter: Waiter) -> DatabaseConnection | None:
        """Remove *waiter* from the line; return the connection that it has received, or None."""
        with self._lock:
            with suppress(ValueError):
                self._line.remove(waiter)
            return waiter.connection

    def keep(self, connection: DatabaseConnection) -> bool:
        """Pass *connection* to the first in line, or keep it; False if it is closed or too long outside."""
        if connection.closed or time.monotonic() - connection.acquired_at > HOT_SECONDS:
            return False
        with self._lock:
            self._hand_on(connection)
        return True

    def _hand_on(self, connection: DatabaseConnection) -> None:
        if self._line:
            waiter = self._line.popleft()
            waiter.connection = connection
            waiter.woken.set()
        else:
            self._kept.append(connection)

    def make_room(self) -> None:
        """Note that a connection is in the pool again."""
        with self._lock:
            self._room += 1

    def take_room(self) -> bool:
        """Take room if the line needs a connection; if True, check one out and call `end_check_out`."""
        with self._lock:
            if not self._room or self._check_outs >= len(self._line):
                return False
            self._room -= 1
            self._check_outs += 1
            return True

    def end_check_out(
        self, connection: DatabaseConnection | None, failure: BaseException | None = None
    ) -> None:
        """Pass on the connection that was checked out, if any.  A *failure* ends the wait of all in line."""
        with self._lock:
            self._check_outs -= 1
            if connection is None:
                self._room += 1
            else:
                self._hand_on(connection)
            while failure is not None and self._line:
                waiter = self._line.popleft()
                waiter.failure = failure
                waiter.woken.set()

    def take_all(self) -> list[DatabaseConnection]:
        """Return the kept connections, which the caller must return to the pool."""
        with self._lock:
            kept, self._kept = self._kept, []
        return kept
