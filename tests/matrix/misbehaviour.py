"""Faults inside a worker, injected by a signal.

The stage's settings of gunicorn install the handler in each worker.  The file named by `MATRIX_ORDER` holds
the name of one of ORDERS, which the worker's thread carries out.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SIGNAL = signal.SIGRTMIN
CONFIGURATION = """
def post_worker_init(worker):
    from tests.matrix import misbehaviour
    misbehaviour.install(worker)
"""
_FOR_EVER = 10_000.0


def _spin() -> None:
    """Compute for ever: the interpreter switches threads, the worker's thread never its greenlets."""
    while True:
        pass


def _block() -> None:
    """Wait for ever in a call that releases the interpreter lock."""
    time.sleep(_FOR_EVER)


def _block_with_the_lock() -> None:
    """Wait for ever in a call that holds the interpreter lock, as a faulty extension does."""
    import ctypes  # noqa: PLC0415 - only where it is wanted

    ctypes.PyDLL(None).sleep(int(_FOR_EVER))


def _slow() -> None:
    """Hold up every request for a tenth of a second, as a garbage collection or a page fault does."""
    time.sleep(0.1)


def _hoard() -> None:
    """Use up the memory that the process may have, and free it after some seconds."""
    hoard: list[bytearray] = []
    timer = threading.Timer(3.0, hoard.clear)
    timer.start()
    for size in (1 << 20, 1 << 16, 1 << 12):
        with suppress(MemoryError):
            while True:
                hoard.append(bytearray(size))


ORDERS: dict[str, Callable[[], None]] = {
    "spin": _spin,
    "block": _block,
    "block-with-the-lock": _block_with_the_lock,
    "slow": _slow,
    "hoard": _hoard,
}


def install(worker: Any) -> None:
    """Let *worker* carry out the order when it gets the signal."""

    def obey(*_: object) -> None:
        name = Path(os.environ["MATRIX_ORDER"]).read_text()
        if name == "end":
            worker.must_exit = True  # no request catches the exception
            sys.exit(1)
        ORDERS[name]()

    assert threading.current_thread() is threading.main_thread()
    signal.signal(SIGNAL, obey)
