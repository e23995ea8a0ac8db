"""The gunicorn worker: the turns of its thread, and what gunicorn's master and signals see of it.

A turn has heads, bodies and queued requests, each for a bounded time.  Between two turns the scheduler
resumes waits without a lane, such as for the database's result.  A request that only waits is bounded
by the application's own timeouts, not by gunicorn's `timeout`.
"""

import gc
import logging
import os
import signal
import sys
from ctypes import CDLL
from io import BytesIO
from math import inf
from time import monotonic, sleep
from traceback import walk_tb
from types import FrameType

from greenlet import greenlet
from gunicorn.config import Config
from gunicorn.http.wsgi import base_environ
from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.scheduler import Lane, Scheduler, taken
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.queue import RequestQueue
from stackmgr.server.request import HEAD_LIMIT, HeadLimits, ReceivedRequest
from stackmgr.server.response import Response

BOOT_PAUSE = 5.0  # seconds before the master replaces a worker that could not boot
LOOK_SECONDS = 0.1  # between two heartbeats, until a signal is noticed, and how exactly the queue is timed
# Of a turn, in its order.  A request whose key was accepted lately waits in each of its three or four
# turns for one share of strangers and bodies, so that is the smallest.
READ_SECONDS = 0.001
START_SECONDS = 0.0005  # a result that has arrived waits for one large body at most
STRANGER_SECONDS = 0.000125  # for each of both
REJECT_SECONDS = 0.004  # of a turn
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
# After so many of younger objects, 23,000 new ones, and with at most so many clients, of 9 objects each.
FULL_COLLECTION, COLLECTED_CLIENTS = 2, 250
ADMIN_CONNECTIONS = 64  # of the operator's listener
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_ENVIRON = {"wsgi.multithread": True, "wsgi.url_scheme": "http", "SCRIPT_NAME": ""}

# Settings that must keep gunicorn's defaults, by the reason.
UNSUPPORTED = {
    "this worker does not speak TLS: use a proxy and": ("keyfile", "certfile"),
    "this worker speaks plain HTTP/1 only:": ("protocol", "proxy_protocol"),
    "this worker's parser never deviates from RFC 9112:": (
        "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
        "permit_unconventional_http_version", "casefold_http_method", "header_map",
    ),
    "this worker opens connections that cannot be shared:": ("preload_app",),
    "what was checked as one user may fail as another:": ("user", "group"),
    "this worker has no access log and no such hooks:": (
        "accesslog", "statsd_host", "pre_request", "post_request",
    ),
}  # fmt: skip


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`: strict HTTP/1, and the settings of gthread except those it rejects."""

    alive: bool
    queue_seconds = 0.0  # that a request may wait in the queue before it is rejected; 0: without limit
    must_exit = False  # at once, even if a request swallows the exception of a signal's handler
    admin_port = 0  # of the operator's listener, which alone has it

    @classmethod
    def check_config(cls, cfg: Config, log: logging.Logger) -> None:
        """Reject settings that this worker does not support. Raises RuntimeError, which names all of them."""
        problems = []
        for why, names in UNSUPPORTED.items():
            if given := [name for name in names if cfg.settings[name].get() != cfg.settings[name].default]:
                problems.append(f"{why} unset {', '.join(given)}")
        if problems:
            raise RuntimeError("; ".join(problems))

    def prepare(self) -> None:
        cfg = self.cfg
        self.scheduler = Scheduler()
        self.queue = RequestQueue[greenlet](cfg.threads, self.queue_seconds)
        limits = cfg.limit_request_line, cfg.limit_request_fields, cfg.limit_request_field_size
        self.limits = HeadLimits(*(min(each or HEAD_LIMIT, HEAD_LIMIT) for each in limits))
        # Who may read a head, or send; then who has not sent an accepted key lately, so that it passes
        # in front of nobody; then who is in a body, or discards.
        self.lanes = self.heads, self.strangers, self.bodies = Lane(), Lane(), Lane()
        self._environ = base_environ(cfg) | _ENVIRON  # once: each `cfg.name` is slow
        bound = [each for each in self.sockets if each.getsockname()[1:2] == (self.admin_port,)]
        others = [each for each in self.sockets if each not in bound]
        self.managers = Clients(self, others, cfg.worker_connections)
        # A manager's connection makes room for an operator's, who come first.
        self.operators = Clients(self, bound, ADMIN_CONNECTIONS, self.managers)
        self.stops_at = inf  # the end of the graceful timeout, once it stops
        self._next_look = 0.0

    def init_process(self) -> None:
        try:
            self.prepare()
            super().init_process()
        except Exception:
            if self.booted:
                raise
            # gunicorn's exit statuses for this end the master, and the workers that serve.
            self.log.exception("This worker cannot boot; in %g s another is started", BOOT_PAUSE)
            end = monotonic() + BOOT_PAUSE
            while self.alive and monotonic() < end:
                sleep(0.1)  # and heed a signal
            sys.exit(1)

    def init_signals(self) -> None:
        """Ignore a signal for the master: a closed terminal sends it to all processes."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `Master.spawn_worker` has blocked some

    def run(self) -> None:
        # A full collection of all that has been loaded would stop the requests for 20 to 50 ms, one with
        # 8,000 clients for 27 ms.  The collections of young objects go on; for others see `_look`.
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 2**31 - 1)
        # glibc would return what a flood has used in one go: 120 MB in 20 to 40 ms.
        if hasattr(libc := CDLL(None), "mallopt"):
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(_M_MMAP_THRESHOLD, 2**25)  # as high as it would rise by itself
        self.scheduler.run(self.turn, self.idle_seconds, self.is_busy)

    def turn(self) -> bool:
        """Do what is to be done now; return False at the end."""
        resume_for = self.scheduler.resume_for
        if self.heads:
            resume_for(READ_SECONDS, taken(self.heads))
        if self.queue.length:
            resume_for(START_SECONDS, iter(self.queue.take, None))
        for lane in filter(None, (self.strangers, self.bodies)):
            resume_for(STRANGER_SECONDS, taken(lane))
        now = monotonic()
        try:
            if not self.alive and self.stops_at == inf:
                self.stops_at = now + self.cfg.graceful_timeout
                self.operators.stop(STOP_LINGER)
                self.managers.stop(STOP_LINGER)
            if now >= self._next_look:
                self._look(now)
        except BaseException as exc:  # noqa: BLE001 - it is logged, and ends no worker
            self.note_failure(exc)
        if self.alive or now >= self.stops_at:
            return bool(self.alive)
        return any(self.lanes) or self.managers.is_used(now) or self.operators.is_used(now)

    def idle_seconds(self) -> float:
        if any(self.lanes) or (self.queue.length and self.queue.has_next()):
            return 0.0
        return max(0.0, self._next_look - monotonic())

    def is_busy(self) -> bool:
        """Return whether the next turn has something to do for a key that was accepted lately."""
        return bool(self.heads) or (self.queue.length > 0 and self.queue.has_next(known=True))

    def run_application(self, client: Client, request: ReceivedRequest) -> tuple[bytes, bool]:
        """Return the response and whether it is the last.  Raises what the application does."""
        response, body = Response(), BytesIO(request.body)
        environ = {**self._environ, **client.environ, **request.environ, "wsgi.input": body}
        try:
            self.nr += 1
            if self.nr >= self.max_requests and self.alive:
                self.log.info("Autorestarting worker after current request.")
                self.alive = False
            result = self.wsgi(environ, response.start_response)
            try:
                response.pieces.extend(result)
            finally:
                if hasattr(result, "close"):
                    result.close()
        finally:
            if response.status.startswith("401"):
                self.queue.forget(client.place)
        # Decided now: a worker that stops later cannot revoke a sent keep-alive.
        must_close = request.must_close or not (self.managers.idle_seconds and self.alive)
        return response.encode(request.version[1], request.method, must_close=must_close), must_close

    def note_failure(self, exc: BaseException) -> None:
        """Log type and place of an unexpected exception.  Its text may quote a request."""
        if self.must_exit:
            raise exc
        *_, (frame, line) = walk_tb(exc.__traceback__)
        name = type(exc).__name__
        self.log.error("Error handling a request: %s at %s:%d", name, frame.f_code.co_filename, line)

    def _look(self, now: float) -> None:
        """Send the heartbeat, stop without a master, reject what has waited too long."""
        self._next_look = now + LOOK_SECONDS
        self.notify()
        if self.ppid != os.getppid():
            self.alive = False
        # No request leaves a cycle, so that a full collection can wait for the end of a flood.
        if gc.get_count()[2] > FULL_COLLECTION and len(self.managers.open) <= COLLECTED_CLIENTS:
            gc.collect()
        if self.scheduler.resume_for(REJECT_SECONDS, self.queue.take_overdue(now)):
            self._next_look = 0.0

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        self.must_exit = True
        super().handle_quit(sig, frame)

    def handle_abort(self, sig: int, frame: FrameType | None) -> None:
        """End at once: the worker has sent no heartbeat."""
        self.must_exit = True
        super().handle_abort(sig, frame)
