"""Which requests run at once: as many as are allowed, of one key three quarters, in the order of arrival."""

from contextlib import ExitStack

import pytest

from stackmgr.server.shares import Shares
from tests.support.greenlets import Running
from tests.support.waiting import eventually


@pytest.fixture
def running():
    with ExitStack() as cleanup:
        yield Running(8, cleanup)


def enter(shares, keys, order):
    def wait(key):
        if shares.enter(key, 60):
            order.append(key)

    return [lambda key=key: wait(key) for key in keys]


def test_a_key_beyond_its_share_waits_and_lets_others_pass(running):
    shares, order = Shares(4), []
    waiting = [running.start(call) for call in enter(shares, "aaaaabb", order)]
    eventually(lambda: len(order) == 4)
    assert order == ["a", "a", "a", "b"]
    running.do(lambda: shares.leave("b"))
    eventually(lambda: len(order) == 5)
    running.do(lambda: shares.leave("a"))
    eventually(lambda: len(order) == 6)
    assert order[4:] == ["b", "a"]
    running.do(lambda: shares.leave("b"))  # a key has its share again, and one place is free
    assert len(order) == 6
    running.do(lambda: shares.leave("a"))
    for future in waiting:
        future.result(60)
    assert order[6:] == ["a"]


def test_a_request_that_may_not_run_in_time_takes_no_place(running):
    shares = Shares(1)
    assert running.do(lambda: shares.enter("a", 60))
    assert not running.do(lambda: shares.enter("b", 0.01))
    running.do(lambda: shares.leave("a"))
    assert running.do(lambda: shares.enter("c", 0.01))
