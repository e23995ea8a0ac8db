"""Mistakes in the scheduler, the line, the pool, sessions and connections; each is found by the simulation."""

from typing import Any

from stackmgr import scheduler
from stackmgr.database import retries, session_settings
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Pool
from stackmgr.database.session import Session
from stackmgr.database.shared_reads import SharedReads
from stackmgr.scheduler import Scheduler
from tests.simulation.planting import Edit, Mutant


def _mutant(name: str, breaks: str, owner: Any, function: str, old: str, new: str, seed: int) -> Mutant:
    return Mutant(name, breaks, "database", (Edit(owner, function, old, new),), seed)


MUTANTS = [
    # Races that careful reading had found before the simulation.
    _mutant(
        "lost turn", "a connection passed to a request at the moment when it gives up is lost",
        Pool, "_next",
        "if passed := self._leave(waiter):\n        return",
        "if (passed := self._leave(waiter)) and time.monotonic() < give_up_at:\n        return", 32,
    ),
    _mutant(
        "rows after an exception", "an unforeseen exception leaves a connection in an exchange",
        DatabaseConnection, "_fail",
        "if not isinstance(ex, DatabaseError) or", "if isinstance(ex, DatabaseError) and", 0,
    ),
    # Mistakes that nobody has made yet.
    _mutant(
        "lost wake-up", "a signal from another thread does not end the scheduler's wait",
        Scheduler, "notice",
        "self.wake()", "pass", 2,
    ),
    _mutant(
        "first deadline only", "a wait with an earlier deadline does not shorten the scheduler's wait",
        Scheduler, "wait",
        "min(self._next_deadline, deadline)", "deadline if self._next_deadline == inf else self._next_deadline", 2,
    ),
    _mutant(
        "late event", "a descriptor stays with the greenlet whose wait for it has timed out",
        Scheduler, "wait_for",
        "del self._waiting[descriptor]", "pass", 0,
    ),
    _mutant(
        "event for the last one", "a descriptor stays with the greenlet that has waited for it",
        Scheduler, "_handle_ready",
        "self._waiting.pop(descriptor, None)", "self._waiting.get(descriptor)", 0,
    ),
    _mutant(
        "timed out for ever", "a greenlet whose time has passed is not resumed",
        Scheduler, "_expire",
        "self._resume(waiting, is_ready=False)", "self._deadlines[waiting] += 1.0", 0,
    ),
    _mutant(
        "wake-up not read", "the scheduler does not reset the descriptor that wakes it",
        Scheduler, "__init__",
        "os.eventfd_read(self._wake_up)", "None", 2,
    ),
    _mutant(
        "blocking wait", "a request waits for a thread by blocking all others",
        scheduler, "sleep",
        "Signal().wait(seconds)", "time.sleep(seconds)", 2,
    ),
    _mutant(
        "deadline of each attempt", "a retry starts the deadline of the session again",
        Session, "rows",
        "return self._run(statement, parameters, deadline)",
        "return self._run(statement, parameters, time.monotonic() + self._seconds_left)", 3230,
    ),
    _mutant(
        "deadline of each wait", "each wait for the server may take as long as the whole exchange",
        DatabaseConnection, "_wait",
        "deadline - time.monotonic()", "2.0", 48,
    ),
    _mutant(
        "released twice", "a closed session still has its connection",
        Session, "close",
        "connection, self._connection = self._connection, None", "connection = self._connection", 2,
    ),
    _mutant(
        "returned early", "a failed write releases its connection, which the session goes on to use",
        Session, "_run",
        "if self._connection.closed:\n            self.close()", "self._connections.release(self._connection)", 2,
    ),
    _mutant(
        "left in line", "a request whose time has passed stays in line",
        Pool, "_leave",
        "self._waiting.remove(waiter)", "pass", 2,
    ),
    _mutant(
        "overtaken", "a request whose connection has died joins the line at its end",
        Pool, "acquire",
        "is_first_in_line = True", "pass", 512,
    ),
    _mutant(
        "not connecting", "a request joins the line, and nobody connects for it",
        Pool, "_next",
        "self._maybe_grow_pool()", "pass", 0,
    ),
    _mutant(
        "one attempt", "after a failed attempt to connect nobody connects for those in line",
        Pool, "reconnect_failed",
        "self._sched.enter(RECONNECT_INTERVAL, self._connect_for_line)", "pass", 2,
    ),
    _mutant(
        "coldest first", "the connection that has been idle for longest is acquired first",
        Pool, "_next",
        "self._pool.pop()", "self._pool.popleft()", 6,
    ),
    _mutant(
        "stale connection dropped", "a connection that died while idle is not returned to the pool",
        Pool, "acquire",
        "self.putconn(connection)", "pass", 20,
    ),
    _mutant(
        "unchecked connection dropped", "a connection whose check fails is not returned to the pool",
        Pool, "acquire",
        "finally:\n            if", "except ZeroDivisionError:\n            if", 20,
    ),
    _mutant(
        "stale connection acquired", "a connection is acquired without a check",
        Pool, "acquire",
        "connection.is_stale()", "False", 216,
    ),
    _mutant(
        "write on a dead connection", "a write is sent on the session's connection, which has died meanwhile",
        Session, "_run",
        " and self._connection.is_stale()", " and False", 416,
    ),
    _mutant(
        "repeated write", "a write of unknown outcome is run again",
        retries, "should_retry",
        "action is RetryAction.RETRY_IF_READ and writes", "False", 72,
    ),
    _mutant(
        "rows before the commit", "a result counts before the server is ready for the next statement",
        DatabaseConnection, "_result",
        "results.append(result)", "results.append(result)\n            return results[0]", 0,
    ),
    _mutant(
        "unconfirmed write", "a write that no standby has confirmed is acknowledged",
        DatabaseConnection, "run",
        "self._warned and statement.writes", "False", 72,
    ),
    _mutant(
        "prefetch of another manager", "rows prefetched for a hint count whoever the key is",
        Session, "planned_rows",
        'prefetched is not None and parameters["manager_id"] == manager_id', "prefetched is not None", 6,
    ),
    _mutant(
        "rows exchanged", "the two results of a prefetch are taken for each other",
        DatabaseConnection, "run_together",
        "for result in results:", "for result in results[::-1]:", 2,
    ),
    _mutant(
        "pipeline mode kept", "a connection stays in pipeline mode after a prefetch",
        DatabaseConnection, "run_together",
        "self.pgconn.exit_pipeline_mode()", "pass", 2,
    ),
    # Mistakes in what requests share.
    _mutant(
        "rows of a neighbour", "the rows of a batch go to its requests in another order",
        SharedReads, "_run",
        "for request in batch:", "for request in reversed(batch):", 2,
    ),
    _mutant(
        "no rows for a failed batch", "the requests of a failed batch take it that nothing was found",
        SharedReads, "run",
        "return request.rows", "return request.rows or [[] for _ in reads]", 2,
    ),
    _mutant(
        "failure of a neighbour", "the error of a batch is the outcome of its leader, whichever statement failed",
        SharedReads, "_lead",
        "retries.retry_action(ex) is retries.RetryAction.CLOSE", "not retries.should_retry(ex, writes=False, attempts=1)", 2,
    ),
    _mutant(
        "first result only", "a batch succeeds if its first statement does",
        DatabaseConnection, "run_together",
        "for result in results:", "for result in results[:1]:", 2,
    ),
    _mutant(
        "late to a batch", "requests join a batch that has been sent",
        SharedReads, "_close",
        "self._open = None", "pass", 0,
    ),
    _mutant(
        "batch too large", "a batch never is complete",
        SharedReads, "_join",
        "self._open = None", "pass", 10,
    ),
    _mutant(
        "neighbours forgotten", "the end of a batch resumes nobody",
        SharedReads, "_lead",
        "request.has_ended.set()", "pass", 2,
    ),
    _mutant(
        "shared too early", "a batch's connection is released before its rows have arrived",
        SharedReads, "_lead",
        "self._run(batch", "self._connections.release(connection)\n        self._run(batch", 0,
    ),
    _mutant(
        "connection of a failed batch", "a batch that fails does not release its connection",
        SharedReads, "_lead",
        "if connection is not None:\n            self", "if connection is not None and batch[0].rows:\n            self", 0,
    ),
    _mutant(
        "other threads", "a request of any thread joins the batch of the scheduler's",
        SharedReads, "run",
        " and has_scheduler()", "", 2,
    ),
    # What the simulation has found in this code.
    _mutant(
        "rejected connection left open", "a connection whose settings cannot be read stays open",
        session_settings, "verify",
        "connection.close()  # the pool", "pass  # the pool", 38,
    ),
]  # fmt: skip
