"""The gunicorn worker: threads that share one epoll, none of which ever waits for a client.

Why not gthread: there, four half-sent requests stop a worker, a silent connection costs a thread for seconds,
a closing one blocks the main loop, and the server's own errors are HTML that repeats the client's bytes. Here
a connection waits in the epoll, owned by nobody, until there is something to do; the thread that takes the
event parses, calls the application and answers, so that no queue lies between the poller and the work.

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
from datetime import timedelta
from time import monotonic, sleep
from types import FrameType
from typing import Any

from gunicorn.http.wsgi import base_environ
from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.edge.connection import (
    DRAIN_SECONDS,
    HEAD_LIMIT,
    READ_DEADLINE,
    WRITE_DEADLINE,
    Connection,
    Ended,
    Gone,
)
from stackmgr.edge.request import BadRequest, Limits, Request
from stackmgr.edge.response import Response

TURN = 16  # pipelined requests served before the other connections have their turn
SWEEP_SECONDS = 0.5
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
INBOX_BUDGET = 134_217_728  # bytes of unfinished requests held at once, in one process
READ = select.EPOLLIN | select.EPOLLONESHOT
WRITE = select.EPOLLOUT | select.EPOLLONESHOT


# What makes gunicorn's own parser more lenient than RFC 9112, or believe headers; this worker's never is.
LENIENT = (
    "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
    "permit_unconventional_http_version", "casefold_http_method",
)  # fmt: skip


def own_hook(cfg: Any, name: str) -> Any:
    """Return a hook if the operator has set one: gunicorn's defaults only log what nobody reads."""
    setting = cfg.settings[name]
    return None if setting.get() is setting.default else setting.get()


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`. It speaks HTTP/1, strictly, and heeds what gthread does but for what is refused."""

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
        cfg = self.cfg
        self._make_base_environ()
        # Asked once: `cfg.name` walks through settings objects.
        self.request_limits = Limits(
            min(cfg.limit_request_line or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_fields or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_field_size or HEAD_LIMIT, HEAD_LIMIT),
        )
        self.keeps_alive = bool(cfg.keepalive)
        self.pre_request = own_hook(cfg, "pre_request")
        self.post_request = own_hook(cfg, "post_request")
        # gunicorn says yes as soon as logging is configured at all, and would gather 60 fields for nobody.
        self.logs_access = bool(self.log.access_log.hasHandlers() or cfg.statsd_host)
        self.epoll = select.epoll()
        self.listeners: dict[int, socket.socket] = {bound.fileno(): bound.sock for bound in self.sockets}
        self.accepting = threading.Lock()
        self.paused: list[int] = []
        self.parked: dict[int, Connection] = {}  # in the order of parking
        self.connections: set[Connection] = set()
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
        self._make_base_environ()

    def _make_base_environ(self) -> None:
        self.base_environ = {
            **base_environ(self.cfg), "wsgi.multithread": True, "wsgi.url_scheme": "http", "SCRIPT_NAME": ""
        }  # fmt: skip

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
                sock, peer = listener.accept()
                self._admit(Connection(sock, peer, listener.getsockname()))
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

    def _claim(self, conn: Connection) -> bool:
        """Become the owner of a parked connection; `dict.pop` is atomic, so of two takers one gets it."""
        taken = self.parked.pop(conn.fd, None)
        if taken is not None and taken is not conn:  # another connection has got the number meanwhile
            self._park(taken)
        return taken is conn

    def _expire(self, conn: Connection) -> None:
        if conn.phase != "reading":
            self._close(conn)
            return
        try:
            conn.refuse("400 Bad Request", "invalid_request", "The request did not arrive in time.")
            self._park(conn)
        except (Gone, OSError):
            self._close(conn)

    # The threads.

    def _loop(self) -> None:
        poll, parked = self.epoll.poll, self.parked
        while True:
            for fd, _ in poll(-1, 1):
                conn = parked.pop(fd, None)
                if conn is not None:
                    self._own(conn)
                elif fd in self.listeners:
                    with self.accepting:
                        self._accept(fd)

    def _accept(self, fd: int) -> None:
        """Take one connection: the next may go to a process with less to do."""
        listener = self.listeners.get(fd)
        if listener is None:  # left meanwhile
            return
        try:
            sock, peer = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError:  # out of descriptors, most likely: trying again at once would only burn the processor
            self._make_room()
            self.paused.append(fd)
            return
        else:
            self._admit(Connection(sock, peer, listener.getsockname()))
        self._arm(fd, READ)

    def _admit(self, conn: Connection) -> None:
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

    def _own(self, conn: Connection) -> None:
        """Take a connection as far as it goes without waiting, then park or close it."""
        try:
            if conn.phase != "draining":
                self._progress(conn)
            elif not conn.drain():
                self._close(conn)
                return
            self._park(conn)
        except (Gone, OSError):
            self._close(conn)

    def _progress(self, conn: Connection) -> None:
        served = 0
        try:
            conn.flush()
            while not conn.outbox and not conn.closing and served < TURN:
                request = conn.next_request(self.request_limits) if conn.inbox or conn.request else None
                if request is not None:
                    self._answer(conn, request)
                    served += 1
                elif served or not conn.fill():
                    break
            conn.turn_over = served == TURN
        except Gone:
            raise
        except Ended:
            if not conn.inbox and not conn.request:
                raise Gone from None
            conn.refuse("400 Bad Request", "invalid_request", "The request ended early.")
        except BadRequest as exc:
            self.log.warning("Refused a request from %s: %s", conn.peer, exc)
            conn.refuse("400 Bad Request", "invalid_request", "The request is not valid HTTP.")
        except (Exception, SystemExit) as exc:  # noqa: BLE001  # the unexpected is a 500, the loop goes on
            self._failed(conn, exc)

    def _failed(self, conn: Connection, exc: BaseException) -> None:
        """Answer 500 if the answer has not begun; log the type and the place, not the text."""
        trace = exc.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        self.log.error("Error handling a request: %s at %s", type(exc).__name__, place)
        if conn.sent:
            raise Gone from exc  # a cut-off answer must look cut off
        conn.refuse("500 Internal Server Error", "internal_error", "The server failed.")

    def _answer(self, conn: Connection, request: Request) -> None:
        conn.phase, conn.sent = "", False
        response = Response(request, conn.put)
        environ = self._environ(conn, request)
        try:
            if self.pre_request:
                self.pre_request(self, request)
            self._count()
            self._call(conn, response, environ)
            conn.closing = response.must_close
        finally:
            if self.post_request:
                self.post_request(self, request, environ, response)

    def _environ(self, conn: Connection, request: Request) -> dict[str, Any]:
        return {
            **self.base_environ,
            **conn.environ,
            **request.environ,
            "wsgi.input": request.body,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "RAW_URI": request.uri,
            "SERVER_PROTOCOL": f"HTTP/1.{request.version[1]}",
        }

    def _count(self) -> None:
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            os.write(self.PIPE[1], b".")

    def _call(self, conn: Connection, response: Response, environ: dict[str, Any]) -> None:
        started = monotonic()
        result = self.wsgi(environ, response.start_response)
        try:
            if not self.alive or not self.keeps_alive:
                response.must_close = True
            for item in result:
                conn.make_room()
                response.write(item)
                conn.flush()
            response.end()
            conn.flush()
        finally:
            if self.logs_access:
                self.log.access(response, response.request, environ, timedelta(seconds=monotonic() - started))
            if hasattr(result, "close"):
                result.close()

    def _park(self, conn: Connection) -> None:
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

    def _close(self, conn: Connection) -> None:
        self.connections.discard(conn)
        conn.sock.close()
