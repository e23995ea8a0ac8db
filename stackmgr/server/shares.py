"""Which requests the application runs at once: no key has all the greenlets, whatever its clients send."""

from stackmgr.scheduler import Signal


class Shares:
    """Admits *limit* requests at a time, three quarters of them of one key. For the request thread alone."""

    def __init__(self, limit: int) -> None:
        self.free = limit  # how many more requests may run at once
        self._share = limit - limit // 4
        self._running: dict[str, int] = {}
        self._waiting: list[tuple[str, Signal]] = []  # in the order of their arrival

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
        self.free += 1
        running = self._running[key] - 1
        if running:
            self._running[key] = running
        else:
            del self._running[key]
        for number, (waiting, signal) in enumerate(self._waiting):
            if self._admit(waiting):
                del self._waiting[number]
                signal.set()
                return

    def _admit(self, key: str) -> bool:
        running = self._running.get(key, 0)
        if not self.free or running >= self._share:
            return False
        self.free -= 1
        self._running[key] = running + 1
        return True
