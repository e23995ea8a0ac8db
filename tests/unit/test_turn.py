"""Of the threads that take turns one goes on, until it leaves or is not heard of."""

import threading

import pytest

from stackmgr import turn


@pytest.fixture(autouse=True)
def _nobodys():
    yield
    turn.leave()


def other_thread() -> tuple[threading.Thread, threading.Event]:
    """Return a thread that wants its turn, and what is set when it has had it."""
    had = threading.Event()

    def work() -> None:
        turn.take()
        had.set()
        turn.leave()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, had


def test_the_next_thread_waits_until_this_one_leaves():
    turn.take()
    turn.take()
    thread, had = other_thread()
    assert not had.wait(0.1)
    turn.leave()
    assert had.wait(5)
    thread.join()


def test_leaving_a_turn_one_does_not_have_changes_nothing():
    turn.leave()
    turn.take()
    _, had = other_thread()
    stranger = threading.Thread(target=turn.leave)
    stranger.start()
    stranger.join()
    assert not had.wait(0.1)


def test_who_is_not_heard_of_loses_the_turn_once():
    turn.take()
    _, had = other_thread()
    turn.revoke(60)
    assert not had.wait(0.1)
    turn.revoke(0)
    assert had.wait(5)
    turn.leave()
    turn.take()
