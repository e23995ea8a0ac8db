"""Probes `/live` and `/ready` every 50 ms, and what else is repeated while a cell goes on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException

from tests.support.server import send_request

_INTERVAL = 0.05


@dataclass(frozen=True)
class Probe:
    """One probe, in the time of the monotonic clock; `status` is 0 without a response."""

    path: str
    sent: float
    completed: float
    status: int


@contextmanager
def repeated(act: Callable[[], object], seconds: float) -> Iterator[None]:
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)
        assert not thread.is_alive(), "what is repeated has not ended"


@contextmanager
def probing(port: int) -> Iterator[list[Probe]]:
    probes: list[Probe] = []

    def probe(path: str) -> None:
        sent, status = time.monotonic(), 0
        with suppress(OSError, HTTPException):
            status, _ = send_request(port, path)
        probes.append(Probe(path, sent, time.monotonic(), status))

    with ExitStack() as both:
        for path in ("/live", "/ready"):
            both.enter_context(repeated(partial(probe, path), _INTERVAL))
        yield probes
