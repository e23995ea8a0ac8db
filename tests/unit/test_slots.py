"""One thread has a seat, three while some write; whoever gives it up lets another have it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from stackmgr import slots
from stackmgr.slots import RunSlots, before_write, give_up

PATIENCE = 10
# How long a thread is watched to see that it does not get a seat: too short a time could only hide that.
WATCHED = 0.1


class Threads:
    """Some threads that do as they are told, one thing after the other."""

    def __init__(self, number: int, cleanup: ExitStack) -> None:
        self.seats = RunSlots()
        self._threads = [cleanup.enter_context(ThreadPoolExecutor(1)) for _ in range(number)]

    def take(self, number: int) -> "Future[None]":
        return self._threads[number].submit(self.seats.take)

    def give_up(self, number: int) -> None:
        self._threads[number].submit(give_up).result(PATIENCE)

    def before_write(self, number: int) -> None:
        self._threads[number].submit(before_write).result(PATIENCE)


@pytest.fixture
def threads() -> Iterator[Threads]:
    with ExitStack() as cleanup:
        threads = Threads(4, cleanup)
        yield threads
        for _ in range(4):  # or one that still waits would never end
            threads.seats._free.put(None)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may set."""
    now = [1000.0]
    monkeypatch.setattr(slots, "monotonic", lambda: now[0])
    return now


def waits(taking: "Future[None]") -> bool:
    """Whether the thread still waits for a seat."""
    try:
        taking.result(WATCHED)
    except TimeoutError:
        return True
    return False


def test_one_thread_at_a_time_has_the_seat_and_keeps_it_until_it_gives_it_up(threads):
    threads.take(0).result(PATIENCE)
    second = threads.take(1)
    threads.take(0).result(PATIENCE)
    assert waits(second)
    threads.give_up(0)
    second.result(PATIENCE)
    first = threads.take(0)
    assert waits(first)
    threads.give_up(1)
    first.result(PATIENCE)


def test_a_thread_gives_up_what_it_has_and_no_more(threads):
    threads.take(0).result(PATIENCE)
    threads.give_up(1)
    threads.give_up(0)
    threads.give_up(0)
    threads.take(1).result(PATIENCE)
    third = threads.take(2)
    assert waits(third)
    threads.give_up(1)
    third.result(PATIENCE)


def test_there_are_three_seats_while_some_write_and_then_one_again(threads, now):
    threads.take(0).result(PATIENCE)
    others = [threads.take(1), threads.take(2)]
    assert [waits(other) for other in others] == [True, True]
    threads.before_write(0)
    threads.before_write(0)
    assert [waits(other) for other in others] == [False, False]
    fourth = threads.take(3)
    threads.take(0).result(PATIENCE)
    assert waits(fourth)
    now[0] += 1.0
    waiting = [fourth, threads.take(0), threads.take(1)]
    assert [waits(one) for one in waiting] == [True, True, True]
    threads.take(2).result(PATIENCE)
    threads.give_up(2)
    assert sorted(waits(one) for one in waiting) == [False, True, True]
    threads.before_write(2)
    assert [waits(one) for one in waiting] == [False, False, False]


def test_a_thread_that_serves_nobody_neither_gives_up_nor_adds_a_seat(threads):
    give_up()
    before_write()
    threads.take(0).result(PATIENCE)
    second = threads.take(1)
    assert waits(second)
    threads.give_up(0)
    second.result(PATIENCE)
