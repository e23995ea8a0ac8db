"""The turns of a worker's thread: let clients read, start requests, look after time-outs, stop.

Without a heartbeat for gunicorn's `timeout`, the master replaces the worker.  A request that only waits is
bounded by the application's own time-outs.
"""

import os
from collections.abc import Callable
from math import inf
from time import monotonic
from traceback import walk_tb
from typing import Any

from greenlet import getcurrent, greenlet
from gunicorn.http.wsgi import base_environ

from stackmgr.errors import ServiceError
from stackmgr.scheduler import Scheduler
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import HEAD_LIMIT, HeadLimits, ReceivedRequest
from stackmgr.server.response import Response

LOOK_SECONDS = 0.1  # between two heartbeats, until a signal is noticed, and how exactly the queue is timed
READ_SECONDS = 0.001  # of a turn
START_SECONDS = 0.0005  # of a turn: a result that has arrived waits for one large body at most
REJECT_SECONDS = 0.004  # of a turn
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
ADMIN_CONNECTIONS = 64  # of the operator's listener
_READS = {"GET", "HEAD"}


class Loop:
    """Serves the clients of *worker* until it stops."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        cfg = worker.cfg
        self.scheduler = Scheduler()
        self.queue: RequestQueue[greenlet] = RequestQueue(cfg.threads, worker.queue_seconds)
        limits = cfg.limit_request_line, cfg.limit_request_fields, cfg.limit_request_field_size
        self.limits = HeadLimits(*(min(each or HEAD_LIMIT, HEAD_LIMIT) for each in limits))
        self._environ = _base_environ(cfg)  # once: each `cfg.name` is slow
        bound = [each for each in worker.sockets if _has_port(each, worker.admin_port)]
        others = [each for each in worker.sockets if each not in bound]
        self.managers = Clients(self, others, cfg.worker_connections)
        # A manager's connection makes room for an operator's, who come first.
        self.operators = Clients(self, bound, ADMIN_CONNECTIONS, self.managers)
        both = self.operators, self.managers
        self._lanes = *(each.heads for each in both), *(each.bodies for each in both)
        self.stops_at = inf  # the end of the graceful time-out, once it stops
        self._next_look = self._next_warning = 0.0
        self._rejected = 0  # since the last warning

    def run(self) -> None:
        """Take turns until the worker has stopped."""
        self.scheduler.run(self.turn, self._idle_seconds)

    def turn(self) -> bool:
        """Do what is to be done now; return False at the end."""
        self._read()
        self._start_requests()
        now = monotonic()
        if not self.worker.alive and self.stops_at == inf:
            self.guard(self._begin_stop, now)
        if now >= self._next_look or self.worker.must_reopen:
            self.guard(self._look, now)
        is_busy = bool(self.managers.open or self.operators.open)
        return self.worker.alive or (now < self.stops_at and is_busy)

    def _idle_seconds(self) -> float:
        if any(self._lanes) or (self.queue.waiting and self.queue.has_next()):
            return 0.0
        return max(0.0, self._next_look - monotonic())

    def _read(self) -> None:
        """Let clients read and send for a part of the turn: bodies after heads, but at least one of each."""
        end = monotonic() + READ_SECONDS
        for lane in self._lanes:
            while lane:
                self.scheduler.resume(lane.popleft())
                if monotonic() > end:
                    break

    def _start_requests(self) -> None:
        end = monotonic() + START_SECONDS
        while self.queue.waiting and (waiting := self.queue.take()) is not None:
            self.scheduler.resume(waiting)
            if monotonic() > end:
                break

    def wait_for_turn(self, place: Place, request: ReceivedRequest) -> None:
        """Let a request wait in the queue until it may run, or must be rejected: see `Place.retry_after`."""
        key = request.environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
        writes = request.method not in _READS
        rejected = self.queue.add(place, key, getcurrent(), monotonic(), writes=writes)
        if rejected is not None:
            self.scheduler.ending_turn.append(rejected)
        self.scheduler.pause()
        self._rejected += place.retry_after > 0

    def run_application(self, client: Client, request: ReceivedRequest) -> tuple[bytes, bool]:
        """Return the response and whether it is the last.  Raises what the application does."""
        began, worker, response = self.scheduler.seconds_run(), self.worker, Response(request)
        environ = self._environ | client.environ | request.environ
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
            self.queue.leave(client.place, monotonic(), self.scheduler.seconds_run() - began)
        # A worker that stops says so; later, the client has read that the connection stays open.
        must_close = request.must_close or not (self.managers.idle_seconds and worker.alive)
        return response.encode(must_close=must_close)

    def guard(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call *call*; whatever it raises must not end the worker."""
        try:
            call(*arguments)
        except BaseException as exc:  # noqa: BLE001 - it is logged
            self.note_failure(exc)

    def note_failure(self, exc: BaseException) -> None:
        """Log the type and the place of an unexpected exception, not its text, which may quote a request."""
        if self.worker.must_exit:
            raise exc
        *_, (frame, line) = walk_tb(exc.__traceback__)
        name = type(exc).__name__
        self.worker.log.error("Error handling a request: %s at %s:%d", name, frame.f_code.co_filename, line)

    def note_rejection(self, client: Client, error: ServiceError, request_id: str, why: str) -> None:
        """Log an error of the server's own with the id of the request."""
        fields = {"request_id": request_id, "status": error.status, "code": error.code}
        if error.reason:
            fields["reason"] = error.reason
        self.worker.log.warning("Rejected a request from %s: %s", client.peer, why, extra={"fields": fields})

    def _look(self, now: float) -> None:
        """Send the heartbeat; look after the logs, the master, and requests that have waited too long."""
        worker, self._next_look = self.worker, now + LOOK_SECONDS
        worker.notify()
        if worker.must_reopen:
            worker.reopen_logs()
            self._environ = _base_environ(worker.cfg)  # with the new files as `wsgi.errors`
        if worker.ppid != os.getppid():
            worker.alive = False
        for waiting in self.queue.take_overdue(now):
            self.scheduler.resume(waiting)
            if monotonic() > now + REJECT_SECONDS:
                self._next_look = 0.0
                break
        if self._rejected and now >= self._next_warning:
            text = "Responded 503 to what could not be started within %g s; requests: %d"
            worker.log.warning(text, worker.queue_seconds, self._rejected)
            self._rejected, self._next_warning = 0, now + 1.0

    def _begin_stop(self, now: float) -> None:
        """Close the listeners, finish what has arrived, close connections after later requests."""
        self.stops_at = now + self.worker.cfg.graceful_timeout
        self.operators.stop(STOP_LINGER)
        self.managers.stop(STOP_LINGER)


def _has_port(listener: Any, port: int) -> bool:
    name = listener.getsockname()
    return isinstance(name, tuple) and name[1] == port


def _base_environ(cfg: Any) -> dict[str, Any]:
    own = {"wsgi.multithread": True, "wsgi.url_scheme": "http", "SCRIPT_NAME": ""}
    return {**base_environ(cfg), **own}
