"""What a process does in the background."""

import atexit
import threading
import time
from collections.abc import Callable


def repeat(work: Callable[[], None], seconds: float, name: str) -> None:
    """Call *work* every so many *seconds* in a thread of its own, and once more when the process ends.

    To be called after a fork, which a thread does not survive.
    """

    def run() -> None:
        while True:
            time.sleep(seconds)
            work()

    threading.Thread(target=run, name=name, daemon=True).start()
    atexit.register(work)
