"""The turns of a worker's thread: heads, bodies, queued requests, each for a bounded time.

Between two turns the scheduler resumes waits without a lane, such as for the database's result.
A request that only waits is bounded by the application's own timeouts, not by gunicorn's `timeout`.
"""

import gc
import os
from io import BytesIO
from logging import Logger
from math import inf
from time import monotonic
from traceback import walk_tb
from typing import TYPE_CHECKING

from gunicorn.http.wsgi import base_environ
from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.scheduler import Scheduler, taken
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.queue import RequestQueue
from stackmgr.server.request import HEAD_LIMIT, HeadLimits, ReceivedRequest
from stackmgr.server.response import Response

if TYPE_CHECKING:
    from greenlet import greenlet

LOOK_SECONDS = 0.1  # between two heartbeats, until a signal is noticed, and how exactly the queue is timed
# Of a turn, in its order.  A request whose key was accepted lately waits in each of its three or four
# turns for one share of strangers and bodies, so that is the smallest.
READ_SECONDS = 0.001
START_SECONDS = 0.0005  # a result that has arrived waits for one large body at most
STRANGER_SECONDS = 0.00025
REJECT_SECONDS = 0.004  # of a turn
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
FULL_COLLECTION = 10  # after so many of younger objects, as in CPython
COLLECTED_CLIENTS = 1_000  # a full collection with these and 10,000 known keys takes 8 ms
ADMIN_CONNECTIONS = 64  # of the operator's listener
_ENVIRON = {"wsgi.multithread": True, "wsgi.url_scheme": "http", "SCRIPT_NAME": ""}


class Loop:
    """Serves the clients of *worker* until it stops."""

    def __init__(self, worker: BaseWorker) -> None:
        self.worker = worker
        self.log: Logger = worker.log
        self.settings = cfg = worker.cfg
        self.scheduler = Scheduler()
        self.queue: RequestQueue[greenlet] = RequestQueue(cfg.threads, worker.queue_seconds)
        limits = cfg.limit_request_line, cfg.limit_request_fields, cfg.limit_request_field_size
        self.limits = HeadLimits(*(min(each or HEAD_LIMIT, HEAD_LIMIT) for each in limits))
        self._environ = base_environ(cfg) | _ENVIRON  # once: each `cfg.name` is slow
        bound = [each for each in worker.sockets if each.getsockname()[1:2] == (worker.admin_port,)]
        others = [each for each in worker.sockets if each not in bound]
        self.managers = Clients(self, others, cfg.worker_connections)
        # A manager's connection makes room for an operator's, who come first.
        self.operators = Clients(self, bound, ADMIN_CONNECTIONS, self.managers)
        first, last = self.operators, self.managers
        self._heads = first.heads, first.strangers, last.heads
        self._later = last.strangers, first.bodies, last.bodies
        self.lanes = *self._heads, *self._later
        self.stops_at = inf  # the end of the graceful timeout, once it stops
        self._next_look = 0.0

    def turn(self) -> bool:
        """Do what is to be done now; return False at the end."""
        resume_for = self.scheduler.resume_for
        resume_for(READ_SECONDS, *map(taken, filter(None, self._heads)))
        if self.queue.length:
            resume_for(START_SECONDS, iter(self.queue.take, None))
        resume_for(STRANGER_SECONDS, *map(taken, filter(None, self._later)))
        now = monotonic()
        try:
            if not self.worker.alive and self.stops_at == inf:
                self.stops_at = now + self.worker.cfg.graceful_timeout
                self.operators.stop(STOP_LINGER)
                self.managers.stop(STOP_LINGER)
            if now >= self._next_look:
                self._look(now)
        except BaseException as exc:  # noqa: BLE001 - it is logged, and ends no worker
            self.note_failure(exc)
        if self.worker.alive or now >= self.stops_at:
            return bool(self.worker.alive)
        return any(self.lanes) or self.managers.is_used(now) or self.operators.is_used(now)

    def idle_seconds(self) -> float:
        """Return for how long the thread may wait for events."""
        if any(self.lanes) or (self.queue.length and self.queue.has_next()):
            return 0.0
        return max(0.0, self._next_look - monotonic())

    def run_application(self, client: Client, request: ReceivedRequest) -> tuple[bytes, bool]:
        """Return the response and whether it is the last.  Raises what the application does."""
        worker, response = self.worker, Response()
        body = BytesIO(request.body)
        environ = {**self._environ, **client.environ, **request.environ, "wsgi.input": body}
        try:
            worker.count_request()
            result = worker.wsgi(environ, response.start_response)
            try:
                response.pieces.extend(result)
            finally:
                if hasattr(result, "close"):
                    result.close()
        finally:
            if response.status.startswith("401"):
                self.queue.forget(client.place)
        # Decided now: a worker that stops later cannot revoke a sent keep-alive.
        must_close = request.must_close or not (self.managers.idle_seconds and worker.alive)
        return response.encode(request.version[1], request.method, must_close=must_close), must_close

    def note_failure(self, exc: BaseException) -> None:
        """Log type and place of an unexpected exception.  Its text may quote a request."""
        if self.worker.must_exit:
            raise exc
        *_, (frame, line) = walk_tb(exc.__traceback__)
        name = type(exc).__name__
        self.worker.log.error("Error handling a request: %s at %s:%d", name, frame.f_code.co_filename, line)

    def _look(self, now: float) -> None:
        """Send the heartbeat, stop without a master, reject what has waited too long."""
        worker, self._next_look = self.worker, now + LOOK_SECONDS
        worker.notify()
        if worker.ppid != os.getppid():
            worker.alive = False
        # No request leaves a cycle, so that a full collection can wait for the end of a flood.
        if gc.get_count()[2] > FULL_COLLECTION and len(self.managers.open) <= COLLECTED_CLIENTS:
            gc.collect()
        if self.scheduler.resume_for(REJECT_SECONDS, self.queue.take_overdue(now)):
            self._next_look = 0.0
