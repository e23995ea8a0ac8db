"""One thread has the seat; whoever gives it up lets another have it."""

import threading

from stackmgr.seats import Seats, give_up
from tests.faulty_postgres import eventually

PATIENCE = 10


def in_turn(seat: Seats, took: list[str], name: str, let_go: threading.Event) -> threading.Thread:
    """Return a thread that takes the seat, notes it, and gives it up when told."""

    def sit() -> None:
        seat.take()
        seat.take()  # it has it already
        took.append(name)
        assert let_go.wait(PATIENCE)
        give_up()
        give_up()  # it has nothing to give up any more

    thread = threading.Thread(target=sit)
    thread.start()
    return thread


def test_one_thread_at_a_time_has_the_seat():
    seat, took = Seats(), []
    events = [threading.Event() for _ in range(3)]
    threads = [in_turn(seat, took, str(number), event) for number, event in enumerate(events)]
    for count in range(1, 4):
        eventually(lambda count=count: len(took) == count)
        events[int(took[-1])].set()
        threads[int(took[-1])].join(PATIENCE)
    assert sorted(took) == ["0", "1", "2"]
    seat.take()
    give_up()


def test_a_thread_that_has_no_seat_gives_nothing_up():
    seat, took, let_go = Seats(), [], threading.Event()
    thread = in_turn(seat, took, "first", let_go)
    eventually(lambda: took)
    give_up()
    second = in_turn(seat, took, "second", let_go)
    second.join(0.1)
    assert took == ["first"]
    let_go.set()
    thread.join(PATIENCE)
    second.join(PATIENCE)
    assert took == ["first", "second"]
