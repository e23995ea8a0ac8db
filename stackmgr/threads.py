"""Threads beside the scheduler's: for what may block for long, or comes again and again."""

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import TypeVar

from stackmgr.scheduler import Signal, has_scheduler

_Result = TypeVar("_Result")


def result(future: Future[_Result], seconds: float | None = None) -> _Result:
    """Return a future's result.  Raises what the future does, and TimeoutError after *seconds*."""
    if not has_scheduler():
        return future.result(seconds)
    signal = Signal()
    future.add_done_callback(lambda _: signal.set())
    signal.wait(inf if seconds is None else seconds)
    try:
        return future.result(0)
    finally:
        del future  # its exception has this frame


def call_in_thread(call: Callable[[], _Result]) -> _Result:
    """Return what *call* returns; in a worker, it may block, so it runs in a thread of its own."""
    if not has_scheduler():
        return call()
    try:
        future = start_thread(call)
    except RuntimeError:  # no more threads: to block is better than to fail
        return call()
    return result(future)


def start_thread(call: Callable[[], _Result]) -> Future[_Result]:
    """Return a future of *call*, which runs in a thread of its own.  Raises RuntimeError."""

    def run(future: Future[_Result]) -> None:
        try:
            future.set_result(call())
        except BaseException as ex:  # noqa: BLE001 - it is raised where the result is read
            future.set_exception(ex)
        finally:
            del future  # as in `result`

    future: Future[_Result] = Future()
    threading.Thread(target=run, args=(future,), daemon=True).start()
    return future


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
