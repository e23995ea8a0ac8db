"""Wait until a condition holds."""

import time
from collections.abc import Callable
from typing import TypeVar

INTERVAL_SECONDS = 0.01
T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 30.0, message: object = "it never held") -> T:
    """Return the first true result of *condition*.  Fail with *message* if there is none within *seconds*."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, message
        time.sleep(INTERVAL_SECONDS)
    return result
