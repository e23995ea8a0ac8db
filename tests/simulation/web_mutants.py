"""Mistakes in the server, its shares and its memory, and in the calls of a verifier."""

from typing import Any

from stackmgr.access.verifiers import http_connection, remote
from stackmgr.access.verifiers.circuit_breaker import CircuitBreaker
from stackmgr.scheduler import Scheduler
from stackmgr.server.connections import HttpConnections
from stackmgr.server.handler import RequestHandler
from stackmgr.server.listeners import Listeners
from stackmgr.server.memory import ResponseMemory
from stackmgr.server.outbox import Outbox
from stackmgr.server.shares import Shares
from stackmgr.server.worker import Worker
from tests.simulation.planting import Edit, Mutant


def _mutant(name: str, breaks: str, owner: Any, function: str, old: str, new: str, seed: int) -> Mutant:
    return Mutant(name, breaks, "web", (Edit(owner, function, old, new),), seed)


MUTANTS = [
    # A race that careful reading had found before the simulation.
    _mutant(
        "sweep against queue", "the sweep ends a connection that a greenlet has just served",
        HttpConnections, "claim",
        "if taken is conn and applies(conn):", "if taken is conn:", 23975,
    ),
    # What the simulation has found.
    _mutant(
        "arrived and closed", "a deadline ends a connection whose request waits for a greenlet",
        Worker, "_expire",
        "(conn.yielded or conn.has_input())", "conn.ready_since", 249,
    ),
    _mutant(
        "broken announcement", "a worker that stops closes a connection whose response said that it stays open",
        RequestHandler, "_respond",
        "conn.closing = response.must_close", "conn.closing = response.must_close or not self._worker.alive", 8877,
    ),
    # Mistakes that nobody has made yet.
    _mutant(
        "lost event", "what the main thread has looked at is not watched again",
        HttpConnections, "poll_waiting",
        "self._watch(conn)", "pass", 1,
    ),
    _mutant(
        "lost marker", "the marker is taken out of the queue, but counts as queued",
        Worker, "_handle_event",
        "connections.marker_is_queued = False", "pass", 1,
    ),
    _mutant(
        "events left", "the scheduler forgets that there are more events than idle greenlets",
        Scheduler, "_start",
        "return True", "return False", 1,
    ),
    _mutant(
        "deaf listener", "a listener is not watched again after all that waited is accepted",
        Listeners, "accept",
        "self._connections.arm(fd, READ)\n    return None", "return None", 1,
    ),
    _mutant(
        "paused for ever", "a listener is not watched again after descriptors were exhausted",
        HttpConnections, "resume_listeners",
        "self.arm(self.paused.pop(), READ)", "self.paused.pop()", 29,
    ),
    _mutant(
        "heartbeat of the main thread", "a worker whose request thread hangs is not replaced",
        Worker, "_beat",
        "self.scheduler.turns != turns", "True", 43,
    ),
    _mutant(
        "early close", "a connection is closed after its last response, with unread bytes",
        HttpConnections, "park",
        "phase, seconds = DRAINING, DRAIN_SECONDS\n", "raise OSError\n", 369,
    ),
    _mutant(
        "forgotten request", "a second request that has arrived with the first is not continued with",
        RequestHandler, "_serve_arrived",
        "conn.yielded = bool(conn.inbox)", "pass", 29,
    ),
    _mutant(
        "two responses in one", "an error follows the first bytes of a failed response",
        RequestHandler, "serve",
        "if conn.sent:", "if False:", 17,
    ),
    _mutant(
        "byte sent twice", "the rest of a piece begins one byte early",
        Outbox, "_remove",
        "memoryview(piece)[count:]", "memoryview(piece)[max(0, count - 1):]", 3,
    ),
    _mutant(
        "not released", "an exception in the application keeps its share",
        RequestHandler, "_respond_in_turn",
        "try:\n        self._respond(conn, request)\n    finally:\n        self.shares.leave(key)",
        "self._respond(conn, request)\n    self.shares.leave(key)", 9,
    ),
    _mutant(
        "ghost in line", "a request that has given up is admitted",
        Shares, "enter",
        "self._waiting.remove(turn)", "pass", 403,
    ),
    _mutant(
        "last first", "the last of those that wait for a share is admitted",
        Shares, "leave",
        "enumerate(self._waiting)", "reversed(list(enumerate(self._waiting)))", 15,
    ),
    _mutant(
        "waits counted up", "a page that has waited for room counts as waiting for ever",
        ResponseMemory, "wait_for_room",
        "self._waiting -= 1", "pass", 9,
    ),
    _mutant(
        "permit not released", "a failed call of the verifier keeps its permit",
        remote.Endpoint, "post",
        "finally:\n", "except ZeroDivisionError:\n        pass\n    else:\n", 1,
    ),
    _mutant(
        "failures forgotten", "calls that fail one after the other do not open the circuit",
        CircuitBreaker, "_fail",
        "self._failures += 1", "self._failures = 1", 47,
    ),
    _mutant(
        "deadline of each read", "each wait for the verifier may take as long as the whole call",
        http_connection.Connection, "_finished",
        "except BlockingIOError:\n            wait_for(self._socket.fileno(), events, left)",
        "except BlockingIOError:\n            wait_for(self._socket.fileno(), events, 0.8)", 73,
    ),
    _mutant(
        "deadline not looked at", "a verifier that sends byte after byte is waited for without end",
        http_connection.Connection, "_finished",
        "(left := self._deadline - monotonic()) > 0", "(left := self._deadline - monotonic()) or True", 1,
    ),
    _mutant(
        "leaked descriptor", "a socket whose connection attempt has failed stays open",
        http_connection.Connection, "__init__",
        "self.close()", "pass", 117,
    ),
]  # fmt: skip
