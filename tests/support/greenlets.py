"""A scheduler as in a worker, for what a test runs in greenlets."""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

from stackmgr.http.app import Application
from stackmgr.scheduler import READABLE, Scheduler

PATIENCE = 60
# Requests at the same time: of a worker by default.
GREENLETS = 64

WSGIApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Running:
    """A scheduler in a thread of its own, which runs what it is given, each in a greenlet."""

    def __init__(self, number: int, cleanup: ExitStack) -> None:
        self.events = cleanup.enter_context(select.epoll())
        self._calls: dict[int, Callable[[], None]] = {}
        self.scheduler = Scheduler(self.events, number, self._handle)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        cleanup.callback(self._end)

    def _handle(self, descriptor: int) -> None:
        call = self._calls.pop(descriptor)
        self.events.unregister(descriptor)
        os.close(descriptor)
        call()

    def _run(self) -> None:
        with suppress(SystemExit):
            self.scheduler.run()

    def _end(self) -> None:
        """End the thread, as nothing does that the scheduler is made for."""
        self._watch(sys.exit)
        self.thread.join(PATIENCE)

    def _watch(self, call: Callable[[], None]) -> None:
        descriptor = os.eventfd(1)
        self._calls[descriptor] = call
        self.events.register(descriptor, READABLE | select.EPOLLONESHOT)

    def start(self, call: Callable[[], object]) -> "Future[object]":
        """Run *call* in a greenlet, as soon as one is idle."""
        future: Future[object] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as ex:  # noqa: BLE001 - for the test
                future.set_exception(ex)

        self._watch(run)
        return future

    def do(self, call: Callable[[], object]) -> object:
        """Run *call* in a greenlet, and return its result."""
        return self.start(call).result(PATIENCE)


@cache
def _worker() -> Running:
    """Return the scheduler of this process, which runs until the process ends."""
    return Running(GREENLETS, ExitStack())


def in_greenlets(app: Application) -> WSGIApplication:
    """Return *app* as a worker runs it: each request in a greenlet, all in one thread."""

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        def respond() -> list[bytes]:
            content = app(environ, start_response)
            try:
                return list(content)
            finally:
                if hasattr(content, "close"):
                    content.close()

        return _worker().do(respond)

    return serve
