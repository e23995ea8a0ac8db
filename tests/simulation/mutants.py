"""Mistakes for the simulation to find: each is an edit of the source of one function, for one run."""

import inspect
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from stackmgr.access.verifiers.database import LastUse
from stackmgr.database import conninfo
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Pool
from stackmgr.database.round_trips import RoundTrips
from stackmgr.database.session import Session
from stackmgr.scheduler import Scheduler


@dataclass(frozen=True)
class Mutant:
    """A mistake: *old*, which is once in the source of *owner*'s function, becomes *new*; *seed* finds it."""

    name: str
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


_ROWS: list[tuple[str, Any, str, str, str, int]] = [
    # Races that careful reading had found before the simulation.
    ("lost turn", Pool, "_next", "if passed := self._leave(waiter):\n        return",
     "if (passed := self._leave(waiter)) and time.monotonic() < give_up_at:\n        return", 100),
    # Mistakes that nobody has made yet.
    ("lost wake-up", Scheduler, "notice", "self.wake()", "pass", 1),
    ("late event", Scheduler, "_take_expired", "self._waiters.pop(descriptor, None)", "pass", 0),
    ("deadline of each attempt", Session, "rows", "encoded, deadline, may_share=may_share and attempt == 1",
     "encoded, time.monotonic() + self._seconds_left, may_share=may_share and attempt == 1", 816),
    ("deadline of each wait", DatabaseConnection, "_wait", "deadline - time.monotonic()", "2.0", 9),
    ("overtaken", Pool, "acquire", "is_first_in_line = True", "pass", 1249),
    ("one attempt", Pool, "reconnect_failed",
     "self._sched.enter(RECONNECT_INTERVAL, self._connect_for_line)", "pass", 2),
    ("coldest first", Pool, "_next", "self._pool.pop()", "self._pool.popleft()", 1),
    ("unchecked connection dropped", Pool, "acquire", "finally:\n            if",
     "except ZeroDivisionError:\n            if", 3),
    # Mistakes in what requests share.
    ("locks in order of arrival", RoundTrips, "_send_together", "sorted(requests, key=_lock_order)",
     "list(requests)", 133),
    ("writes use all connections", RoundTrips, "__init__", "size - 1", "size", 4),
    ("shared too early", RoundTrips, "_lead", "self._send(batch, connection, deadline)",
     "self._connections.release(connection)\n        self._send(batch, connection, deadline)", 0),
    ("other threads", RoundTrips, "run", " and has_scheduler()", "", 2),
    # Errors without a fault.
    ("gives up", Pool, "_next", "wait(give_up_at - started)", "wait((give_up_at - started) / 4)", 0),
    ("all of its time in line", RoundTrips, "_lead",
     "min(deadline, time.monotonic() + self._connections.acquire_seconds)", "deadline", 0),
    ("warning of another write", DatabaseConnection, "_send", "self._warned = False", "pass", 22),
    # Threads beside the requests'.
    ("no lock at the pool", Pool, "_next", "with self._lock:", "if True:", 161),
    ("uses forgotten", LastUse, "write", "self._noticed |= noticed", "pass", 38),
    # What the simulation has found in this code.
    ("rejected connection left open", conninfo, "verify_settings", "connection.close()  # the pool",
     "pass  # the pool", 154),
]  # fmt: skip
MUTANTS = {each[0]: Mutant(*each) for each in _ROWS}
