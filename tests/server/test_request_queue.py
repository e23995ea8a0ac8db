"""The queue against a model, which finds each answer anew in the list of requests."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from stackmgr.server import queue
from stackmgr.server.queue import Place, RequestQueue

# Of so many requests at once: those of one manager, of all unknown keys, and those that write.
SHARES = {1: (1, 1, 1), 2: (2, 1, 1), 3: (3, 1, 2), 8: (6, 2, 7)}
SECONDS = 1.0  # that a request may be queued
TICK = 1 / 1024  # seconds from one step to the next
ACCEPTED = {"a": "A", "b": "A", "c": "C", "d": "D"}  # the managers of keys
# Of requests that arrive together.
KEYS = [*"abcdxyz", "aaaaaaaa", "babababa", "cccccccc", "xyzxyzxy", "abcdxyza"]


@dataclass
class Request:
    place: Place
    key: str
    writes: bool
    arrival: float
    group: str
    state: str = "queued"


class Queue:
    """Requests of few keys; `known` are the keys that have been accepted, with their managers."""

    def __init__(self, limit, known, chance):
        self.queue, self.limit, self.chance = RequestQueue(limit, SECONDS), limit, chance
        self.requests, self.known, self.charged, self.now = [], {}, {}, 1.0
        self.remembered = dict.fromkeys(known, 1.0)
        for key in known:
            place = Place(self.queue.accept)
            place.key_hash = hash(key)
            place.accept(ACCEPTED[key], 1.0)
            self.known[key] = ACCEPTED[key]

    def of(self, state):
        return [each for each in self.requests if each.state == state]

    def lines(self):
        """Return the queued requests of each group that read, and that write; the first comes first."""
        queued = sorted(self.of("queued"), key=lambda each: each.arrival)
        keys = dict.fromkeys((each.group, each.writes) for each in queued)
        return {key: [each for each in queued if (each.group, each.writes) == key] for key in keys}

    def tag(self, request):
        return max(request.arrival, self.charged.get(request.group, 0.0)), request.arrival

    def may_run(self, request):
        of_manager, of_unknown, of_writes = SHARES[self.limit]
        running = self.of("running")
        of_group = sum(each.group == request.group for each in running)
        return (
            len(running) < self.limit
            and of_group < (of_manager if request.group else of_unknown)
            and not (request.writes and sum(each.writes for each in running) >= of_writes)
        )

    def end(self, request, state):
        request.state = state
        self.requests = [each for each in self.requests if each.state in ("queued", "running")]
        groups = {each.group for each in self.of("queued")}
        self.charged = {group: until for group, until in self.charged.items() if group in groups}

    def reject(self, entry, allowed):
        assert any(entry is each for each in allowed)
        assert 1 <= entry.place.retry_after <= 1 + queue.RETRY_SPREAD_SECONDS
        self.end(entry, "rejected")

    def add_some(self):
        writes, size = self.chance.random() < 0.4, self.chance.choice([0, 10, 60])
        for key in self.chance.choice(KEYS):
            self.add(key, writes, size)

    def add(self, key, writes, size):
        self.now += TICK
        request = Request(Place(self.queue.accept), key, writes, self.now, self.known.get(key, ""))
        request.place.size = size
        self.requests.append(request)
        rejected = iter(self.queue.add(request.place, key, request, self.now, writes=writes))
        assert request.place.remembered == (self.remembered[key] if key in self.known else None)
        if len(self.of("queued")) > queue.LIMIT:
            longest = max(map(len, self.lines().values()))
            lines = [each for each in self.lines().values() if len(each) == longest]
            # The last of a manager's, any of unknown keys.
            parts = [each[-1:] if each[0].group else each for each in lines]
            self.reject(next(rejected), [one for part in parts for one in part])
        while sum(each.place.size for each in self.of("queued")) > queue.LIMIT_BYTES:
            sizes = [[each.place.size for each in line] for line in self.lines().values()]
            most = max(map(sum, sizes))
            lines = [each for each in self.lines().values() if sum(one.place.size for one in each) == most]
            largest = [max(each, key=lambda one: one.place.size).place.size for each in lines]
            pairs = zip(lines, largest, strict=True)
            allowed = [one for line, size in pairs for one in line if one.place.size == size]
            self.reject(next(rejected), allowed)
        assert not list(rejected)

    def take_some(self):
        for _ in range(self.chance.randint(1, 8)):
            self.take()

    def take(self):
        self.now += TICK
        candidates = [line[0] for line in self.lines().values() if self.may_run(line[0])]
        assert self.queue.has_next() == bool(candidates)
        assert self.queue.has_next(known=True) == any(each.group for each in candidates)
        expected = min(candidates, key=self.tag, default=None)
        assert self.queue.take() is expected
        if expected:
            self.end(expected, "running")

    def any_of(self, requests):
        return [self.chance.choice(requests)] if requests else []

    def leave(self):
        for request in self.any_of(self.of("running")):
            self.leave_one(request, self.chance.choice([0.0, 0.001, 0.004, 10.0]))

    def leave_one(self, request, seconds):
        self.now += TICK
        self.queue.charge(request.place, self.now, seconds)
        self.queue.leave(request.place)
        self.charge(request.group, seconds)
        self.end(request, "ended")

    def send_malformed(self):
        """Charge a client whose last request, which has ended, had a key: it has sent no complete one."""
        key, seconds = self.chance.choice("abxy"), self.chance.choice([0.001, 0.1])
        place = Place(self.queue.accept)
        place.key_hash = hash(key)
        self.queue.charge(place, self.now, seconds)
        self.charge(self.known.get(key, ""), seconds)

    def charge(self, group, seconds):
        if firsts := [line[0] for (of, _), line in self.lines().items() if of == group]:
            tag = min(map(self.tag, firsts))[0] + 2 * seconds
            self.charged[group] = min(self.now + 0.01, tag)

    def accept(self):
        running = self.of("running")
        for request in self.any_of([each for each in running if each.key in ACCEPTED]):
            self.accept_one(request, running)

    def accept_one(self, request, running):
        manager = ACCEPTED[request.key]
        self.remembered[request.key] = self.now
        request.place.accept(manager, self.now)
        assert request.place.is_accepted
        if request.key not in self.known:
            for each in self.of("queued"):
                if each.key == request.key and not each.group:
                    each.group = manager
            self.end(request, "running")
        self.known[request.key] = manager
        if sum(each.group == manager for each in running) < SHARES[self.limit][0]:
            request.group = manager

    def forget(self):
        for request in self.any_of(self.of("running")):
            self.queue.forget(request.place)
            assert not request.place.is_accepted
            self.known.pop(request.key, None)

    def pass_time(self):
        self.now += self.chance.choice([0.1, 0.5, 0.9])
        overdue = {id(each) for each in self.of("queued") if each.arrival <= self.now - SECONDS}
        for entry in list(self.queue.take_overdue(self.now)):
            overdue.remove(id(entry))
            self.reject(entry, [entry])
        assert not overdue

    def check(self):
        queued, running = self.of("queued"), self.of("running")
        assert self.queue.length == len(queued)
        assert self.queue._bytes == sum(each.place.size for each in queued)
        assert {key: [each for *_, each in line] for key, line in self.queue._lines.items()} == self.lines()
        assert self.queue._charged_until == self.charged
        assert self.queue._running == Counter(each.group for each in running)
        assert self.queue._writing == sum(each.writes for each in running)
        assert self.queue._free == self.limit - len(running)
        assert self.queue._known.keys() == set(map(hash, self.known))


STEPS = {Queue.add_some: 4, Queue.take_some: 4, Queue.leave: 4, Queue.send_malformed: 1, Queue.accept: 1,
         Queue.forget: 0.3, Queue.pass_time: 0.5}  # fmt: skip


@pytest.mark.parametrize("limit", SHARES)
def test_the_queue_behaves_as_its_model(monkeypatch, limit):
    monkeypatch.setattr(queue, "LIMIT", 12)
    monkeypatch.setattr(queue, "LIMIT_BYTES", 300)
    for seed in range(30):
        chance = random.Random(seed)
        model = Queue(limit, chance.choice(["", "abcd", "b"]), chance)
        for _ in range(100):
            chance.choices(list(STEPS), list(STEPS.values()))[0](model)
            model.check()


def test_some_of_too_many_keys_are_known(monkeypatch):
    monkeypatch.setattr(queue, "_KNOWN_KEYS", 50)
    requests, known = RequestQueue(4), []
    for _ in range(5):
        for key in map(str, range(100)):
            requests.add(place := Place(requests.accept), key, None, 0.0)
            known.append(place.remembered)
            requests.take()
            place.accept(key, key)
            requests.leave(place)
    assert 10 < sum(map(bool, known)) < 300  # the last recently used ones, in turn, would be none
    assert 25 <= len(requests._known) <= 50


def test_several_make_room_for_a_large_one(monkeypatch):
    monkeypatch.setattr(queue, "LIMIT_BYTES", 300)
    requests, rejected = RequestQueue(4), []
    for size in (*[29] * 10, 60):
        place = Place(requests.accept)
        place.size = size
        rejected += requests.add(place, "", size, 0.0, writes=size == 60)
    assert rejected == [29, 29]


def test_any_unknown_key_may_be_rejected():
    requests = RequestQueue(4)
    rejected = [one for key in range(600) for one in requests.add(Place(requests.accept), f"{key}", key, 0.0)]
    assert (len(rejected), requests.length) == (88, 512)
    assert rejected != list(range(512, 600))
