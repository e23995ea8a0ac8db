"""Cells of the network to the database, which is the stage's proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.faults.cell import DOWN, OUTAGE, Bound, Cell
from tests.faults.database import LONG
from tests.faults.stage import Stage

_DELAY_SECONDS = 0.1


@contextmanager
def _hold(stage: Stage, *, only_backwards: bool = False, cuts: bool = False) -> Iterator[None]:
    """Let nothing through, or no response; connections may be *cut* before."""
    stage.proxy.hold(only_backwards=only_backwards)
    if cuts:
        stage.proxy.cut()
    try:
        yield
    finally:
        stage.proxy.release()


@contextmanager
def _delay(stage: Stage) -> Iterator[None]:
    stage.proxy.delay = _DELAY_SECONDS
    try:
        yield
    finally:
        stage.proxy.delay = 0.0


_NETWORK = "network to the database"
# A new connection needs several round trips, which the first requests do not wait for.
_SLOW = Bound("503", ready="may fail")

CELLS = [
    Cell(_NETWORK, "hangs", _hold, DOWN, lasts=LONG, mixed=True),
    Cell(_NETWORK, "dies", lambda stage: stage.proxy.cut(), OUTAGE, lasts=0.0, mixed=True),
    Cell(_NETWORK, "is slow", _delay, _SLOW, lasts=LONG),
    Cell(
        *(f"{_NETWORK} (responses lost)", "lies", partial(_hold, only_backwards=True), DOWN),
        lasts=LONG,
        short=True,
    ),
    Cell(f"{_NETWORK} (accepts, is silent)", "lies", partial(_hold, cuts=True), DOWN, lasts=LONG),
]
