"""A cell: what fails and how, how the fault is injected, and what it may cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.faults.stage import Stage

# Entering the context injects the fault, leaving it ends the fault.  Without one it ends at once.
Fault = Callable[["Stage"], Any]
Prepare = Callable[["Stage"], AbstractContextManager[object]]
CLIENTS = 6
# Seconds in which a service has full service again without a person.
RECOVERY = 2.0


@dataclass(frozen=True)
class Bound:
    """The permitted cost of a fault.

    `kinds` are the failures that clients may see: `500` (outcome unknown), `503` (rejected), `cut`
    (the connection ended without a response), `refused` (no connection); `most` is how many of them
    a fault may cost.  `/ready` either "stays" 200, "may fail", or "fails": then it must have
    reported the fault. `recovery` is in seconds.
    """

    kinds: str = ""
    most: int | None = None
    ready: Literal["stays", "may fail", "fails"] = "stays"
    recovery: float = RECOVERY

    def __str__(self) -> str:
        count = "" if self.most is None else f"{self.most} "
        failures = count + self.kinds.replace(" ", "/") if self.kinds else "no failure"
        return f"{failures}, ready {self.ready}, back in {self.recovery:g} s"


# A worker that dies cuts the connections of the requests it has.
ONE_WORKER = Bound("cut", CLIENTS)
# The database is away for a moment, or until `/ready` has reported it.
OUTAGE = Bound("500 503", ready="may fail")
DOWN = Bound("500 503", ready="fails")


@dataclass(frozen=True)
class Cell:
    """*what* fails *how*: `fault` injects it for `lasts` seconds, and then `rest` seconds pass.

    `what` is the thing, with a variant in parentheses.  `setup` prepares the stage before the
    service starts, in a context that outlasts it; it raises NoPlace where that cannot be.  A
    `control` breaks that rule of histories, and must show it.  `trace` is a text that a log must
    have of it.  Only a cell that `restarts` the service may end its master.  `mixed` cells are also
    injected in random order on one service; the tests run `short` ones.
    """

    what: str
    how: Literal["dies", "hangs", "is slow", "lies", "is full"]
    fault: Fault
    bound: Bound = Bound()
    lasts: float = 1.0
    rest: float = 1.0
    setup: Prepare | None = None
    control: str = ""
    trace: str = ""
    restarts: bool = False
    mixed: bool = False
    short: bool = False

    @property
    def name(self) -> str:
        return "-".join(re.findall(r"\w+", f"{self.what} {self.how}"))
