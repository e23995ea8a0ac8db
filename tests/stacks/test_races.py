"""Requests at the same moment, to two worker processes.

STACKMGR_TEST_RACE_ROUNDS says how often each race is run.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
FROM stackmgr.stack_revisions WHERE stack_id = %s ORDER BY revision_number
"""
COUNTS = b"""
SELECT
    (SELECT count(*) FROM stackmgr.stacks WHERE manager_id = managers.manager_id),
    (SELECT count(*) FROM stackmgr.stack_revisions WHERE manager_id = managers.manager_id),
    (SELECT count(*) FROM stackmgr.creation_receipts WHERE manager_id = managers.manager_id)
FROM stackmgr.managers AS managers WHERE external_id = %s
"""


@pytest.fixture(scope="module")
def service(database_url: str) -> Iterator[RunningService]:
    with running_service(database_url, args=("--workers", "2")) as running:
        yield running


@pytest.fixture
def external_id() -> str:
    """The external id of a manager that no request was ever made for."""
    return str(uuid4())


@pytest.fixture
def send(service: RunningService, new_key, external_id: str):
    """Return a function that sends a request of the manager, on a connection of its own."""
    authorization = {"Authorization": f"Bearer {new_key(external_id)}"}

    def send(method: str, path: str, document: Any, headers: dict[str, str]) -> tuple[int, Any]:
        body = json.dumps(document)
        received = exchange(service.port, path, authorization | headers, method, body)
        check_response(method, path, received.status, received.headers, received.body)
        return received.status, received.json

    return send


@pytest.fixture
def create(send):
    """Return a function that creates a stack under the key `key`."""
    headers = {"Idempotency-Key": "key", "X-Request-Id": "created"}
    return lambda **changed: send("POST", STACKS, configuration(**changed), headers)


@pytest.fixture
def counts(admin: psycopg.Connection, external_id: str):
    """Return a function that counts the stacks, revisions and receipts of the manager."""
    return lambda: admin.execute(COUNTS, (external_id,)).fetchone()


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
def test_of_identical_creates_at_once_one_creates_and_the_others_find_its_stack(create, counts, number):
    responses = at_once([create] * RUNNERS)
    assert Counter(status for status, _ in responses) == {201: 1, 200: RUNNERS - 1}
    assert all(document == responses[0][1] for _, document in responses)
    assert counts() == (1, 1, 1)


@each_round
def test_of_two_inputs_under_one_key_at_once_one_wins_and_the_other_conflicts(create, counts, number):
    names = ["This", "That"] * (RUNNERS // 2)
    responses = at_once([partial(create, name=name) for name in names])
    (winner,) = (document for status, document in responses if status == 201)
    for name, (status, document) in zip(names, responses, strict=True):
        if name == winner["name"]:
            assert status in (200, 201)
            assert document == winner
        else:
            assert status == 409
    assert counts() == (1, 1, 1)


@each_round
def test_updates_at_once_lose_nothing_and_change_only_what_each_supplied(create, send, admin, number):
    _, created = create()
    path = f"{STACKS}/{created['id']}"
    requests = {f"{w}-{u}": changes(f"{number}-{w}-{u}") for w in range(WRITERS) for u in range(UPDATES)}

    def write(writer: int) -> dict[str, Any]:
        mine = [f"{writer}-{update}" for update in range(UPDATES)]
        return {name: send("PATCH", path, requests[name], {"X-Request-Id": name}) for name in mine}

    outcomes = at_once([partial(write, writer) for writer in range(WRITERS)])
    responses = {name: response for of_writer in outcomes for name, response in of_writer.items()}
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
        stack = {"id": stack_id, "current_revision_id": revision_id, "name": name, "allocation": allocation}
        found[request_id] = stack | {"schedule": {"preset": preset}}
    return found
