"""Mistakes in the scheduler, the line, the pool, sessions and connections; each is found by the simulation."""

from typing import Any

from stackmgr import scheduler
from stackmgr.database import retries, session_settings
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.hot_connections import HotConnections
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.database.shared_reads import SharedReads
from stackmgr.scheduler import Scheduler, Signal
from tests.simulation.planting import Edit, Mutant


def _mutant(name: str, breaks: str, owner: Any, function: str, old: str, new: str, seed: int) -> Mutant:
    return Mutant(name, breaks, "database", (Edit(owner, function, old, new),), seed)


MUTANTS = [
    # Races that careful reading had found before the simulation.
    Mutant(
        "lost turn", "a connection passed to a request at the moment when it gives up is lost", "database",
        (
            Edit(Signal, "wait", "self._scheduler.wait(seconds)\n        self.waiting = None",
                 "is_woken = self._scheduler.wait(seconds)\n        self.waiting = None\n        return is_woken"),
            Edit(Database, "_next_connection", "found.woken.wait(left)\n",
                 "if not found.woken.wait(left):\n            self._hot.leave(found)\n"
                 "            found.connection = None\n"),
            # The moment comes more often where requests give up early.
            Edit(Database, "acquire", "_ACQUIRE_SHARE", "0.1"),
        ), 2850,
    ),
    Mutant(
        "overtaken", "the first in line is told of a connection, which a later request may take", "database",
        (
            Edit(HotConnections, "_hand_on", "waiter.connection = connection", "self._kept.append(connection)"),
            Edit(HotConnections, "leave", "return waiter.connection",
                 "return self._kept.pop() if waiter.woken._is_set and self._kept else None"),
        ), 2,
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
        "del self._waiting[descriptor]", "pass", 24,
    ),
    _mutant(
        "event for the last one", "a descriptor stays with the greenlet that has waited for it",
        Scheduler, "_handle_ready",
        "self._waiting.pop(descriptor, None)", "self._waiting.get(descriptor)", 0,
    ),
    _mutant(
        "timed out for ever", "a greenlet whose time has passed is not resumed",
        Scheduler, "_expire",
        "self._resume(waiting, is_ready=False)", "self._deadlines[waiting] += 1.0", 2,
    ),
    _mutant(
        "wake-up not read", "the scheduler does not reset the descriptor that wakes it",
        Scheduler, "_handle_ready",
        "os.eventfd_read(descriptor)", "pass", 2,
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
        "return self._run(statement, parameters, time.monotonic() + self._seconds_left)", 626,
    ),
    _mutant(
        "deadline of each wait", "each wait for the server may take as long as the whole exchange",
        DatabaseConnection, "_wait",
        "deadline - time.monotonic()", "2.0", 84,
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
        "check-out without an end", "an exception of the pool skips the end of a check-out",
        Database, "_check_out",
        "self._hot.end_check_out(connection, failure)", "failure or self._hot.end_check_out(connection, failure)", 38,
    ),
    _mutant(
        "room of a timeout", "a check-out without a connection does not return its room",
        HotConnections, "end_check_out",
        "self._room += 1", "pass", 2,
    ),
    _mutant(
        "room of a closed connection", "a closed connection that returns to the pool makes no room",
        Database, "_return_to_pool",
        "self._hot.make_room()", "connection.closed or self._hot.make_room()", 2,
    ),
    _mutant(
        "line not served", "who makes room does not look at the line",
        Database, "_return_to_pool",
        "self._serve_line()", "pass", 38,
    ),
    _mutant(
        "stale connection dropped", "a connection that died while idle is not returned to the pool",
        Database, "acquire",
        "self._return_to_pool(connection)", "pass", 18,
    ),
    _mutant(
        "last in, first served", "the line is served from its end",
        HotConnections, "_hand_on",
        "self._line.popleft()", "self._line.pop()", 2,
    ),
    _mutant(
        "closed connection kept", "a closed connection is passed to the next request",
        HotConnections, "keep",
        "connection.closed or ", "", 0,
    ),
    _mutant(
        "kept for ever", "a connection in frequent use never returns to the pool",
        HotConnections, "keep",
        " or time.monotonic() - connection.acquired_at > HOT_SECONDS", "", 4,
    ),
    _mutant(
        "drain of the pool only", "a drain leaves the connections in frequent use",
        Database, "drain",
        "self._return_hot()", "pass", 6,
    ),
    _mutant(
        "late result", "a connection is used again after a deadline has passed on it",
        retries, "must_close",
        "RetryAction.RETRY_IF_READ, RetryAction.CLOSE)", "RetryAction.RETRY_IF_READ)", 86,
    ),
    _mutant(
        "repeated write", "a write of unknown outcome is run again",
        retries, "should_retry",
        "action is RetryAction.RETRY_IF_READ and writes", "False", 2,
    ),
    _mutant(
        "rows before the commit", "a result counts before the server is ready for the next statement",
        DatabaseConnection, "_result",
        "results.append(result)", "results.append(result)\n            return results[0]", 0,
    ),
    _mutant(
        "unconfirmed write", "a write that no standby has confirmed is acknowledged",
        DatabaseConnection, "run",
        "self._warned and statement.writes", "False", 18,
    ),
    _mutant(
        "prefetch of another manager", "rows prefetched for a hint count whoever the key is",
        Session, "planned_rows",
        'prefetched is not None and parameters["manager_id"] == manager_id', "prefetched is not None", 2870,
    ),
    _mutant(
        "rows exchanged", "the two results of a prefetch are taken for each other",
        DatabaseConnection, "run_together",
        "for result in results:", "for result in results[::-1]:", 14,
    ),
    _mutant(
        "pipeline mode kept", "a connection stays in pipeline mode after a prefetch",
        DatabaseConnection, "run_together",
        "self.pgconn.exit_pipeline_mode()", "pass", 6,
    ),
    # Mistakes in what requests share.
    _mutant(
        "rows of a neighbour", "the rows of a batch go to its requests in another order",
        SharedReads, "_run",
        "for request in batch:", "for request in reversed(batch):", 22,
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
        "for result in results:", "for result in results[:1]:", 10,
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
        "if connection is not None:\n            self", "if connection is not None and batch[0].rows:\n            self", 2,
    ),
    _mutant(
        "other threads", "a request of any thread joins the batch of the scheduler's",
        SharedReads, "run",
        " or not has_scheduler()", "", 2,
    ),
    # What the simulation has found in this code.
    _mutant(
        "rejected connection left open", "a connection whose settings cannot be read stays open",
        session_settings, "verify",
        "connection.close()  # the pool", "pass  # the pool", 126,
    ),
]  # fmt: skip
