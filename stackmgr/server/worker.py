"""The gunicorn worker: one thread serves all requests, each in a greenlet, and none waits for a client.

DECISIONS.md says why gunicorn's own workers are not used. A connection waits in an epoll instance, owned by
no greenlet, until there is something to do. The greenlet that takes the event parses, calls the application
and responds; while it waits, others run: see `scheduler`.

The main thread rejects requests that have waited too long, ends connections whose deadline has passed and
runs the graceful stop. It sends the heartbeat as long as the request thread takes its turns: without one for
gunicorn's `timeout`, the master replaces the worker. A request that only waits is bounded by the
application's own time-outs.

The operator's listener is served in greenlets of its own, so that `/live` waits for no manager's request.
"""

import gc
import os
import select
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from types import FrameType
from typing import Any

from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.errors import RequestTimedOut
from stackmgr.scheduler import Scheduler
from stackmgr.server import DRAINING, IDLE, READING, WRITING
from stackmgr.server.connection import WRITE_DEADLINE, ClientConnection, Disconnected
from stackmgr.server.connections import READ, HttpConnections
from stackmgr.server.handler import RequestHandler, log_failure
from stackmgr.server.listeners import Listeners
from stackmgr.server.memory import ResponseMemory, keep_small_blocks

TICK_SECONDS = 0.1  # how exactly the queue is timed
SWEEP_SECONDS = 0.5
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
WAITING = 64  # requests that wait in a greenlet because others of their keys run: see `shares`
BOOT_PAUSE = 5.0  # seconds before the master replaces a worker that could not boot
ADMIN_CONNECTIONS = 64  # of the operator's listener

# What makes gunicorn's own parser more lenient than RFC 9112, or believe headers; this worker's never is.
LENIENT = (
    "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
    "permit_unconventional_http_version", "casefold_http_method",
)  # fmt: skip


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`: strict HTTP/1, and the settings of gthread except those it rejects."""

    alive: bool
    queue_seconds = 0.0  # that a request may wait for a greenlet before it is rejected; 0: without limit
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
                sleep(TICK_SECONDS)
            sys.exit(1)

    def _prepare(self) -> None:
        keep_small_blocks()
        keepalive = float(self.cfg.keepalive)
        self.connections, self.admin = HttpConnections(keepalive), HttpConnections(keepalive)
        self.memory = ResponseMemory(self.connections)
        self.handler = RequestHandler(self)
        sockets: tuple[list[Any], list[Any]] = ([], [])
        for listener in self.sockets:
            name = listener.getsockname()
            sockets[isinstance(name, tuple) and name[1] == self.admin_port].append(listener)
        limit, reserve = self.cfg.worker_connections, self.handler.wait_for_room
        self.listeners = Listeners(sockets[0], self.connections, limit, reserve)
        # Its capacity has no limits, and a manager's connection makes room for it.
        self.admin_listeners = Listeners(
            sockets[1], self.admin, ADMIN_CONNECTIONS, expendable=self.connections
        )
        handle = partial(self._handle_event, self.connections, self.listeners)
        number = self.cfg.threads + WAITING
        self.scheduler = Scheduler(self.connections.epoll, number, handle, self._room)
        handle = partial(self._handle_event, self.admin, self.admin_listeners)
        self.scheduler.add_urgent(self.admin.epoll, handle)
        self.next_sweep = 0.0
        self.next_warning = 0.0
        self.rejected = 0  # since the last warning

    def handle_usr1(self, sig: int, frame: FrameType | None) -> None:
        """Reopen the logs, `wsgi.errors` among them."""
        super().handle_usr1(sig, frame)
        self.handler.reopen()

    def count_request(self) -> None:
        """Retire after `max_requests`."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            os.write(self.PIPE[1], b".")

    # The main thread.

    def run(self) -> None:
        """Start the request thread and supervise it until a signal to stop."""
        gc.freeze()  # a full collection of all that has been loaded would stop the requests for 20 to 50 ms
        self.thread = threading.Thread(target=self.scheduler.run, name="requests", daemon=True)
        self.thread.start()
        self.listeners.watch()
        self.admin_listeners.watch()
        turns = 0
        wake = select.poll()
        wake.register(self.PIPE[0], select.POLLIN)
        while self.alive and self.ppid == os.getppid():
            turns = self._beat(turns)
            if wake.poll(TICK_SECONDS * 1000):
                os.read(self.PIPE[0], 4096)
            self._watch()
            if not self.thread.is_alive():
                self.log.error("The request thread has ended unexpectedly: this worker retires.")
                break
        self._stop()

    def _beat(self, turns: int) -> int:
        """Send the heartbeat if the request thread has taken more than *turns* turns; return their number."""
        if self.scheduler.turns != turns:
            self.notify()
        else:
            self.scheduler.wake()
        return self.scheduler.turns

    def _stop(self) -> None:
        """Close the listeners, finish what has arrived, close connections after later requests."""
        self.alive = False
        self.listeners.close()
        self.admin_listeners.close()
        end = monotonic() + self.cfg.graceful_timeout
        for connections in (self.connections, self.admin):
            connections.limit_idle_seconds(STOP_LINGER)
        turns = 0
        while (self.connections.open or self.admin.open) and self.thread.is_alive() and monotonic() < end:
            turns = self._beat(turns)
            sleep(0.05)
            self.next_sweep = 0.0
            self._watch()

    def _watch(self) -> None:
        """Look after the queue, and from time to time after deadlines and memory."""
        try:
            self._watch_queue()
            self._warn_of_rejections()
            if monotonic() >= self.next_sweep:
                self.next_sweep = monotonic() + SWEEP_SECONDS
                for connections in (self.connections, self.admin):
                    for conn in connections.take_expired():
                        self._advance(connections, conn, self._expire)
                    connections.resume_listeners()
                self.memory.enforce()
        except Exception as exc:  # noqa: BLE001 - one connection must not end the worker
            log_failure(self.log, exc)

    def _watch_queue(self) -> None:
        """Reject the requests that have waited too long; accept connections if all greenlets are busy."""
        if self.connections.probe_queue():
            return
        waiting, others = self.connections.poll_waiting()
        self.listeners.accept_for_busy_greenlets(others)
        if not self.queue_seconds:
            return
        for conn in self.connections.take_overdue(waiting, self.queue_seconds):
            self.rejected += 1
            self._advance(self.connections, conn, self.handler.reject)

    def _warn_of_rejections(self) -> None:
        if self.rejected and monotonic() >= self.next_warning:
            self.log.warning(
                "Responded 503 on %d connections: the requests could not be started within %g s",
                self.rejected,
                self.queue_seconds,
            )
            self.rejected, self.next_warning = 0, monotonic() + 1.0

    def _expire(self, conn: ClientConnection) -> None:
        """End a connection whose deadline has passed, unless it waits for a greenlet or a slow client."""
        if conn.phase in (IDLE, READING) and (conn.yielded or conn.has_input()):
            return
        if conn.phase is WRITING and conn.note_progress():
            conn.deadline = monotonic() + WRITE_DEADLINE
            return
        if conn.phase is not READING:
            raise Disconnected
        conn.send_error(RequestTimedOut)

    def _advance(
        self, connections: HttpConnections, conn: ClientConnection, step: Callable[[ClientConnection], None]
    ) -> None:
        """Run *step* on a connection that the caller owns, then park it, or close it if either fails."""
        is_parked = False
        try:
            step(conn)
            connections.park(conn)
            is_parked = True
        except (Disconnected, OSError):
            pass
        finally:
            if not is_parked:
                connections.close(conn)

    # The request thread.

    def _room(self) -> int:
        return self.handler.shares.free

    def _handle_event(self, connections: HttpConnections, listeners: Listeners, fd: int) -> None:
        """Handle an event of a connection or a listener."""
        try:
            conn = connections.parked.pop(fd, None)
            if conn is not None:
                step = ClientConnection.drain if conn.phase is DRAINING else self.handler.serve
                self._advance(connections, conn, step)
            elif fd == connections.marker:
                connections.marker_is_queued = False
            elif listeners.accept(fd) is not None:
                self.scheduler.defer(partial(connections.arm, fd, READ))
        except BaseException as exc:  # noqa: BLE001 - one event must not end the thread
            log_failure(self.log, exc)
