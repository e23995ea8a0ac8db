"""Greenlets of one thread: what waits lets the others run, and each wait ends when it should."""

import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import product

import pytest

from stackmgr import scheduler, threads
from stackmgr.scheduler import READABLE, WRITABLE, Scheduler, Signal, wait_for
from stackmgr.threads import call_in_thread
from tests.support.greenlets import PATIENCE, Running, close


@pytest.fixture
def running() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(100, cleanup)


def test_a_parked_call_starts_in_its_lane(pair):
    one, other = pair
    scheduler, lane, found, resumed = Scheduler(), deque(), [], []

    def turn() -> bool:
        while lane:
            resumed.append(list(found))
            scheduler.resume(lane.popleft())
        return len(found) < 2

    scheduler.park(lambda is_ready: found.append(("other", is_ready)), other.fileno(), READABLE, 0.02, lane)
    scheduler.park(lambda is_ready: found.append(("one", is_ready)), one.fileno(), READABLE, 0.0, lane)
    other.send(b"x")
    scheduler.run(turn, lambda: PATIENCE)
    assert found == [("one", True), ("other", False)]  # an event that is there comes before a deadline
    assert resumed == [[]]


@pytest.mark.parametrize("kind", ["ready", "signalled", "expired", "ending"])
def test_a_turn_resumes_for_a_bounded_time(pair, monkeypatch, kind):
    now, resumed, turns, scheduled, signals = [0.0], [], [], Scheduler(), []
    monkeypatch.setattr(scheduler, "monotonic", lambda: now[0])

    def wait(sock: socket.socket) -> None:
        signals.append(Signal())
        {
            "ready": partial(scheduled.wait_for, sock.fileno(), WRITABLE, PATIENCE),
            "signalled": partial(signals[-1].wait, PATIENCE),
            "expired": partial(scheduled.wait, 0.5),
            "ending": Signal().wait_until_idle,
        }[kind]()
        resumed.append(sock)
        now[0] += 1.0

    def turn() -> bool:
        turns.append(len(resumed))
        if len(turns) == 1:
            for sock in pair:
                scheduled.start(partial(wait, sock))
            now[0] += 1.0
            if kind == "signalled":
                deque(map(Signal.set, signals), 0)
        return len(turns) < 4

    scheduled.run(turn, lambda: 0.0)
    close(scheduled)
    assert turns == [0, 1, 2, 2]


def test_a_turn_removes_few_deadlines_of_waits_that_have_ended(pair, monkeypatch):
    monkeypatch.setattr(scheduler, "monotonic", lambda: 0.0)
    left, scheduled, descriptor = [], Scheduler(), pair[0].fileno()
    for lane, number in product([None, deque()], range(1000)):
        scheduled.park(print, descriptor, READABLE, number / 16_000, lane)
        scheduled.forget(descriptor)
    scheduled.wake()
    scheduled.run(lambda: left.append(len(scheduled._times)) or len(left) < 4, lambda: 0.0)
    assert 1000 < left[0] < 1010  # those in a lane share a few times
    assert left[1:] == [left[0] - 64, left[0] - 128, left[0] - 192]
    assert scheduled._epoll.poll(0) == []


def test_a_thread_that_is_never_idle_resumes_after_5_ms(monkeypatch):
    now, resumed, scheduled, waiting = [0.0], [], Scheduler(), [3, 5, 9]  # since when, in ms
    monkeypatch.setattr(scheduler, "monotonic", lambda: now[0] / 1000)

    def wait() -> None:
        Signal().wait_until_idle()
        resumed.append(now[0])

    def turn() -> bool:
        now[0] += 1
        if now[0] in waiting:
            scheduled.start(wait)
        return now[0] < 16

    scheduled.run(turn, lambda: 0.0, lambda: True)
    close(scheduled)
    assert resumed == [8, 8, 14]


def test_few_idle_greenlets_are_kept(running, monkeypatch):
    monkeypatch.setattr(scheduler, "_MAX_IDLE", 3)
    futures = running.do(
        lambda: [running.start(lambda: Signal().wait_until_idle()) for _ in range(20)]
    )  # all in one turn
    assert [each.result(PATIENCE) for each in futures] == [None] * 20
    assert running.do(lambda: len(running.scheduler._idle)) == 2  # and the one that is in use


def test_a_turn_ends_for_what_is_ready(running, pair):
    one, other = pair
    order = []
    waiting = running.start(lambda: readable(one) and order.append("ready"))

    def work() -> None:
        other.send(b"x")
        for _ in range(3):  # no event ends the wait for the second of these turns
            Signal().wait_until_idle()
        order.append("last")

    running.do(work)
    waiting.result(PATIENCE)
    assert order == ["ready", "last"]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def readable(sock: socket.socket, seconds: float = PATIENCE) -> bool:
    return wait_for(sock.fileno(), READABLE, seconds)


def test_a_call_counts_its_time_on_the_thread(running, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(scheduler, "monotonic", lambda: now[0])

    def call(before: float, after: float) -> float:
        now[0] += before
        Signal().wait_until_idle()
        now[0] += after
        return running.scheduler.take_seconds()

    calls = [running.start(partial(call, *seconds)) for seconds in ((1.0, 2.0), (4.0, 8.0))]
    assert [each.result(PATIENCE) for each in calls] == [3.0, 12.0]


def test_a_wait_in_vain_may_be_repeated(running, pair):
    one, other = pair
    for seconds, is_readable in product((0.05, 0.0, -1.0), (False, True)):
        assert running.do(partial(readable, one, seconds)) is is_readable
        other.send(b"x") if not is_readable else one.recv(1)
    assert wait_for(one.fileno(), WRITABLE, 0.0)


def test_a_call_in_a_thread_blocks_nobody(running):
    let_go = threading.Event()

    def block() -> int:
        assert let_go.wait(PATIENCE)
        return threading.get_ident()

    blocked = running.start(lambda: call_in_thread(block))
    running.do(let_go.set)
    assert blocked.result(PATIENCE) != running.thread.ident
    with pytest.raises(ZeroDivisionError):
        running.do(lambda: call_in_thread(lambda: 1 // 0))


def test_without_a_thread_a_call_blocks(running, monkeypatch):
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert running.do(lambda: call_in_thread(threading.get_ident)) == running.thread.ident


def test_threads_end_with_the_process():
    script = "from stackmgr.threads import *; start_thread(lambda: time.sleep(600)); repeat(lambda: print(1), 600, '')"
    assert subprocess.check_output([sys.executable, "-c", script], timeout=PATIENCE) == b"1\n"


def test_an_unwatchable_descriptor_is_an_error(running, pair):
    one, other = pair
    with pytest.raises(OSError, match="Bad file descriptor"):
        running.do(lambda: wait_for(1_000_000, READABLE, PATIENCE))
    other.send(b"x")
    assert running.do(partial(readable, one)) is True
    assert running.scheduler._epoll.poll(0) == []  # though nobody has read


def test_a_late_future_is_a_timeout(running):
    future: Future[int] = Future()
    for seconds in (0.02, 0.0):
        running.do(partial(pytest.raises, TimeoutError, threads.result, future, seconds))
    future.set_result(1)
    assert running.do(lambda: threads.result(future, 0.02)) == 1


def test_without_a_scheduler_waits_block(pair):
    one, other = pair
    assert readable(one, 0.01) is False
    threading.Timer(0.02, partial(other.send, b"x")).start()
    assert readable(one) is True
    signal = Signal()
    assert signal.wait(0.01) is False
    threading.Timer(0.02, signal.set).start()
    assert signal.wait(PATIENCE) is True
    assert call_in_thread(threading.get_ident) == threading.get_ident()
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        threads.result(future, 0.01)
