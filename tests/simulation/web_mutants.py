"""Mistakes in the server and its queue, and in the calls of a verifier."""

from typing import Any

from stackmgr.access.verifiers import http_connection, remote
from stackmgr.access.verifiers.circuit_breaker import CircuitBreaker
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import HttpConnections
from stackmgr.server.handler import RequestHandler
from stackmgr.server.listeners import Listeners
from stackmgr.server.queue import RequestQueue
from stackmgr.server.worker import Worker
from tests.simulation.planting import Edit, Mutant


def _mutant(name: str, breaks: str, owner: Any, function: str, old: str, new: str, seed: int) -> Mutant:
    return Mutant(name, breaks, "web", (Edit(owner, function, old, new),), seed)


MUTANTS = [
    # What the simulation has found.
    _mutant(
        "arrived and closed", "a deadline ends a connection whose request has arrived",
        RequestHandler, "expire",
        "not conn.is_ready and not conn.has_input()", "not conn.is_ready", 507,
    ),
    # Mistakes that nobody has made yet.
    _mutant(
        "deaf listener", "a listener is not watched again after all that waited is accepted",
        Listeners, "_accept",
        "self._scheduler.change(fd, LISTEN)", "pass", 1,
    ),
    _mutant(
        "paused for ever", "a listener is not watched again after descriptors were exhausted",
        HttpConnections, "resume_listeners",
        "self._scheduler.change(self.paused.pop(), LISTEN)", "self.paused.pop()", 29,
    ),
    _mutant(
        "watched for ever", "what arrives while a request runs wakes the thread again and again",
        Worker, "_proceed",
        "connections.watch(conn, 0)", "pass", 5,
    ),
    _mutant(
        "never watched again", "a connection is not watched again after its response",
        HttpConnections, "watch",
        "if conn.events != events:", "if conn.events and conn.events != events:", 9,
    ),
    _mutant(
        "early close", "a connection is closed after its last response, with unread bytes",
        HttpConnections, "park",
        "phase = DRAINING\n", "raise OSError\n", 169,
    ),
    _mutant(
        "forgotten request", "a second request that has arrived with the first is not continued with",
        HttpConnections, "park",
        "if conn.may_continue and not conn.is_ready:", "if False:", 31,
    ),
    _mutant(
        "trickle", "each byte of a request moves its deadline",
        HttpConnections, "park",
        "if phase is not conn.phase:", "if True:", 459,
    ),
    _mutant(
        "no budget", "unfinished requests and unread responses are kept, however many there are",
        HttpConnections, "sweep",
        "excess > 0", "False", 93,
    ),
    _mutant(
        "two responses in one", "an error follows the first bytes of a failed response",
        RequestHandler, "fail",
        "if conn.sent:", "if False:", 17,
    ),
    _mutant(
        "byte sent twice", "the rest of a response begins one byte early",
        ClientConnection, "flush",
        "self.sock.send(self.outbox)", "max(0, self.sock.send(self.outbox) - 1)", 1,
    ),
    _mutant(
        "not released", "an exception in the application keeps its place",
        Worker, "_serve",
        "self.queue.leave(conn.place)", "conn.closing or self.queue.leave(conn.place)", 1,
    ),
    _mutant(
        "last first", "the last of a line is taken",
        RequestQueue, "take",
        "self._remove(share, 0)", "self._remove(share, -1)", 15,
    ),
    _mutant(
        "no turns", "the line that came first is taken from until it is empty",
        RequestQueue, "take",
        "self._lines.move_to_end(share)", "pass", 361,
    ),
    _mutant(
        "other keys", "unverified keys have the share of a manager",
        RequestQueue, "_may_run",
        "if share else self._unverified_limit", "", 35,
    ),
    _mutant(
        "in both shares", "a request whose key is accepted still counts as unverified",
        RequestQueue, "accept",
        "self.leave(place)", "pass", 7,
    ),
    _mutant(
        "all of one manager", "requests whose keys are accepted exceed the share of their manager",
        RequestQueue, "accept",
        " and self._running.get(manager_id, 0) < self._limit", "", 8833,
    ),
    _mutant(
        "accepted in the wrong line", "a request stays with the unverified keys though its key has been accepted",
        RequestQueue, "accept",
        "if is_new and _UNVERIFIED in self._lines:", "if False:", 35,
    ),
    _mutant(
        "not timed", "requests wait for as long as others run",
        Worker, "_turn",
        "if self.queue.waiting and now >= self.next_look:", "if False:", 201,
    ),
    _mutant(
        "no bound", "any number of requests wait",
        RequestQueue, "add",
        "if self.waiting <= LIMIT:", "if True:", 71,
    ),
    _mutant(
        "ghost", "a request that has been rejected for another still counts as waiting",
        RequestQueue, "_remove",
        "self.waiting -= 1", "pass", 7,
    ),
    _mutant(
        "permit not released", "a failed call of the verifier keeps its permit",
        remote.Endpoint, "post",
        "finally:\n", "except ZeroDivisionError:\n        pass\n    else:\n", 1,
    ),
    _mutant(
        "failures forgotten", "calls that fail one after the other do not open the circuit",
        CircuitBreaker, "_fail",
        "self._failures += 1", "self._failures = 1", 1,
    ),
    _mutant(
        "deadline of each read", "each wait for the verifier may take as long as the whole call",
        http_connection.Connection, "_finished",
        "except BlockingIOError:\n            wait_for(self._socket.fileno(), events, left)",
        "except BlockingIOError:\n            wait_for(self._socket.fileno(), events, 0.8)", 741,
    ),
    _mutant(
        "deadline not looked at", "a verifier that sends byte after byte is waited for without end",
        http_connection.Connection, "_finished",
        "(left := self._deadline - monotonic()) > 0", "(left := self._deadline - monotonic()) or True", 1,
    ),
    _mutant(
        "leaked descriptor", "a socket whose connection attempt has failed stays open",
        http_connection.Connection, "__init__",
        "self.close()", "pass", 27,
    ),
]  # fmt: skip
