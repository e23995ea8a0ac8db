"""The gunicorn worker: its main thread receives, queues and serves all requests.

DECISIONS.md says why gunicorn's own workers are not used. In each turn the thread accepts connections, parses
a part of what has arrived, and starts requests, each in a greenlet; while one waits, others run: see
`scheduler`. From time to time it rejects requests that have waited too long, ends connections whose deadline
has passed and sends the heartbeat: without one for gunicorn's `timeout`, the master replaces the worker.
A request that only waits is bounded by the application's own time-outs.

Requests of the operator's listener do not stand in the queue: `/live` waits for no manager's request.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from math import ceil, inf
from random import randint
from time import monotonic, sleep
from types import FrameType
from typing import Any

from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.scheduler import READABLE, Scheduler
from stackmgr.server import CLOSED, QUEUED, SERVING
from stackmgr.server.connection import ClientConnection, Disconnected
from stackmgr.server.connections import BUFFER_BUDGET, STEP_SECONDS, HttpConnections
from stackmgr.server.handler import RequestHandler, log_failure
from stackmgr.server.listeners import Listeners
from stackmgr.server.queue import RequestQueue
from stackmgr.server.request import ReceivedRequest

SWEEP_SECONDS = 0.5
LOOK_SECONDS = 0.1  # how exactly the queue is timed
PARSE_SECONDS = 0.001  # of a turn
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
BOOT_PAUSE = 5.0  # seconds before the master replaces a worker that could not boot
ADMIN_CONNECTIONS = 64  # of the operator's listener
RETRY_SPREAD_SECONDS = 4  # clients that are rejected together must not return together

# What makes gunicorn's own parser more lenient than RFC 9112, or believe headers; this worker's never is.
LENIENT = (
    "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
    "permit_unconventional_http_version", "casefold_http_method",
)  # fmt: skip
UNUSED = ("accesslog", "statsd_host", "pre_request", "post_request")
Entry = tuple[ClientConnection, ReceivedRequest]
Step = Callable[[ClientConnection], ReceivedRequest | None]


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`: strict HTTP/1, and the settings of gthread except those it rejects."""

    alive: bool
    queue_seconds = 0.0  # that a request may wait for a greenlet before it is rejected; 0: without limit
    must_exit = False  # whatever a request does with the exception of a signal's handler
    must_reopen = False  # the logs
    admin_port = 0  # of the operator's listener, which alone has it

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Reject settings that this worker does not support. Raises RuntimeError."""
        if cfg.is_ssl:
            raise RuntimeError("this worker does not speak TLS: unset keyfile and certfile, use a proxy")
        if cfg.protocol != "http" or cfg.proxy_protocol != "off":
            raise RuntimeError("this worker speaks plain HTTP/1 only: unset protocol and proxy_protocol")
        if any(cfg.settings[name].get() for name in LENIENT) or cfg.header_map != "drop":
            raise RuntimeError(f"this worker is strict: unset {', '.join(LENIENT)} and header_map")
        if cfg.preload_app:
            raise RuntimeError("this worker opens connections that cannot be shared: unset preload_app")
        if unused := [name for name in UNUSED if cfg.settings[name].get() != cfg.settings[name].default]:
            raise RuntimeError(f"this worker has no access log and no such hooks: unset {', '.join(unused)}")

    def init_process(self) -> None:
        """Prepare what `run` needs; the base class then loads the application and calls `run`."""
        try:
            self._prepare()
            super().init_process()
        except Exception:
            if self.booted:
                raise
            # gunicorn's exit statuses for this end the master, and the workers that serve.
            self.log.exception("This worker cannot boot; in %g s another is started", BOOT_PAUSE)
            end = monotonic() + BOOT_PAUSE
            while self.alive and monotonic() < end:
                sleep(LOOK_SECONDS)
            sys.exit(1)

    def _prepare(self) -> None:
        self.scheduler = scheduler = Scheduler()
        keepalive = float(self.cfg.keepalive)
        self.connections = HttpConnections(scheduler, self.cfg.worker_connections, keepalive)
        self.admin = HttpConnections(scheduler, ADMIN_CONNECTIONS, keepalive)
        self.queue: RequestQueue[Entry] = RequestQueue(self.cfg.threads)
        self.handler = RequestHandler(self)
        sockets: tuple[list[Any], list[Any]] = ([], [])
        for listener in self.sockets:
            name = listener.getsockname()
            sockets[isinstance(name, tuple) and name[1] == self.admin_port].append(listener)
        self.listeners = (
            Listeners(sockets[0], scheduler, self.queue, self.connections),
            # A manager's connection makes room for an operator's.
            Listeners(sockets[1], scheduler, self.queue, self.admin, expendable=self.connections),
        )
        self.stops_at = inf  # the end of the graceful time-out, once it stops
        self.next_look = self.next_sweep = self.next_warning = 0.0
        self.rejected = 0  # since the last warning

    def handle_usr1(self, sig: int, frame: FrameType | None) -> None:
        """Reopen the logs between two turns: a request may be writing now."""
        self.must_reopen, self.next_sweep = True, 0.0

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """End at once."""
        self.must_exit = True
        super().handle_quit(sig, frame)

    def handle_abort(self, sig: int, frame: FrameType | None) -> None:
        """End at once: the worker has sent no heartbeat."""
        self.must_exit = True
        super().handle_abort(sig, frame)

    def count_request(self) -> None:
        """Retire after `max_requests`."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def run(self) -> None:
        """Serve until a signal to stop."""
        gc.freeze()  # a full collection of all that has been loaded would stop the requests for 20 to 50 ms
        self.scheduler.watch(self.PIPE[0], READABLE, lambda _: os.read(self.PIPE[0], 4096))
        for listeners in self.listeners:
            listeners.watch()
        self.scheduler.run(self._turn, self._idle_seconds)

    def _turn(self) -> bool:
        """Do what is to be done now; return False at the end."""
        for listeners in self.listeners:
            if listeners.ready:
                self._guard(listeners.accept)
        self._parse()
        self._start_requests()
        now = monotonic()
        if not self.alive and self.stops_at == inf:
            self._guard(self._begin_stop, now)
        if self.queue.waiting and now >= self.next_look:
            self._guard(self._look_after_queue, now)
        if now >= self.next_sweep or self.connections.received > BUFFER_BUDGET:
            self._guard(self._sweep, now)
        return self.alive or (now < self.stops_at and bool(self.connections.open or self.admin.open))

    def _idle_seconds(self) -> float:
        if self.queue.has_next() or any(
            each.ready or each.continuing for each in (self.admin, self.connections)
        ):
            return 0.0
        if pauses := [listeners.pauses_until for listeners in self.listeners if listeners.ready]:
            return max(0.0, min(pauses) - monotonic())
        return max(0.0, (self.next_look if self.queue.waiting else self.next_sweep) - monotonic())

    def _parse(self) -> None:
        """Parse a part of what has arrived, first of those that have not had a turn yet, but for one."""
        end = monotonic() + PARSE_SECONDS
        if self.connections.continuing:
            self._guard(self._proceed, self.connections, self.connections.continuing.popleft())
        for connections in (self.admin, self.connections):
            while ready := connections.ready or connections.continuing:
                self._guard(self._proceed, connections, ready.popleft())
                if monotonic() > end:
                    return

    def _start_requests(self) -> None:
        """Start some of the requests that may run."""
        now = monotonic()
        end = now + STEP_SECONDS
        while now <= end and (entry := self.queue.take(now)) is not None:
            self._start(self.connections, *entry)
            now = monotonic()

    def _proceed(self, connections: HttpConnections, conn: ClientConnection) -> None:
        """Do what a connection is ready for; what comes while its request waits or runs is left for later."""
        conn.is_ready = False
        connections.received += 65536 if conn.request else 16384
        if conn.phase in (QUEUED, SERVING):
            connections.watch(conn, 0)
        elif conn.phase is not CLOSED:
            self._advance(connections, conn, self.handler.proceed)

    def _advance(self, connections: HttpConnections, conn: ClientConnection, step: Step) -> None:
        """Take a step with a connection, then queue the request that it returns, park it, or close it."""
        is_kept = False
        try:
            request = None
            try:
                request = step(conn)
            except Disconnected:
                raise
            except BaseException as exc:  # the unexpected is a 500, and no reason for the worker to end
                if self.must_exit:
                    raise
                self.handler.fail(conn, exc)
            if request is not None:
                self._add(connections, conn, request)
            else:
                connections.park(conn)
            is_kept = True
        except (Disconnected, OSError):
            pass
        finally:
            if not is_kept:
                connections.close(conn)

    def _add(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Let a complete request wait for its turn."""
        conn.phase = QUEUED
        connections.parked.pop(conn, None)
        if connections is self.admin:
            self._start(connections, conn, request)
            return
        key = request.environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
        rejected = self.queue.add(conn.place, key, (conn, request), monotonic())
        if rejected is not None:
            self._reject(*rejected)

    def _start(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Run a request in a greenlet until it waits."""
        conn.phase = SERVING
        self.scheduler.start(partial(self._guard, self._serve, connections, conn, request))

    def _serve(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        try:
            self._advance(connections, conn, partial(self.handler.respond, request=request))
        finally:
            conn.place.retry_after = 0
            self.queue.leave(conn.place)

    def _reject(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Let the application respond 503, which it does at once."""
        self.rejected += 1
        spread = randint(0, RETRY_SPREAD_SECONDS)  # noqa: S311 - no secret
        conn.place.retry_after = max(1, ceil(self.queue_seconds)) + spread
        self._start(self.connections, conn, request)

    def _guard(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call *call*; whatever it raises must not end the worker."""
        try:
            call(*arguments)
        except BaseException as exc:
            if self.must_exit:
                raise
            log_failure(self.log, exc)

    def _look_after_queue(self, now: float) -> None:
        """Reject the requests that have waited too long."""
        self.next_look = now + LOOK_SECONDS
        if self.queue_seconds:
            for entry in self.queue.take_overdue(now - self.queue_seconds):
                self._reject(*entry)
                if monotonic() > now + STEP_SECONDS:
                    self.next_look = 0.0
                    return

    def _sweep(self, now: float) -> None:
        """Send the heartbeat; look after deadlines, memory, the logs and the end."""
        self.next_sweep = now + (SWEEP_SECONDS if self.alive else LOOK_SECONDS)
        self.notify()
        if self.must_reopen:
            self.must_reopen = False
            super().handle_usr1(signal.SIGUSR1, None)
            self.handler.reopen()
        if self.ppid != os.getppid():
            self.alive = False
        for connections in (self.connections, self.admin):
            for conn in connections.sweep():
                self._advance(connections, conn, self.handler.expire)
                if monotonic() > now + STEP_SECONDS:
                    self.next_sweep = 0.0
                    break
        self._warn_of_rejections(now)

    def _begin_stop(self, now: float) -> None:
        """Close the listeners, finish what has arrived, close connections after later requests."""
        self.stops_at, self.next_sweep = now + self.cfg.graceful_timeout, 0.0
        for listeners in self.listeners:
            listeners.close()
        for connections in (self.connections, self.admin):
            connections.limit_idle_seconds(STOP_LINGER)

    def _warn_of_rejections(self, now: float) -> None:
        if self.rejected and now >= self.next_warning:
            self.log.warning(
                "Responded 503 to what could not be started within %g s; requests: %d",
                self.queue_seconds,
                self.rejected,
            )
            self.rejected, self.next_warning = 0, now + 1.0
