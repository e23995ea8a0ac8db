"""The turns of a worker's thread: accept, read, start requests, sweep, stop.

Without a heartbeat for gunicorn's `timeout`, the master replaces the worker.  A request that only waits is
bounded by the application's own time-outs.  Requests of the operator's listener do not stand in the queue:
`/live` waits for no manager's request.
"""

import os
import socket
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from stackmgr.scheduler import READABLE, Scheduler
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import STEP_SECONDS, HttpConnections
from stackmgr.server.handler import RequestHandler, log_failure, log_rejection
from stackmgr.server.listeners import Listeners
from stackmgr.server.protocol import Protocol, Rejection
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import ReceivedRequest

SWEEP_SECONDS = 0.5
LOOK_SECONDS = 0.1  # how exactly the queue is timed
PARSE_SECONDS = 0.001  # of a turn
START_SECONDS = 0.0005  # of a turn: a result that has arrived waits for one large body at most
STOP_LINGER = 2.0  # a stopping worker keeps idle connections this long: a request may be on its way
ADMIN_CONNECTIONS = 64  # of the operator's listener

Entry = tuple[ClientConnection, ReceivedRequest]
Step = Callable[[ClientConnection], ReceivedRequest | Rejection | None]


def _has_port(listener: Any, port: int) -> bool:
    name = listener.getsockname()
    return isinstance(name, tuple) and name[1] == port


class Loop:
    """Serves the clients of *worker* until it stops."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.scheduler = scheduler = Scheduler()
        self.queue: RequestQueue[Entry] = RequestQueue(worker.cfg.threads, worker.queue_seconds)
        self.handler = RequestHandler(worker, self.queue)
        keepalive, resume = float(worker.cfg.keepalive), self._resume_listeners
        self.managers = HttpConnections(scheduler, worker.cfg.worker_connections, keepalive, resume)
        self.operators = HttpConnections(scheduler, ADMIN_CONNECTIONS, keepalive, resume)
        bound = [each for each in worker.sockets if _has_port(each, worker.admin_port)]
        others = [each for each in worker.sockets if each not in bound]
        # A manager's connection makes room for an operator's, who come first.
        self.listeners = (
            Listeners(bound, scheduler, self.operators, self.managers, self._connect),
            Listeners(others, scheduler, self.managers, self.managers, self._connect),
        )
        self.stops_at = inf  # the end of the graceful time-out, once it stops
        self._next_look = self._next_sweep = self._next_warning = 0.0
        self._rejected = 0  # since the last warning

    def _connect(self, sock: socket.socket, peer: Any, server: Any) -> ClientConnection:
        return ClientConnection(sock, peer, server, Place(self.queue), Protocol(self.handler.limits))

    def _resume_listeners(self) -> None:
        for listeners in self.listeners:
            listeners.resume()

    def run(self, wakes: int) -> None:
        """Take turns until the worker has stopped; a signal writes to the descriptor *wakes*."""
        self.scheduler.watch(wakes, READABLE, lambda _: os.read(wakes, 4096))
        self.scheduler.run(self.turn, self._idle_seconds)

    def turn(self) -> bool:
        """Do what is to be done now; return False at the end."""
        for listeners in self.listeners:
            if listeners.ready:
                self._guard(listeners.accept)
        self._read()
        self._start_requests()
        now = monotonic()
        if not self._worker.alive and self.stops_at == inf:
            self._guard(self._begin_stop, now)
        if self.queue.waiting and now >= self._next_look:
            self._guard(self._look_after_queue, now)
        if now >= self._next_sweep or self._worker.must_reopen or self.managers.may_exceed_budget:
            self._guard(self._sweep, now)
        is_busy = bool(self.managers.open or self.operators.open)
        return self._worker.alive or (now < self.stops_at and is_busy)

    def _idle_seconds(self) -> float:
        if self.queue.has_next() or self.operators.has_ready or self.managers.has_ready:
            return 0.0
        if pauses := [listeners.pauses_until for listeners in self.listeners if listeners.ready]:
            return max(0.0, min(pauses) - monotonic())
        return max(0.0, (self._next_look if self.queue.waiting else self._next_sweep) - monotonic())

    def _read(self) -> None:
        """Read and parse a part of what has arrived: bodies after heads, but at least one of each."""
        end = monotonic() + PARSE_SECONDS
        for connections in (self.operators, self.managers):
            for queue in (connections.ready, connections.receiving):
                while queue:
                    conn = connections.take_next(queue)
                    self._guard(self._step, connections, conn, ClientConnection.step)
                    if monotonic() > end:
                        break

    def _start_requests(self) -> None:
        now = monotonic()
        end = now + START_SECONDS
        while now <= end and (entry := self.queue.take()) is not None:
            self._start(self.managers, *entry)
            now = monotonic()

    def _step(self, connections: HttpConnections, conn: ClientConnection, step: Step) -> None:
        """Take a step with a connection, then queue the request that it returns, park it, or close it."""
        try:
            try:
                found = step(conn)
                conn.flush()
            except BaseException as exc:  # the unexpected is a 500, and no reason for the worker to end
                if self._worker.must_exit:
                    raise
                log_failure(self._worker.log, exc)
                found = conn.protocol.fail()
                conn.flush()
            if isinstance(found, ReceivedRequest):
                self._add(connections, conn, found)
            else:
                if found is not None:
                    log_rejection(self._worker.log, conn.peer, found)
                connections.park(conn)
        except BaseException:
            connections.close(conn)
            raise

    def _add(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        connections.unpark(conn)
        if connections is self.operators:
            self._start(connections, conn, request)
            return
        key = request.environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
        rejected = self.queue.add(conn.place, key, (conn, request), monotonic())
        if rejected is not None:
            self._reject(*rejected)

    def _start(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        self.scheduler.start(partial(self._guard, self._serve, connections, conn, request))

    def _serve(self, connections: HttpConnections, conn: ClientConnection, request: ReceivedRequest) -> None:
        try:
            self._step(connections, conn, partial(self.handler.respond, request=request))
        finally:
            self.queue.leave(conn.place, monotonic(), self.scheduler.seconds_run())

    def _reject(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Have the application respond 503 immediately."""
        self._rejected += 1
        self._start(self.managers, conn, request)

    def _guard(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call *call*; whatever it raises must not end the worker."""
        try:
            call(*arguments)
        except BaseException as exc:
            if self._worker.must_exit:
                raise
            log_failure(self._worker.log, exc)

    def _look_after_queue(self, now: float) -> None:
        self._next_look = now + LOOK_SECONDS
        for entry in self.queue.take_overdue(now):
            self._reject(*entry)
            if monotonic() > now + STEP_SECONDS:
                self._next_look = 0.0
                return

    def _sweep(self, now: float) -> None:
        """Send the heartbeat; look after deadlines, memory, the logs and the end."""
        worker = self._worker
        self._next_sweep = now + (SWEEP_SECONDS if worker.alive else LOOK_SECONDS)
        worker.notify()
        if worker.must_reopen:
            worker.reopen_logs()
            self.handler = RequestHandler(worker, self.queue)  # with the new files as `wsgi.errors`
        if worker.ppid != os.getppid():
            worker.alive = False
        for connections in (self.managers, self.operators):
            for conn in connections.sweep():
                self._step(connections, conn, ClientConnection.expire)
                if monotonic() > now + STEP_SECONDS:
                    self._next_sweep = 0.0
                    break
        if not self.managers.may_exceed_budget:  # or without descriptors it would accept in vain in each turn
            self._resume_listeners()
        self._warn_of_rejections(now)

    def _begin_stop(self, now: float) -> None:
        """Close the listeners, finish what has arrived, close connections after later requests."""
        self.stops_at, self._next_sweep = now + self._worker.cfg.graceful_timeout, 0.0
        for listeners in self.listeners:
            listeners.close()
        for connections in (self.managers, self.operators):
            connections.limit_idle_seconds(STOP_LINGER)

    def _warn_of_rejections(self, now: float) -> None:
        if self._rejected and now >= self._next_warning:
            text = "Responded 503 to what could not be started within %g s; requests: %d"
            self._worker.log.warning(text, self._worker.queue_seconds, self._rejected)
            self._rejected, self._next_warning = 0, now + 1.0
