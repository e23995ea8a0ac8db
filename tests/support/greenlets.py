"""A scheduler as in a worker, for what a test runs in greenlets."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache
from typing import Any

from stackmgr.admission import ADMISSION
from stackmgr.http.app import Application
from stackmgr.scheduler import Scheduler
from stackmgr.server.queue import Place, RequestQueue

PATIENCE = 60
# Requests at the same time: of a worker by default.
GREENLETS = 64
WSGIApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


def close(scheduler: Scheduler) -> None:
    """Close the descriptors that a worker's scheduler keeps until the process ends."""
    scheduler._epoll.close()
    os.close(scheduler._wake_up)


class Running:
    """A scheduler in a thread of its own, which runs what it is given, *number* calls at a time."""

    def __init__(self, number: int, cleanup: ExitStack) -> None:
        self.scheduler = Scheduler()
        self._free = number
        self._calls: deque[Callable[[], None]] = deque()
        self._has_ended = self.is_busy = False
        work = self._turn, self._idle_seconds, lambda: self.is_busy
        self.thread = threading.Thread(target=self.scheduler.run, args=work, daemon=True)
        self.thread.start()
        cleanup.callback(self._end)

    def _turn(self) -> bool:
        while self._calls and self._free:
            self._free -= 1
            self.scheduler.start(self._calls.popleft())
        return not self._has_ended

    def _idle_seconds(self) -> float:
        return 0.0 if self._calls and self._free else PATIENCE

    def _end(self) -> None:
        self._has_ended = True
        self.scheduler.wake()
        self.thread.join(PATIENCE)
        close(self.scheduler)

    def start(self, call: Callable[[], object]) -> "Future[object]":
        future: Future[object] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as ex:  # noqa: BLE001 - for the test
                future.set_exception(ex)
            finally:
                self._free += 1

        self._calls.append(run)
        self.scheduler.wake()
        return future

    def do(self, call: Callable[[], object]) -> object:
        return self.start(call).result(PATIENCE)


@cache
def _worker() -> Running:
    return Running(GREENLETS, ExitStack())


def in_greenlets(app: Application) -> WSGIApplication:
    """Return *app* as a worker runs it: each request in a greenlet of one thread, with a worker's memory."""
    queue: RequestQueue[None] = RequestQueue(4 * GREENLETS)

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        place = environ[ADMISSION] = Place(queue.accept)

        def start(status: str, headers: Any, exc_info: Any = None) -> Any:
            if status.startswith("401"):
                queue.forget(place)
            return start_response(status, headers, exc_info)

        def respond() -> list[bytes]:
            queue.add(place, environ.get("HTTP_AUTHORIZATION", ""), None, 0.0)
            queue.take()
            content = app(environ, start)
            try:
                return list(content)
            finally:
                queue.leave(place)
                if hasattr(content, "close"):
                    content.close()

        return _worker().do(respond)

    return serve
