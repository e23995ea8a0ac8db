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
from stackmgr.database.round_trips import RoundTrips, _Lane
from stackmgr.database.session import Session
from stackmgr.scheduler import Scheduler


@dataclass(frozen=True)
class Mutant:
    """A mistake: *old*, which is once in the source of *owner*'s function, becomes *new*; *seed* finds it."""

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


_ROWS: list[tuple[str, str, Any, str, str, str, int]] = [
    # Races that careful reading had found before the simulation.
    ("lost turn", "a connection passed to a request at the moment when it gives up is lost", Pool,
     "_next", "if passed := self._leave(waiter):\n        return",
     "if (passed := self._leave(waiter)) and time.monotonic() < give_up_at:\n        return", 91),
    ("rows after an exception", "an unforeseen exception leaves a connection in an exchange",
     DatabaseConnection, "_fail", "if not isinstance(ex, DatabaseError) or",
     "if isinstance(ex, DatabaseError) and", 0),
    # Mistakes that nobody has made yet.
    ("lost wake-up", "a signal from another thread does not end the scheduler's wait", Scheduler,
     "notice", "self.wake()", "pass", 1),
    ("first deadline only", "a wait with an earlier deadline does not shorten the scheduler's wait",
     Scheduler, "_set_deadline", "heappush(self._heap, (deadline, id(waiter), waiter))",
     "self._heap.append((deadline, id(waiter), waiter))", 0),
    ("late event", "a descriptor stays with the greenlet whose wait for it has timed out", Scheduler,
     "end_wait", "self._waiters.pop(descriptor, None)", "pass", 0),
    ("event for the last one", "a descriptor stays with the greenlet that has waited for it",
     Scheduler, "_handle_ready", "self._waiters.pop(descriptor)", "self._waiters[descriptor]", 0),
    ("timed out for ever", "a greenlet whose time has passed is not resumed", Scheduler,
     "_take_expired", "yield waiter, False", "pass", 0),
    ("wake-up not read", "the scheduler does not reset the descriptor that wakes it", Scheduler,
     "_handle_ready", "os.eventfd_read(descriptor)", "pass", 0),
    ("blocking wait", "a request waits for a thread by blocking all others", scheduler.Signal, "wait",
     "self._scheduler.wait(seconds)", "time.sleep(min(seconds, 1))", 0),
    ("deadline of each attempt", "a retry starts the deadline of the session again", Session, "rows",
     "encoded, deadline, may_share=may_share and attempt == 1",
     "encoded, time.monotonic() + self._seconds_left, may_share=may_share and attempt == 1", 1445),
    ("deadline of each wait", "each wait for the server may take as long as the exchange",
     DatabaseConnection, "_wait", "deadline - time.monotonic()", "2.0", 9),
    ("left in line", "a request whose time has passed stays in line", Pool, "_leave",
     "self._waiting.remove(waiter)", "pass", 0),
    ("overtaken", "a request whose connection has died joins the line at its end", Pool, "acquire",
     "is_first_in_line = True", "pass", 1435),
    ("not connecting", "a request joins the line, and nobody connects for it", Pool, "_next",
     "self._maybe_grow_pool()", "pass", 0),
    ("one attempt", "after a failed attempt to connect nobody connects for those in line", Pool,
     "reconnect_failed", "self._sched.enter(RECONNECT_INTERVAL, self._connect_for_line)", "pass", 2),
    ("coldest first", "the connection that has been idle for longest is acquired first", Pool, "_next",
     "self._pool.pop()", "self._pool.popleft()", 1),
    ("stale connection dropped", "a connection that died while idle is not returned to the pool", Pool,
     "acquire", "self.putconn(connection)", "pass", 16),
    ("unchecked connection dropped", "a connection whose check fails is not returned to the pool",
     Pool, "acquire", "finally:\n            if", "except ZeroDivisionError:\n            if", 16),
    ("stale connection acquired", "a connection is acquired without a check", Pool, "acquire",
     "connection.is_stale()", "False", 17),
    ("repeated write", "a write of unknown outcome is run again", retries, "should_retry",
     "action is RetryAction.RETRY_IF_READ and writes", "False", 6),
    ("rows before the commit", "a result counts before the server is ready for the next statement",
     DatabaseConnection, "_result", "results.append(result)",
     "results.append(result)\n            return results[0]", 0),
    ("unconfirmed write", "a write that no standby has confirmed is acknowledged", DatabaseConnection,
     "run", "self._warned and statement.writes", "False", 6),
    ("write run again", "a write that has found its caller is run again", Credential, "rows",
     "if rows := self._run(operation):",
     "if (rows := self._run(operation)) and not operation.statement.writes:", 1),
    ("nothing for no caller", "what finds no caller takes it that nothing is stored", Credential, "rows",
     "if rows := self._run(operation):", "if (rows := self._run(operation)) is not None:", 69),
    ("manager remembered for good", "a statement that finds no caller is run again for the same one",
     Credential, "_verify_again", "self._verify()", "self.identity = self.admission.remembered", 69),
    ("503 for a write that was sent", "a write of unknown outcome is said to have changed nothing",
     Credential, "_run", "not statement.writes or ex.reason == ReasonSlug.NO_CONNECTION", "True", 6),
    # Mistakes in what requests share.
    ("rows exchanged", "the results of a batch are taken for each other", DatabaseConnection,
     "run_together", "for result in results]", "for result in results[::-1]]", 4),
    ("pipeline mode kept", "a connection stays in pipeline mode after a batch", DatabaseConnection,
     "run_together", "self.pgconn.exit_pipeline_mode()", "pass", 1),
    ("first result only", "a batch succeeds if its first statement does", DatabaseConnection,
     "run_together", "self._require_commit(executions, results)",
     "self._require_commit(executions[:1], results[:1])", 1),
    ("rows before the commit of all", "a batch succeeds if its statements do, whatever the commit does",
     DatabaseConnection, "run_together", "self._require_commit(executions, results)",
     "self._require_commit(executions, results[: len(executions)])", 314),
    ("unconfirmed batch", "writes that no standby has confirmed are acknowledged", DatabaseConnection,
     "_require_commit", "self._warned and", "False and", 202),
    ("batch sent twice", "the writes of a batch of unknown outcome run again", RoundTrips, "_share",
     "batch.is_rolled_back or not", "True or not", 20),
    ("rows of a neighbour", "the rows of a batch go to its requests in another order", RoundTrips,
     "_send_together", "zip(reversed(requests), reversed(found)", "zip(requests, reversed(found)", 4),
    ("no rows for a failed batch", "the requests of a failed batch take it that nothing was found",
     RoundTrips, "run", "if rows is None else rows", "if not may_share else rows or []", 1),
    ("no rows without a connection", "the requests of a leader without a connection take it so too",
     RoundTrips, "_share", "request.has_ended = Signal()", "return []", 1),
    ("locks in order of arrival", "the writes of a batch are sent as they came", RoundTrips,
     "_send_together", "sorted(requests, key=_lock_order)", "list(requests)", 132),
    ("long wait of a batch", "a batch waits for a lock as long as a statement does", RoundTrips,
     "_send_together", "*([_BEGIN] * writes), ", "", 10),
    ("leader without time", "a write that has little time left leads others", RoundTrips,
     "_may_share_write", "deadline - time.monotonic() >", "deadline >", 176),
    ("writes use all connections", "writes leave no connection to reads", RoundTrips, "__init__",
     "size - 1", "size", 4),
    ("late to a batch", "requests join a batch that has been sent", _Lane, "close",
     "self._open = None", "pass", 0),
    ("batch too large", "a batch never is complete", _Lane, "join",
     "len(batch.requests) == MAX_REQUESTS", "False", 4),
    ("lane not left", "a round trip that has ended counts as under way", _Lane, "leave",
     "self._under_way -= 1", "pass", 0),
    ("line forgotten", "the end of a round trip lets no other begin", _Lane, "leave",
     "if self._line:", "if False:", 3),
    ("line not left", "a batch that had no connection waits on", _Lane, "enter",
     "self._line.remove(batch)", "pass", 9),
    ("neighbours forgotten", "the end of a batch resumes nobody", RoundTrips, "_lead",
     "request.has_ended.set()", "pass", 1),
    ("shared too early", "a batch's connection is released before its rows have arrived", RoundTrips,
     "_lead", "self._send(batch, connection, deadline)",
     "self._connections.release(connection)\n        self._send(batch, connection, deadline)", 0),
    ("connection of a failed batch", "a batch that fails does not release its connection", RoundTrips,
     "_lead", "if connection is not None:", "if connection is not None and batch.requests[0].rows:", 0),
    ("other threads", "a request of any thread joins the batch of the scheduler's", RoundTrips, "run",
     " and has_scheduler()", "", 2),
    # Errors without a fault.
    ("not retried", "a failed statement is not run again", retries, "should_retry",
     "_ATTEMPTS.get(action, 1)", "1", 0),
    ("half of its time", "a session ends before its deadline", Session, "rows",
     "time.monotonic() + self._seconds_left", "time.monotonic() + self._seconds_left / 2", 0),
    ("gives up", "a request does not wait in line for its share of the time", Pool, "_next",
     "wait(give_up_at - started)", "wait((give_up_at - started) / 4)", 0),
    ("all of its time in line", "a request waits in line until its deadline", RoundTrips, "_lead",
     "min(deadline, time.monotonic() + self._connections.acquire_seconds)", "deadline", 0),
    ("warning of another write", "a server's warning fails a later write", DatabaseConnection, "_send",
     "self._warned = False", "pass", 35),
    ("flood of connections", "a read-only server is flooded with new connections", Database, "drain",
     "now - self._drained_at > MIN_DRAIN_INTERVAL", "True", 103),
    # Threads beside the requests'.
    ("no lock at the pool", "a connection is taken from the pool without its lock", Pool, "_next",
     "with self._lock:", "if True:", 161),
    ("uses forgotten", "a use of a key that could not be written is lost", LastUse, "write",
     "self._noticed |= noticed", "pass", 38),
    # What the simulation has found in this code.
    ("rejected connection left open", "a connection whose settings cannot be read stays open",
     session_settings, "verify", "connection.close()  # the pool", "pass  # the pool", 83),
]  # fmt: skip

MUTANTS = {each[0]: Mutant(*each) for each in _ROWS}
