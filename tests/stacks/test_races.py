"""Requests at the same moment, to two worker processes.

STACKMGR_TEST_RACE_ROUNDS says how often each race is run.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.client import STACKS, check_response
from tests.support.examples import ADDRESSES, PRESETS, allocation, configuration
from tests.support.server import RunningService, exchange, running_service

ROUNDS = int(os.environ.get("STACKMGR_TEST_RACE_ROUNDS", "2"))
RUNNERS = 32
WRITERS = 16
UPDATES = 5

HISTORY = b"""
SELECT request_id, revision_number, revision_id::text, name, allocation, preset
FROM stackmgr.stack_revisions
WHERE stack_id = %s
ORDER BY revision_number
"""
COUNTS = b"""
SELECT
    (SELECT count(*) FROM stackmgr.stacks WHERE manager_id = managers.manager_id),
    (SELECT count(*) FROM stackmgr.stack_revisions WHERE manager_id = managers.manager_id),
    (SELECT count(*) FROM stackmgr.creation_receipts WHERE manager_id = managers.manager_id)
FROM stackmgr.managers AS managers
WHERE external_id = %s
"""


class Manager:
    """A manager who sends each request on a connection of its own."""

    def __init__(self, service: RunningService, key: str, external_id: str) -> None:
        self.external_id = external_id
        self._service = service
        self._authorization = {"Authorization": f"Bearer {key}"}

    def create(self, key: str, document: Any, request_id: str) -> tuple[int, Any]:
        return self._send("POST", STACKS, document, {"Idempotency-Key": key, "X-Request-Id": request_id})

    def update(self, stack_id: str, document: Any, request_id: str) -> tuple[int, Any]:
        return self._send("PATCH", f"{STACKS}/{stack_id}", document, {"X-Request-Id": request_id})

    def _send(self, method: str, path: str, document: Any, headers: dict[str, str]) -> tuple[int, Any]:
        received = exchange(
            self._service.port, path, self._authorization | headers, method, json.dumps(document)
        )
        check_response(method, path, received.status, received.headers, received.body)
        return received.status, received.json


@pytest.fixture(scope="module")
def service(database_url: str) -> Iterator[RunningService]:
    with running_service(database_url, args=("--workers", "2")) as running:
        yield running


@pytest.fixture
def manager(service: RunningService, new_key) -> Manager:
    """A manager that no request was ever made for."""
    external_id = str(uuid4())
    return Manager(service, new_key(external_id), external_id)


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the calls, each in a thread of its own, from the same moment on, and return what they return."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


each_round = pytest.mark.parametrize("number", range(ROUNDS))


@each_round
def test_of_identical_creates_at_once_one_creates_and_the_others_find_its_stack(manager, admin, number):
    responses = at_once([lambda: manager.create("key", configuration(), "r")] * RUNNERS)
    assert Counter(status for status, _ in responses) == {201: 1, 200: RUNNERS - 1}
    assert all(document == responses[0][1] for _, document in responses)
    assert admin.execute(COUNTS, (manager.external_id,)).fetchone() == (1, 1, 1)


@each_round
def test_of_two_inputs_under_one_key_at_once_one_wins_and_the_other_conflicts(manager, admin, number):
    names = ["This", "That"] * (RUNNERS // 2)
    responses = at_once(
        [lambda name=name: manager.create("key", configuration(name=name), "r") for name in names]
    )
    (winner,) = (document for status, document in responses if status == 201)
    for name, (status, document) in zip(names, responses, strict=True):
        if name == winner["name"]:
            assert status in (200, 201)
            assert document == winner
        else:
            assert status == 409
    assert admin.execute(COUNTS, (manager.external_id,)).fetchone() == (1, 1, 1)


@each_round
def test_updates_at_once_lose_nothing_and_change_only_what_each_supplied(manager, admin, number):
    _, created = manager.create("key", configuration(), "created")
    requests = {f"{w}-{u}": changes(f"{number}-{w}-{u}") for w in range(WRITERS) for u in range(UPDATES)}

    def write(writer: int) -> dict[str, Any]:
        mine = [f"{writer}-{update}" for update in range(UPDATES)]
        return {name: manager.update(created["id"], requests[name], name) for name in mine}

    responses: dict[str, Any] = {}
    for outcomes in at_once([lambda writer=writer: write(writer) for writer in range(WRITERS)]):
        responses |= outcomes
    assert {status for status, _ in responses.values()} == {200}
    history = revisions(admin, created["id"])
    assert next(iter(history)) == "created"
    assert history.keys() == {"created", *requests}
    expected = created
    for name, saved in history.items():
        expected = expected | requests.get(name, {}) | {"current_revision_id": saved["current_revision_id"]}
        assert saved == expected
        assert saved == responses.get(name, (201, created))[1]


def changes(seed: str) -> dict[str, Any]:
    """Return an update of some of the fields, to values that no other seed is likely to give."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    weight = chance.randint(0, 10000)
    complete = {
        "name": seed,
        "allocation": allocation((ADDRESSES[0], weight), (ADDRESSES[1], 10000 - weight)),
        "schedule": {"preset": chance.choice(PRESETS)},
    }
    chosen = chance.sample(sorted(complete), chance.randint(1, 3))
    return {field: complete[field] for field in chosen}


def revisions(admin: psycopg.Connection, stack_id: str) -> dict[str, dict[str, Any]]:
    """Return each revision of a stack, as a Stack object, by its request; the numbers have no gap."""
    found = {}
    for expected, row in enumerate(admin.execute(HISTORY, (stack_id,)), start=1):
        request_id, number, revision_id, name, allocation, preset = row
        assert number == expected
        assert request_id not in found
        found[request_id] = {
            "id": stack_id,
            "current_revision_id": revision_id,
            "name": name,
            "allocation": allocation,
            "schedule": {"preset": preset},
        }
    return found
