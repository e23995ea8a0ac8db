"""Do something again and again while a test goes on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call *act* in a thread until the context ends, *seconds* after the beginning and after each call."""
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
