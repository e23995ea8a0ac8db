"""Which requests the application runs at once: no key has all the greenlets, whatever its clients send."""

from collections import Counter

from stackmgr.scheduler import Signal


class Shares:
    """Admits *limit* requests at a time, three quarters of them of one key. For the request thread alone."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._share = limit - limit // 4
        self._running: Counter[str] = Counter()
        self._waiting: list[tuple[str, Signal]] = []  # in the order of their arrival

    def room(self) -> int:
        """Return how many more requests may run at once."""
        return self._free

    def enter(self, key: str, seconds: float) -> bool:
        """Wait until a request of *key* may run; return False if it may not within *seconds*."""
        if self._admit(key):
            return True
        turn = key, Signal()
        self._waiting.append(turn)
        if not turn[1].wait(seconds):
            self._waiting.remove(turn)
            return False
        return True

    def leave(self, key: str) -> None:
        """Note that a request of *key* has ended; admit the first that may run now."""
        self._free += 1
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        for number, (waiting, signal) in enumerate(self._waiting):
            if self._admit(waiting):
                del self._waiting[number]
                signal.set()
                return

    def _admit(self, key: str) -> bool:
        if not self._free or self._running[key] >= self._share:
            return False
        self._free -= 1
        self._running[key] += 1
        return True
