"""One thread holds a run slot, three while some write; a released slot goes to another thread."""

from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from stackmgr import slots
from stackmgr.slots import Distance, RunSlots, before_write, blocking

PATIENCE = 60
# How long a thread is watched to see that it gets no slot: too short a time could only hide that.
WATCHED = 0.1


class Threads:
    """Some threads that do as they are told, one thing after the other."""

    def __init__(self, number: int, cleanup: ExitStack) -> None:
        self.slots = RunSlots()
        self._threads = [cleanup.enter_context(ThreadPoolExecutor(1)) for _ in range(number)]

    def acquire(self, number: int) -> "Future[None]":
        return self._threads[number].submit(self.slots.acquire)

    def block(self, number: int) -> None:
        self._threads[number].submit(blocking.__enter__).result(PATIENCE)

    def resume(self, number: int) -> "Future[None]":
        return self._threads[number].submit(blocking.__exit__)

    def write(self, number: int) -> None:
        self._threads[number].submit(before_write).result(PATIENCE)


@pytest.fixture
def threads() -> Iterator[Threads]:
    with ExitStack() as cleanup:
        threads = Threads(4, cleanup)
        yield threads
        for _ in range(4):  # or one that still waits would never end
            threads.slots._add_free()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may set."""
    now = [1000.0]
    monkeypatch.setattr(slots, "monotonic", lambda: now[0])
    return now


def waits(acquiring: "Future[None]") -> bool:
    """Whether the thread still waits for a slot."""
    try:
        acquiring.result(WATCHED)
    except TimeoutError:
        return True
    return False


def test_one_thread_holds_the_slot_until_it_blocks(threads):
    threads.acquire(0).result(PATIENCE)
    second = threads.acquire(1)
    threads.acquire(0).result(PATIENCE)
    assert waits(second)
    threads.block(0)
    second.result(PATIENCE)
    first = threads.acquire(0)
    assert waits(first)
    threads.block(1)
    first.result(PATIENCE)


def test_a_thread_releases_its_own_slot_only(threads):
    threads.acquire(0).result(PATIENCE)
    threads.block(1)
    threads.block(0)
    threads.block(0)
    threads.acquire(1).result(PATIENCE)
    third = threads.acquire(2)
    assert waits(third)
    threads.block(1)
    third.result(PATIENCE)


def test_there_are_three_slots_while_some_write_and_then_one_again(threads, now):
    threads.acquire(0).result(PATIENCE)
    others = [threads.acquire(1), threads.acquire(2)]
    assert [waits(other) for other in others] == [True, True]
    threads.write(0)
    threads.write(0)
    for other in others:
        other.result(PATIENCE)
    fourth = threads.acquire(3)
    threads.acquire(0).result(PATIENCE)
    assert waits(fourth)
    now[0] += 1.0
    waiting = [fourth, threads.acquire(0), threads.acquire(1)]
    assert [waits(one) for one in waiting] == [True, True, True]
    threads.acquire(2).result(PATIENCE)
    threads.block(2)
    futures.wait(waiting, PATIENCE, return_when=futures.FIRST_COMPLETED)
    assert sorted(waits(one) for one in waiting) == [False, True, True]
    threads.write(2)
    for one in waiting:
        one.result(PATIENCE)


def test_a_thread_with_a_request_resumes_before_others_start(threads):
    threads.acquire(0).result(PATIENCE)
    second, third = threads.acquire(1), threads.acquire(2)
    threads.block(0)  # the slot goes to the last that asked
    third.result(PATIENCE)
    first = threads.resume(0)
    assert waits(first)
    third = threads.acquire(2)  # its request has ended
    first.result(PATIENCE)
    assert [waits(second), waits(third)] == [True, True]


def test_a_thread_that_holds_a_slot_resumes_at_once(threads):
    threads.acquire(0).result(PATIENCE)
    threads.resume(0).result(PATIENCE)
    second = threads.acquire(1)
    assert waits(second)
    threads.block(0)
    second.result(PATIENCE)


def test_a_thread_outside_a_worker_neither_releases_nor_adds_a_slot(threads):
    with blocking:
        before_write()
    threads.acquire(0).result(PATIENCE)
    second = threads.acquire(1)
    assert waits(second)
    threads.block(0)
    second.result(PATIENCE)


NEAR, FAR = slots.LOCAL_ROUND_TRIP / 2, slots.LOCAL_ROUND_TRIP * 2


def test_a_server_is_near_by_its_shortest_statement_and_far_until_that_is_known():
    distance = Distance()
    seen = []
    for seconds in [NEAR] + [1.0] * (slots._WINDOW - 1):
        seen.append(distance.is_near)
        distance.record(seconds)
    assert not any(seen)
    assert distance.is_near


def test_a_server_that_is_near_no_more_is_found_out():
    distance = Distance()
    for seconds in [NEAR] * slots._WINDOW + [FAR] * slots._LONG_WINDOW:
        distance.record(seconds)
    assert not distance.is_near
    for _ in range(slots._WINDOW):
        distance.record(NEAR)
    assert distance.is_near


def test_a_released_slot_goes_to_the_thread_that_was_idle_least(threads):
    threads.acquire(0).result(PATIENCE)
    first = threads.acquire(1)
    assert waits(first)
    second = threads.acquire(2)
    assert waits(second)
    threads.block(0)
    second.result(PATIENCE)
    assert waits(first)
