"""The gunicorn worker: threads that share one epoll, none of which ever waits for a client.

Why not gthread: there, four half-sent requests stop a worker, a silent connection costs a thread for seconds,
a closing one blocks the main loop, and the server's own errors are HTML that repeats the client's bytes. Here
a connection waits in the epoll, owned by nobody, until there is something to do; the thread that takes the
event parses, calls the application and answers, so that no queue lies between the poller and the work. Only
a thread with a seat does so, and an application gives it up before it waits for long: see `seats`.

The main thread serves nobody. It beats for the arbiter, ends connections whose deadline has passed and drives
the graceful stop. The beat says that this process runs, has its parent and can take the interpreter lock. It
does not say that the threads get on: a request being served has no deadline here, the application's own
time-outs bound it.
"""

import os
import select
import socket
import threading
from contextlib import suppress
from time import monotonic, sleep
from types import FrameType
from typing import Any

from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.server.connection import (
    DRAIN_SECONDS,
    READ_DEADLINE,
    WRITE_DEADLINE,
    ClientConnection,
    Disconnected,
)
from stackmgr.server.handler import RequestHandler
from stackmgr.slots import RunSlots, give_up

SWEEP_SECONDS = 0.5
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
# Who has just accepted is awake and would accept the next ones too, all 32 of a client's, while the other
# workers are still waking up. So it serves what else it has, or waits a moment, before it accepts again.
ACCEPT_BACKOFF_SECONDS = 0.001
COURTEOUS_BELOW = 32  # connections: beyond, new ones would wait long behind the requests of the others
ACCEPTS = 64  # at once, then
INBOX_BUDGET = 134_217_728  # bytes of unfinished requests held at once, in one process
READ = select.EPOLLIN | select.EPOLLONESHOT
WRITE = select.EPOLLOUT | select.EPOLLONESHOT


# What makes gunicorn's own parser more lenient than RFC 9112, or believe headers; this worker's never is.
LENIENT = (
    "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
    "permit_unconventional_http_version", "casefold_http_method",
)  # fmt: skip


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`. It speaks HTTP/1, strictly, and heeds what gthread does but for what is refused."""

    alive: bool

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Refuse at start what this worker does not do, rather than do it differently."""
        if cfg.is_ssl:
            raise RuntimeError("this worker does not speak TLS: unset keyfile and certfile, use a proxy")
        if cfg.protocol != "http" or cfg.proxy_protocol != "off":
            raise RuntimeError("this worker speaks plain HTTP/1 only: unset protocol and proxy_protocol")
        if any(cfg.settings[name].get() for name in LENIENT) or cfg.header_map != "drop":
            raise RuntimeError(f"this worker is strict: unset {', '.join(LENIENT)} and header_map")
        if cfg.preload_app:
            raise RuntimeError("this worker opens connections that cannot be shared: unset preload_app")

    def init_process(self) -> None:
        """Prepare what `run` needs; the base class then loads the application and calls `run`."""
        self.caller = RequestHandler(self)
        self.epoll = select.epoll()
        self.listeners: dict[int, socket.socket] = {bound.fileno(): bound.sock for bound in self.sockets}
        self.accepting = threading.Lock()
        self.paused: list[int] = []
        self.parked: dict[int, ClientConnection] = {}  # in the order of parking
        self.connections: set[ClientConnection] = set()
        self.seats = RunSlots()
        self.limits = {
            "idle": float(self.cfg.keepalive),
            "reading": READ_DEADLINE,
            "writing": WRITE_DEADLINE,
            "draining": DRAIN_SECONDS,
        }
        super().init_process()

    def handle_usr1(self, sig: int, frame: FrameType | None) -> None:
        """Reopen the logs, `wsgi.errors` among them."""
        super().handle_usr1(sig, frame)
        self.caller.reopen()

    def count_request(self) -> None:
        """Retire after `max_requests`."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            os.write(self.PIPE[1], b".")

    # The main thread.

    def run(self) -> None:
        """Start the threads and watch over them until told to stop."""
        for number in range(self.cfg.threads):
            threading.Thread(target=self._loop, name=f"worker-{number}", daemon=True).start()
        for fd in self.listeners:
            self.epoll.register(fd, READ)
        wake = select.poll()
        wake.register(self.PIPE[0], select.POLLIN)
        while self.alive and self.ppid == os.getppid():
            self.notify()
            if wake.poll(SWEEP_SECONDS * 1000):
                os.read(self.PIPE[0], 4096)
            self._sweep()
            while self.paused:
                self.epoll.modify(self.paused.pop(), READ)
        self._stop()

    def _stop(self) -> None:
        """Take no more connections, finish what is in flight, answer latecomers with `Connection: close`."""
        self.alive = False
        with self.accepting:  # or a thread would hold a connection that nobody knows of yet
            while self.listeners:
                self._leave(self.listeners.popitem()[1])
        end = monotonic() + self.cfg.graceful_timeout
        self.limits["idle"] = linger = min(STOP_LINGER, self.limits["idle"])
        for conn in list(self.parked.values()):
            if conn.phase == "idle":
                conn.deadline = min(conn.deadline, monotonic() + linger)
        while self.connections and monotonic() < end:
            self.notify()
            sleep(0.05)
            self._sweep()

    def _leave(self, listener: socket.socket) -> None:
        """Take the connections that wait at a listener and close it, or they would be reset at the end.

        Between the last `accept` and the `close` the kernel may still make a connection, and resets it if no
        other process holds the listener; under systemd's socket unit, and at a reload, one does.
        """
        self.epoll.unregister(listener.fileno())
        with suppress(OSError):
            while True:
                self._admit(listener)
        listener.close()

    def _sweep(self) -> None:
        """End parked connections whose deadline has passed, and the longest parked if they hold too much."""
        now = monotonic()
        parked = list(self.parked.values())
        excess = sum(len(conn.inbox) for conn in parked) - INBOX_BUDGET
        for conn in parked:
            if conn.deadline < now:
                if self._claim(conn):
                    self._expire(conn)
            elif excess > 0 and conn.inbox:
                excess -= len(conn.inbox)
                if self._claim(conn):
                    self._close(conn)

    def _claim(self, conn: ClientConnection) -> bool:
        """Become the owner of a parked connection; `dict.pop` is atomic, so of two takers one gets it."""
        taken = self.parked.pop(conn.fd, None)
        if taken is not None and taken is not conn:  # another connection has got the number meanwhile
            self._park(taken)
        return taken is conn

    def _expire(self, conn: ClientConnection) -> None:
        if conn.phase != "reading":
            self._close(conn)
            return
        try:
            conn.refuse("400 Bad Request", "invalid_request", "The request did not arrive in time.")
            self._park(conn)
        except (Disconnected, OSError):
            self._close(conn)

    # The threads.

    def _loop(self) -> None:
        """Take one event after the other; this never returns."""
        try:
            self._take_events()
        finally:
            give_up()  # whatever it was that ended this thread, the others go on

    def _take_events(self) -> None:
        poll, parked, seats = self.epoll.poll, self.parked, self.seats
        listener: int | None = None  # one not watched for the moment
        while True:
            if listener is None:  # or nobody would watch it until there is a seat again
                seats.acquire()
            events = poll(-1 if listener is None else ACCEPT_BACKOFF_SECONDS, 1)
            if listener is not None:
                self._arm(listener, READ)
                listener = None
            for fd, _ in events:
                conn = parked.pop(fd, None)
                if conn is not None:
                    self._own(conn)
                elif fd in self.listeners:
                    listener = self._accept(fd)

    def _accept(self, fd: int) -> int | None:
        """Take what waits. Return the listener if it took one and leaves the next to another process."""
        with self.accepting:
            listener = self.listeners.get(fd)
            if listener is None:  # left meanwhile
                return None
            try:
                for _ in range(ACCEPTS):
                    self._admit(listener)
                    if len(self.connections) < COURTEOUS_BELOW:
                        return fd
            except (BlockingIOError, ConnectionAbortedError):
                pass
            except OSError:  # out of descriptors, most likely: trying again at once would burn the processor
                self._make_room()
                self.paused.append(fd)
                return None
        self._arm(fd, READ)
        return None

    def _admit(self, listener: socket.socket) -> None:
        """Accept one connection and watch it."""
        sock, peer = listener.accept()
        conn = ClientConnection(sock, peer, listener.getsockname())
        if len(self.connections) >= self.cfg.worker_connections:
            self._make_room()
        self.connections.add(conn)
        conn.phase, conn.deadline = "idle", monotonic() + READ_DEADLINE
        try:
            self.epoll.register(conn.fd, 0)
        except OSError:  # the system's bound on watches
            self._close(conn)
            return
        self.parked[conn.fd] = conn
        self._arm(conn.fd, READ)

    def _arm(self, fd: int, events: int) -> None:
        try:
            self.epoll.modify(fd, events)
        except OSError:  # a stopping worker has unregistered it, or the sweep has just closed it
            pass

    def _make_room(self) -> None:
        """Close the connection that has waited longest: with a flood of silent ones, one of those."""
        for conn in list(self.parked.values())[:1]:
            if self._claim(conn):
                self._close(conn)

    def _own(self, conn: ClientConnection) -> None:
        """Take a connection as far as it goes without waiting, then park or close it."""
        try:
            if conn.phase != "draining":
                self.caller.progress(conn)
            elif not conn.drain():
                self._close(conn)
                return
            self._park(conn)
        except (Disconnected, OSError):
            self._close(conn)

    def _park(self, conn: ClientConnection) -> None:
        """Give the connection up until something happens to it. Nothing may touch it afterwards."""
        events = READ
        if conn.outbox:
            phase, events = "writing", WRITE
        elif conn.closing:
            phase = "draining"
            if conn.phase != phase:
                conn.sock.shutdown(socket.SHUT_WR)
        elif conn.turn_over:
            phase, events = "idle", READ | WRITE  # writable at once: it queues up behind the others
        else:
            phase = "reading" if conn.inbox or conn.request else "idle"
        if phase != conn.phase:  # a deadline is for the whole phase: a trickle does not move it
            conn.phase, conn.deadline = phase, monotonic() + self.limits[phase]
        self.parked[conn.fd] = conn
        self._arm(conn.fd, events)

    def _close(self, conn: ClientConnection) -> None:
        self.connections.discard(conn)
        conn.sock.close()
