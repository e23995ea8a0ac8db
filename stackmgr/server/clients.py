"""Accept, park and close the clients of one audience: managers or operators."""

import errno
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from math import inf
from time import monotonic

from gunicorn.sock import BaseSocket

from stackmgr.scheduler import READABLE
from stackmgr.server.client import Client, Service

# Bytes that all clients together make a worker hold; the memory limits of `deploy/` add the rest.
BUFFER_BUDGET = 134_217_728
ACCEPTS = 16  # in a turn
# Of several workers, an awake one would accept all 32 connections of a client before another wakes.
# So one that has more open than before, in this second, leaves the next to others: SHARE_SECONDS.
SHARED_BELOW = 32  # connections of a worker
SHARE_SECONDS = 0.001  # epoll counts milliseconds
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OF_A_CONNECTION = {  # accept(2) returns them for one that has failed meanwhile
    errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENONET,
    errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM, errno.EPROTO,
}  # fmt: skip
_RETRY_SECONDS = 0.1


class Clients:
    """At most *limit* clients of listeners *bound*; *expendable* ones free descriptors."""

    def __init__(
        self, worker: Service, bound: Iterable[BaseSocket], limit: int, expendable: "Clients | None" = None
    ) -> None:
        self.open: set[Client] = set()
        self.closable: dict[Client, None] = {}  # silent, receiving or sending, longest first
        self.is_queued = expendable is None
        self.idle_seconds = float(worker.cfg.keepalive)
        self._idle_until = inf  # of all, once the worker stops
        self._holding: dict[Client, None] = {}  # of these, those with a greenlet, longest first
        self._held = 0  # by all clients, those of the other audience too if that may close these
        self._worker, self._limit, self._expendable = worker, limit, expendable or self
        self._listeners: list[socket.socket] = [each.sock for each in bound]
        for listener in self._listeners:
            worker.scheduler.start(partial(self._listen, listener))

    def is_used(self, now: float) -> bool:
        """Whether a client may still be accepted, or has a connection; an idle one counts for a while."""
        idle = len(self.closable) - len(self._holding) if now >= self._idle_until else 0
        return bool(self._listeners) or len(self.open) > idle

    def _listen(self, listener: socket.socket) -> None:
        """Accept pending connections, or this worker's share; after `stop`, until none is pending."""
        scheduler, is_shared = self._worker.scheduler, self._worker.cfg.workers > 1
        most_open, second, accepted = 0, 0, ACCEPTS  # in the second of the last accept
        while accepted == ACCEPTS or self._idle_until == inf:  # fewer: none is pending now
            seconds = inf if self._idle_until == inf else SHARE_SECONDS
            scheduler.wait_for(listener.fileno(), READABLE, seconds)
            accepted = 0
            try:
                for _ in islice(self._accepted(listener), ACCEPTS):
                    accepted += 1
                    if (now := int(monotonic())) != second:
                        most_open, second = 0, now
                    if is_shared and most_open < len(self.open) < SHARED_BELOW:
                        most_open, accepted = len(self.open), ACCEPTS
                        scheduler.wait(SHARE_SECONDS)
                        break
            except BaseException as exc:  # noqa: BLE001 - it ends no worker
                if getattr(exc, "errno", 0) in _EXHAUSTED and self._expendable.make_room():
                    accepted = ACCEPTS
                    continue
                if not isinstance(exc, OSError):
                    self._worker.note_failure(exc)
                scheduler.wait(_RETRY_SECONDS)  # an immediate retry would only use the processor
        self._listeners.remove(listener)
        listener.close()

    def _accepted(self, listener: socket.socket) -> Iterator[None]:
        while True:
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as ex:
                if ex.errno in _OF_A_CONNECTION:
                    continue
                raise
            if len(self.open) >= self._limit:
                self.make_room()
            client = Client(sock, peer, listener.getsockname(), self, self._worker)
            client.place.is_accepted = not self.is_queued  # operators come first
            self.open.add(client)
            try:
                self.park(client)
            except BaseException:
                self.close(client)
                raise
            yield

    def stop(self, idle_seconds: float) -> None:
        """Accept pending connections and close the listeners; after *idle_seconds* the idle ones may end.

        A connection that arrives before the `close` is reset if no other process listens.
        """
        self._idle_until = monotonic() + idle_seconds
        for listener in self._listeners:
            self._worker.scheduler.forget(listener.fileno())

    def park(self, client: Client) -> None:
        """Let a silent client's next byte start a greenlet."""
        self.count(client, 0)
        self.closable[client] = None
        seconds = client.idle_until - monotonic()
        self._worker.scheduler.park(client.serve, client.fd, READABLE, seconds, client.lane)

    def end_wait(self, client: Client) -> None:
        """Let a client not be closed for others.  What it holds stays counted."""
        self.closable.pop(client, None)
        self._holding.pop(client, None)

    def hold(self, client: Client) -> None:
        """Let a client be suspended, and closed for others until `end_wait`."""
        self.closable.setdefault(client)
        self._holding.setdefault(client)
        self.count(client, client.size)

    def count(self, client: Client, size: int) -> None:
        """Count what a client holds; over budget, close those that have held something for longest."""
        expendable = self._expendable
        expendable._held += size - client.held
        client.held = size
        while expendable._held > BUFFER_BUDGET and expendable._holding:
            expendable.close(next(iter(expendable._holding)))

    def make_room(self) -> bool:
        """Close who is closable for longest, in a flood a silent one; return whether there was one."""
        if (client := next(iter(self.closable), None)) is not None:
            self.close(client)
        return client is not None

    def close(self, client: Client) -> None:
        """Close a connection; its greenlet, if suspended, is resumed."""
        if client.is_open:
            client.is_open = False
            self.end_wait(client)
            self.count(client, 0)
            client.clear()
            self.open.remove(client)
            self._worker.scheduler.forget(client.fd)
            client.sock.close()
