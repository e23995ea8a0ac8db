"""Generated bodies: each is saved as the rules require, or rejected without a change.

The short form runs in CI; the long one is for a change of what reads bodies:

    STACKMGR_PROPERTY_BODIES=200000 python -m pytest -s tests/contract/generated/test_bodies.py
"""

import json
import os
from collections import Counter
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from tests.contract.generated import rules
from tests.contract.generated.bodies import CORPUS, bodies
from tests.contract.generated.calling import call
from tests.support.client import STACKS
from tests.support.examples import configuration

BODIES = int(os.environ.get("STACKMGR_PROPERTY_BODIES", "300"))
# A manager's rows are counted after every body, so that each manager gets only so many.
BATCH = 500

TRACES = """
    SELECT
        (SELECT count(*) FROM stackmgr.stacks WHERE manager_id = %(manager)s::uuid),
        (SELECT count(*) FROM stackmgr.stack_revisions WHERE manager_id = %(manager)s::uuid),
        (SELECT count(*) FROM stackmgr.creation_receipts WHERE manager_id = %(manager)s::uuid),
        (SELECT count(*) FROM stackmgr.stacks WHERE manager_id = %(manager)s::uuid
            AND stack_id = %(stack)s::uuid AND revision_id = %(revision)s::uuid)
"""


class Trial:
    """One manager who sends bodies, and what must have become of them all.

    `stack` is the one that is updated; the creates are counted.
    """

    def __init__(self, client, admin: psycopg.Connection, statuses: Counter) -> None:
        self._app, self._manager_id = client.app, client.manager_id
        self._admin = admin
        self._statuses = statuses
        first = self._send("POST", STACKS, json.dumps(configuration()).encode())
        self.stack = json.loads(first.body)
        self._stacks = self._revisions = 1

    def create(self, body: bytes) -> None:
        response = self._send("POST", STACKS, body)
        wanted = self._expected(body, 201, response, update=False)
        if wanted is not None:
            created = json.loads(response.body)
            ids = {"id": created["id"], "current_revision_id": created["current_revision_id"]}
            assert created == ids | wanted
            assert created["id"] != self.stack["id"]
            self._stacks += 1
            self._revisions += 1
        self._check_traces()

    def update(self, body: bytes) -> None:
        response = self._send("PATCH", f"{STACKS}/{self.stack['id']}", body)
        wanted = self._expected(body, 200, response, update=True)
        if wanted is not None:
            updated = json.loads(response.body)
            new = {"current_revision_id": updated["current_revision_id"]}
            assert updated == self.stack | new | wanted
            assert updated["current_revision_id"] != self.stack["current_revision_id"]
            self.stack = updated
            self._revisions += 1
        self._check_traces()

    def _send(self, method, path, body):
        response = call(self._app, method, path, body, str(uuid4()))
        self._statuses[method, response.status] += 1
        return response

    def _expected(self, body, accepted, response, *, update):
        """Return what has to be saved, or None, after a check that the status is the one of that."""
        if len(body) > BODY_LIMIT:
            assert response.status == 413
            return None
        try:
            wanted = rules.read(body, update=update)
        except rules.Rejected:
            assert response.status == 400
            return None
        assert response.status == accepted
        return wanted

    def _check_traces(self):
        given = {
            "manager": self._manager_id,
            "stack": self.stack["id"],
            "revision": self.stack["current_revision_id"],
        }
        found = self._admin.execute(TRACES, given).fetchone()
        assert found == (self._stacks, self._revisions, self._stacks, 1)


@pytest.fixture
def statuses():
    return Counter()


@pytest.fixture
def make_trial(known_client, admin, statuses):
    return lambda: Trial(known_client(), admin, statuses)


def test_the_hostile_corpus_is_judged_as_the_rules_say(make_trial, statuses):
    trial = make_trial()
    for body in CORPUS:
        trial.create(body)
        trial.update(body)
    assert statuses["POST", 400] > 300
    assert statuses["PATCH", 400] > 300


def send_bodies(make_trial, number: int, size: int) -> None:
    trial = make_trial()

    @settings(max_examples=size)
    @given(bodies, st.booleans())
    def send(body, as_update):
        nonlocal trial
        try:
            (trial.update if as_update else trial.create)(body)
        except AssertionError:
            # What this body did must not be laid at the door of the next, smaller one.
            trial = make_trial()
            raise

    # Without a seed, the batches of a run in CI would be one and the same.
    (seed(number)(send) if settings.default.derandomize else send)()


def test_a_generated_body_is_saved_as_the_rules_say_or_leaves_no_trace(make_trial, statuses):
    sizes = [BATCH] * (BODIES // BATCH) + [BODIES % BATCH] * (BODIES % BATCH > 0)
    for number, size in enumerate(sizes):
        send_bodies(make_trial, number, size)
    print(f"\n{BODIES} bodies:", dict(sorted(statuses.items())))
    assert {status for _, status in statuses} <= {200, 201, 400, 413}
    assert statuses.total() >= BODIES + len(sizes)
