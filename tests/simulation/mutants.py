"""Mistakes for the simulation to find: each is an edit of the source of one function, for one run."""

import inspect
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from stackmgr import scheduler
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers.last_use import LastUse
from stackmgr.database import retries, session_settings
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Database, Pool
from stackmgr.database.session import Session
from stackmgr.database.shared_reads import SharedReads
from stackmgr.scheduler import Scheduler
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.loop import Loop
from stackmgr.server.queue import RequestQueue


@dataclass(frozen=True)
class Mutant:
    """A mistake: *old*, which is once in the source of *owner*'s function, becomes *new*; *seed* finds it."""

    scenario: str
    name: str
    breaks: str
    owner: Any  # a class or a module
    function: str
    old: str
    new: str
    seed: int

    def plant(self, cleanup: ExitStack) -> None:
        cleanup.callback(setattr, self.owner, self.function, self.owner.__dict__[self.function])
        setattr(self.owner, self.function, _edited(self))


@cache
def _edited(mutant: Mutant) -> Any:
    """Return the function as edited.  Raises LookupError if the edit no longer fits the source."""
    owner, function = mutant.owner, mutant.function
    source = textwrap.dedent(inspect.getsource(owner.__dict__[function]))
    if source.count(mutant.old) != 1:
        raise LookupError(f"{function} has {source.count(mutant.old)} times {mutant.old!r}")
    module = sys.modules[owner.__module__ if inspect.isclass(owner) else owner.__name__]
    scope: dict[str, Any] = {}
    source = source.replace(mutant.old, mutant.new)
    code = compile(source, module.__file__ or "", "exec")
    exec(code, vars(module), scope)  # noqa: S102 - the source is this repository's
    edited: Any = scope[function]
    edited.source = source  # `inspect` would read the original
    return edited


_Row = tuple[str, str, Any, str, str, str, int]
_OF_DATABASE: list[_Row] = [
    # Races that careful reading had found before the simulation.
    ("lost turn", "a connection passed to a request at the moment when it gives up is lost", Pool,
     "_next", "if passed := self._leave(waiter):\n        return",
     "if (passed := self._leave(waiter)) and time.monotonic() < give_up_at:\n        return", 38),
    ("rows after an exception", "an unforeseen exception leaves a connection in an exchange",
     DatabaseConnection, "_fail", "if not isinstance(ex, DatabaseError) or",
     "if isinstance(ex, DatabaseError) and", 24),
    # Mistakes that nobody has made yet.
    ("lost wake-up", "a signal from another thread does not end the scheduler's wait", Scheduler,
     "notice", "self.wake()", "pass", 2),
    ("first deadline only", "a wait with an earlier deadline does not shorten the scheduler's wait",
     Scheduler, "_set_deadline", "heappush(self._heap, (deadline, id(waiter), waiter))",
     "self._heap.append((deadline, id(waiter), waiter))", 0),
    ("late event", "a descriptor stays with the greenlet whose wait for it has timed out", Scheduler,
     "wait_for", "self._waiting.pop(descriptor, None)", "pass", 2),
    ("event for the last one", "a descriptor stays with the greenlet that has waited for it",
     Scheduler, "_handle_ready", "self._waiting.pop(descriptor)", "self._waiting[descriptor]", 0),
    ("timed out for ever", "a greenlet whose time has passed is not resumed", Scheduler, "_expire",
     "self.resume(waiter, is_ready=False)", "pass", 0),
    ("wake-up not read", "the scheduler does not reset the descriptor that wakes it", Scheduler,
     "_handle_ready", "os.eventfd_read(descriptor)", "pass", 0),
    ("blocking wait", "a request waits for a thread by blocking all others", scheduler.Signal, "wait",
     "self._scheduler.wait(seconds)", "time.sleep(min(seconds, 1))", 0),
    ("deadline of each attempt", "a retry starts the deadline of the session again", Session, "rows",
     "return self._run(statement, parameters, deadline)",
     "return self._run(statement, parameters, time.monotonic() + self._seconds_left)", 290),
    ("deadline of each wait", "each wait for the server may take as long as the whole exchange",
     DatabaseConnection, "_wait", "deadline - time.monotonic()", "2.0", 4),
    ("released twice", "a closed session still has its connection", Session, "close",
     "connection, self._connection = self._connection, None", "connection = self._connection", 0),
    ("returned early", "a failed write releases its connection, which the session goes on to use",
     Session, "_run", "if self._connection.closed:\n            self.close()",
     "self._connections.release(self._connection)", 0),
    ("left in line", "a request whose time has passed stays in line", Pool, "_leave",
     "self._waiting.remove(waiter)", "pass", 2),
    ("overtaken", "a request whose connection has died joins the line at its end", Pool, "acquire",
     "is_first_in_line = True", "pass", 1746),
    ("not connecting", "a request joins the line, and nobody connects for it", Pool, "_next",
     "self._maybe_grow_pool()", "pass", 0),
    ("one attempt", "after a failed attempt to connect nobody connects for those in line", Pool,
     "reconnect_failed", "self._sched.enter(RECONNECT_INTERVAL, self._connect_for_line)", "pass", 2),
    ("coldest first", "the connection that has been idle for longest is acquired first", Pool, "_next",
     "self._pool.pop()", "self._pool.popleft()", 6),
    ("stale connection dropped", "a connection that died while idle is not returned to the pool", Pool,
     "acquire", "self.putconn(connection)", "pass", 16),
    ("unchecked connection dropped", "a connection whose check fails is not returned to the pool",
     Pool, "acquire", "finally:\n            if", "except ZeroDivisionError:\n            if", 16),
    ("stale connection acquired", "a connection is acquired without a check", Pool, "acquire",
     "connection.is_stale()", "False", 24),
    ("write on a dead connection",
     "a write is sent on the session's connection, which has died meanwhile", Session, "_run",
     " and self._connection.is_stale()", " and False", 1334),
    ("repeated write", "a write of unknown outcome is run again", retries, "should_retry",
     "action is RetryAction.RETRY_IF_READ and writes", "False", 2),
    ("rows before the commit", "a result counts before the server is ready for the next statement",
     DatabaseConnection, "_result", "results.append(result)",
     "results.append(result)\n            return results[0]", 0),
    ("unconfirmed write", "a write that no standby has confirmed is acknowledged", DatabaseConnection,
     "run", "self._warned and statement.writes", "False", 2),
    ("write run again", "a write that has found its caller is run again", Credential, "rows",
     "if rows := self._run(planned):",
     "if (rows := self._run(planned)) and not planned.statement.writes:", 0),
    ("nothing for no caller", "what finds no caller takes it that nothing is stored", Credential, "rows",
     "if rows := self._run(planned):", "if (rows := self._run(planned)) is not None:", 194),
    ("manager remembered for good", "a statement that finds no caller is run again for the same one",
     Credential, "_verify_again", "self._verify()", "self.identity = self.admission.remembered", 194),
    ("503 for a write that was sent", "a write of unknown outcome is said to have changed nothing",
     Credential, "_run", "not statement.writes or ex.reason == ReasonSlug.NO_CONNECTION", "True", 6),
    ("rows exchanged", "the results of a batch are taken for each other", DatabaseConnection,
     "run_together", "zip_longest(executions, results)", "zip_longest(executions, results[::-1])", 22),
    ("pipeline mode kept", "a connection stays in pipeline mode after a batch", DatabaseConnection,
     "run_together", "self.pgconn.exit_pipeline_mode()", "pass", 0),
    # Mistakes in what requests share.
    ("rows of a neighbour", "the rows of a batch go to its requests in another order", SharedReads,
     "_run", "for request in batch:", "for request in reversed(batch):", 22),
    ("no rows for a failed batch", "the requests of a failed batch take it that nothing was found",
     SharedReads, "run", "return request.rows", "return request.rows or []", 2),
    ("failure of a neighbour", "the error of a batch is the outcome of its leader, whichever read failed",
     SharedReads, "_lead", "if connection is None:", "if connection is None or len(batch) > 1:", 2),
    ("first result only", "a batch succeeds if its first statement does", DatabaseConnection,
     "run_together", "zip_longest(executions, results)", "zip(executions, results[:1])", 10),
    ("late to a batch", "requests join a batch that has been sent", SharedReads, "_close",
     "self._open = None", "pass", 0),
    ("batch too large", "a batch never is complete", SharedReads, "_join", "self._open = None", "pass",
     10),
    ("neighbours forgotten", "the end of a batch resumes nobody", SharedReads, "_lead",
     "request.has_ended.set()", "pass", 2),
    ("shared too early", "a batch's connection is released before its rows have arrived", SharedReads,
     "_lead", "self._run(batch", "self._connections.release(connection)\n        self._run(batch", 0),
    ("connection of a failed batch", "a batch that fails does not release its connection", SharedReads,
     "_lead", "if connection is not None:\n            self",
     "if connection is not None and batch[0].rows:\n            self", 2),
    ("other threads", "a request of any thread joins the batch of the scheduler's", SharedReads, "run",
     " and has_scheduler()", "", 2),
    # Errors without a fault.
    ("not retried", "a failed statement is not run again", retries, "should_retry",
     "_ATTEMPTS.get(action, 1)", "1", 2),
    ("deadline of a neighbour", "a leader fails because the batch that it shares is late", SharedReads,
     "_run", "(len(batch) == 1 or ex.reason == ReasonSlug.REJECTED)", "True", 2),
    ("half of its time", "a session ends before its deadline", Session, "rows",
     "time.monotonic() + self._seconds_left", "time.monotonic() + self._seconds_left / 2", 2),
    ("gives up", "a request does not wait in line for its share of the time", Pool, "_next",
     "wait(give_up_at - started)", "wait((give_up_at - started) / 4)", 2),
    ("all of its time in line", "a request waits in line until its deadline", Database, "acquire",
     "min(deadline, time.monotonic() + _ACQUIRE_SHARE * self._deadline)", "deadline", 2),
    ("warning of another write", "a server's warning fails a later write", DatabaseConnection, "_send",
     "self._warned = False", "pass", 18),
    ("flood of connections", "a read-only server is flooded with new connections", Database, "drain",
     "now - self._drained_at > MIN_DRAIN_INTERVAL", "True", 504),
    # Threads beside the requests'.
    ("no lock at the pool", "a connection is taken from the pool without its lock", Pool, "_next",
     "with self._lock:", "if True:", 10),
    ("uses forgotten", "a use of a key that could not be written is lost", LastUse, "write",
     "self._noticed |= noticed", "pass", 38),
    # What the simulation has found in this code.
    ("rejected connection left open", "a connection whose settings cannot be read stays open",
     session_settings, "verify", "connection.close()  # the pool", "pass  # the pool", 154),
]  # fmt: skip


_OF_WEB: list[_Row] = [
    ("deaf listener", "a listener is not watched again after all that waited is accepted", Clients,
     "_listen", "while listener in self._listeners:", "for _ in range(1):", 1),
    ("paused for ever", "a listener is not watched again after descriptors were exhausted", Clients,
     "_listen", "wait(_RETRY_SECONDS)", "wait(1e6)", 359),
    ("deaf to the next", "a client that is silent again is not watched", Client, "serve",
     "clients.park(self)", "clients.waiting[self] = None", 1),
    ("no budget", "unfinished requests and unread responses are kept, however many there are", Clients,
     "hold", "while self._held > BUFFER_BUDGET:", "while False:", 1),
    ("held for ever", "what a client has held still counts after its request", Clients, "unpark",
     "self._held -= client.held", "pass", 1),
    ("not released", "an exception in the application keeps its place", Loop, "run_application",
     "self.queue.leave(client.place", "response.status and self.queue.leave(client.place", 67),
    ("last first", "the last of a line is taken", RequestQueue, "take", "self._remove(line, 0)",
     "self._remove(line, -1)", 5),
    ("no turns", "the line that came first is taken from until it is empty", RequestQueue, "take",
     "min(may_run, key=self._waits_since, default=None)", "next(iter(may_run), None)", 257),
    ("other keys", "unverified keys have the share of a manager", RequestQueue, "_may_run",
     "if group else self._unverified_limit", "", 23),
    ("not timed", "requests wait for as long as others run", Loop, "_look",
     "for waiting in self.queue.take_overdue(now):", "for waiting in ():", 515),
    ("ghost", "a request that has been rejected for another still counts as waiting", RequestQueue,
     "_remove", "self.waiting -= 1", "pass", 1),
    ("rejected early", "a request is rejected after half of the time-out", RequestQueue, "take_overdue",
     "now - self._seconds", "now - self._seconds / 2", 121),
    ("operators in the queue", "a request of an operator waits for those of managers", Client,
     "_wait_for_turn", "if self._clients is loop.operators:", "if False:", 49),
    ("no room for an operator", "no manager's connection is closed for an operator's", Clients,
     "_listen", "self._expendable.close_longest_waiting()", "self.close_longest_waiting()", 209),
    ("idle at a stop", "a stopping worker keeps idle connections as long as another", Clients, "stop",
     "self._loop.scheduler.hasten(client.serve, idle_seconds)", "pass", 3),
    ("two take turns", "two requests that end their turns in turn let no other run", Scheduler, "run",
     "for _ in range(len(self.ending_turn)):", "while self.ending_turn:", 3),
    ("no error", "an exception in the application ends the connection without a response", Client,
     "_serve_request", 'response = self._reject(ServiceError(), "the service failed")', "raise", 67),
    ("reset at a stop", "a worker that stops accepts none of the connections that wait", Clients, "stop",
     "deque(self._accepted(listener), 0)", "pass", 283),
    ("a failed one at a stop", "a connection that has failed keeps others from being accepted", Clients,
     "_accepted", "if ex.errno in _OF_A_CONNECTION:", "if False:", 3197),
    ("head of another", "what a client has sent too much of is the beginning of its next request", Client,
     "_receive", "del inbox[:end]", "del inbox[: end + 1]", 17),
    ("a read that is not added", "bytes that arrive late replace the ones before", Client, "_take",
     "self._inbox += data", "self._inbox[:] = data", 3),
    ("a response cut short", "what a socket does not take at once is dropped", Client, "_send",
     "while True:", "for _ in range(1):", 3),
]  # fmt: skip

MUTANTS = {
    each[0]: Mutant(scenario, *each)
    for scenario, rows in (("database", _OF_DATABASE), ("web", _OF_WEB))
    for each in rows
}
