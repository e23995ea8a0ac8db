"""Periodic work in a background thread."""

import atexit
import threading
import time
from collections.abc import Callable


def repeat(work: Callable[[], None], seconds: float, name: str) -> None:
    """Call *work* every *seconds* in a thread of its own, and once more when the process ends.

    Call this after a fork: a fork does not copy threads.
    """

    def run() -> None:
        while True:
            time.sleep(seconds)
            work()

    threading.Thread(target=run, name=name, daemon=True).start()
    atexit.register(work)
