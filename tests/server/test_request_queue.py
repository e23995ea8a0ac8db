"""Which requests run at once: of one manager three quarters, of unverified keys a quarter; which is next."""

import pytest

from stackmgr.server import queue
from stackmgr.server.queue import Place, RequestQueue


class Requests:
    """A queue, and requests by name; those that have been taken run."""

    def __init__(self, limit):
        self.queue = RequestQueue(limit, 1.0)
        self.places = {}
        self.now = 0.0

    def add(self, names, manager=None, *, writes=False, size=0):
        """Add requests; a name begins with its key.  With *manager*, the key has been accepted."""
        rejected = []
        for name in names.split():
            place = self.places[name] = Place(self.queue.accept)
            place.size = size
            if manager:
                self.accept_earlier(name[0], manager)
            rejected += self.queue.add(place, name[0], name, self.now, writes=writes)
        return rejected

    def accept_earlier(self, key, manager):
        place = Place(self.queue.accept)
        place.key_hash = hash(key)
        place.accept(manager)

    def take(self):
        return " ".join(iter(self.queue.take, None))

    def leave(self, names, seconds=0.0):
        for name in names.split():
            self.queue.leave(self.places[name], self.now, seconds)


def test_a_manager_has_three_quarters():
    requests = Requests(8)
    requests.add("a1 a2 a3", "A")
    requests.add("b1 b2 b3 b4 b5", "A")
    assert requests.take() == "a1 a2 a3 b1 b2 b3"
    requests.add("c1 c2 c3", "C")
    assert requests.take() == "c1 c2"
    requests.leave("a1")
    assert requests.take() == "b4"  # after a turn of the other's
    requests.leave("c1 c2")
    assert requests.take() == "c3"
    requests.leave("a2")
    assert requests.take() == "b5"


def test_unverified_keys_share_a_quarter():
    requests = Requests(8)
    requests.add("a1 b1 c1 d1 e1")
    assert requests.take() == "a1 b1"
    requests.add("g1", "G")
    assert requests.take() == "g1"
    requests.leave("b1")
    assert requests.take() == "c1"


def test_an_accepted_key_counts_as_its_managers():
    requests = Requests(8)
    requests.add("a1 b1 c1 d1")
    assert requests.take() == "a1 b1"
    requests.places["a1"].accept("A")
    assert requests.take() == "c1"
    requests.add("a2")
    assert requests.take() == "a2"  # as the manager's
    requests.leave("a1 a2 b1 c1")
    assert requests.take() == "d1"
    requests.leave("d1")
    assert not requests.queue._running  # a group that nothing runs for takes no memory


def test_first_uses_gain_one_more_quarter():
    requests = Requests(8)
    requests.add("a1 b1 c1 d1 e1 f1 g1 h1 i1")
    started = requests.take().split()
    for name in started:
        requests.places[name].accept("A")
        started += requests.take().split()
    assert started == ["a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1"]
    requests.add("a2 j1")
    assert requests.take() == ""
    requests.leave("a1")
    assert requests.take() == "a2"
    requests.leave("h1")
    assert requests.take() == "i1"


def test_a_waiting_request_moves_to_its_manager():
    requests = Requests(8)
    requests.add("a1 b1 a2 c1 a3")
    assert requests.take() == "a1 b1"
    requests.now = 1.0
    requests.accept_earlier("d", "A")
    requests.places["a1"].accept("A")
    requests.add("d1")
    assert requests.take() == "c1 a2 a3 d1"  # in the order of their arrival, after that of the line
    for requests.now, name in ((2.0, "e1"), (3.0, "d2"), (4.0, "e2")):
        requests.add(name)
    requests.accept_earlier("e", "A")
    assert requests.take() == "e1 d2"


def test_both_lines_of_a_key_move_to_its_manager():
    requests = Requests(8)
    requests.add("y1 z1")
    assert requests.take() == "y1 z1"
    requests.add("a1")
    requests.add("a2 b1", writes=True)
    requests.accept_earlier("a", "A")
    assert requests.take() == "a1 a2"


def test_a_rejected_key_is_not_remembered():
    requests = Requests(8)
    requests.add("a1 b1")
    requests.places["a1"].accept("A", "client")
    requests.places["b1"].accept("B")
    requests.add("a2 b2")
    requests.queue.forget(requests.places["a1"])
    requests.add("a3")
    remembered = {name: place.remembered for name, place in requests.places.items()}
    assert remembered == {"a1": None, "b1": None, "a2": "client", "b2": None, "a3": None}


def test_some_of_too_many_keys_are_known(monkeypatch):
    monkeypatch.setattr(queue, "_REMEMBERED", 50)
    requests, known = RequestQueue(4), []
    for _ in range(5):
        for key in map(str, range(100)):
            requests.add(place := Place(requests.accept), key, None, 0.0)
            known.append(place.remembered)
            requests.take()
            place.accept(key, key)
            requests.leave(place)
    assert 10 < sum(map(bool, known)) < 300  # the last recently used ones, in turn, would be none
    assert len(requests._managers) == 50


def test_writes_leave_an_eighth_to_reads():
    requests = Requests(8)
    requests.add("a1 a2 a3 a4", "A", writes=True)
    requests.add("b1 b2 b3", "B", writes=True)
    requests.add("z1", writes=True)
    requests.add("b4", "B", writes=True)
    assert requests.take() == "a1 a2 a3 a4 b1 b2 b3"
    requests.add("b5", "B")
    requests.add("c1", "C")
    assert requests.take() == "b5"  # a read passes the writes of its own manager
    requests.leave("a1")
    assert requests.take() == "b4"
    requests.leave("a2 b5")
    assert requests.take() == "z1 c1"
    requests.leave("a3 a4 b1 b2 b3 b4 z1 c1")
    assert (requests.queue._running, requests.queue._writing) == ({}, 0)


def test_reads_and_writes_keep_their_order():
    requests = Requests(1)
    requests.add("a0", "A")
    assert requests.take() == "a0"
    for number in range(1, 5):
        requests.now = number / 1000
        requests.add(f"a{number}", "A", writes=number % 2 == 0)
    taken, last = [], "a0"
    requests.now = 1.0
    while last:
        requests.leave(last, 1.0)
        taken.append(last := requests.take())
    assert taken == ["a1", "a2", "a3", "a4", ""]
    assert not requests.queue._counts_from


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_shares_of_few_greenlets(limit):
    requests = Requests(limit)
    requests.add("a1 a2 a3 a4", "A")
    assert len(requests.take().split()) == limit
    requests = Requests(limit)
    requests.add("a1 a2")
    assert requests.take() == "a1"


def test_the_longest_line_loses_one(monkeypatch):
    monkeypatch.setattr(queue, "LIMIT", 4)
    requests = Requests(1)
    requests.add("a1 a2 a3 a4", "A")
    assert requests.take() == "a1"
    assert requests.add("b1", "B") == []
    assert requests.add("c1", "C") == ["a4"]
    assert requests.add("a5", "A") == ["a5"]
    requests.now = 1.0
    for last, following in ("a1", "b1"), ("b1", "c1"), ("c1", "a2"), ("a2", "a3"):
        requests.leave(last, 1.0)
        assert requests.take() == following
    assert requests.queue.length == 0
    assert not requests.queue._counts_from  # of lines that have ended


def test_the_line_that_holds_most_loses_its_largest(monkeypatch):
    monkeypatch.setattr(queue, "LIMIT_BYTES", 100)
    requests = Requests(1)
    requests.add("a1 a2 a3", "A", size=10)
    requests.add("b1", "B", size=60)
    assert requests.add("b2", "B", size=20) == ["b1"]
    assert requests.add("c1", "C", size=60) == ["c1"]
    assert requests.queue._bytes == 50


def test_a_random_unverified_key_is_rejected(monkeypatch):
    monkeypatch.setattr(queue, "LIMIT", 50)
    requests = Requests(4)
    names = [f"{key}1" for key in map(chr, range(200, 300))]
    rejected = [name for name in names for name in requests.add(name)]
    assert len(rejected) == 50
    assert rejected != names[50:]
    assert requests.queue.length == 50


@pytest.mark.parametrize(
    ("seconds", "order"),
    [(0.0, "a1 a2 a3 b1 c1 a4"), (0.001, "a1 a2 b1 c1 a3 a4"), (0.002, "a1 b1 c1 a2 a3 a4")],
)
def test_a_line_is_charged_for_the_thread(seconds, order):
    requests = Requests(1)
    requests.add("a1 a2 a3", "A")
    requests.now = 0.003
    requests.add("b1", "B")
    requests.add("c1", "C")
    requests.now = 0.004
    requests.add("a4", "A")
    taken = []
    requests.now = 1.0
    while name := requests.take():
        taken.append(name)
        requests.leave(name, seconds if name < "b" else 0.0)
    assert " ".join(taken) == order


def test_a_charge_has_a_bound():
    requests = Requests(1)
    requests.add("a1 a2 a3", "A")
    taken = [requests.take()]
    requests.now = 10.0
    requests.leave("a1", 10.0)
    requests.now = 11.0
    requests.add("b1 b2", "B")
    while name := requests.take():
        taken.append(name)
        requests.now += 1.0
        requests.leave(name, 1.0)
    assert taken == ["a1", "a2", "b1", "a3", "b2"]
