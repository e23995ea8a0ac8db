"""A key against a model: its validity, binding, quota and last use, whatever the worker remembers.

The model computes each response from what has happened to the key.  Only `let_pass` moves its clock.
"""

import math
import time
from contextlib import ExitStack
from types import SimpleNamespace
from uuid import uuid4

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_model

from stackmgr import paths
from stackmgr.access.verifiers.database import DatabaseVerifier, LastUse
from stackmgr.operate.keys import Quota
from tests.support.examples import configuration

PERIOD = 1000  # seconds of the quota
CONSUME = (paths.directory("sql") / "api_key_quota_consume.sql").read_bytes()
AGE = b"""
    UPDATE stackmgr.api_key_quota_slots AS slots SET granted_at = granted_at - make_interval(secs => %s)
    WHERE quota_id = (SELECT quota_id FROM stackmgr.api_keys WHERE key_id = %s)
"""
COUNT = b"""
    SELECT count(*), count(DISTINCT stack_id)
    FROM stackmgr.stack_revisions JOIN stackmgr.managers USING (manager_id)
    WHERE external_id = %s::text::uuid
"""
RECORDED = "SELECT last_used_at = date_trunc('hour', now(), 'UTC') FROM stackmgr.api_keys WHERE key_id = %s"
ENDS = [b"revoked_at = now()", b"expires_at = now()"]
RESTORED = b"revoked_at = NULL, expires_at = now() + interval '1 hour'"
OTHERS = {  # the status for a valid key, and what a request does
    "get": (200, lambda key: key.client.get(key.stack_id)),
    "retry": (200, lambda key: key.client.create(configuration(), key=key.created)),
    "update": (200, lambda key: key.client.update(key.stack_id, {"name": "Other"})),
    "list": (200, lambda key: key.client.page()),
    "missing": (404, lambda key: key.client.get(str(uuid4()))),
    "no id": (400, lambda key: key.client.get("no-uuid")),
    "no body": (400, lambda key: key.client.create(b"no json")),
}


class Key(RuleBasedStateMachine):
    """One key, of a manager of its own; *fixtures* are those of pytest."""

    fixtures: SimpleNamespace

    @initialize(limit=st.sampled_from([0, 0, 1, 3]), variants=st.sampled_from([{}, {"of Citus": None}]))
    def issue(self, limit, variants):
        self.cleanup, self.began = ExitStack(), time.monotonic()
        self.notes = LastUse(self.fixtures.database)
        self.notes._has_thread = True  # no thread writes them
        # With a variant no statement verifies a key: each request does, and only once.
        self.fixtures.database.variants = {} if limit else variants
        issued = self.fixtures.issue(quota=Quota(limit, PERIOD) if limit else None)
        self.client = self.fixtures.client_with(issued.key, verifier=DatabaseVerifier(self.notes))
        self.key_id, self.execute = issued.key_id, self.fixtures.admin.execute
        query = "SELECT external_id::text, quota_id FROM stackmgr.api_keys WHERE key_id = %s"
        self.external_id, self.quota_id = self.execute(query, [self.key_id]).fetchone()
        self.is_valid, self.is_rebound, self.is_noted, self.is_recorded = True, False, False, False
        self.now, self.slots, self.holder = 0, [-math.inf] * limit, None
        self.revisions = self.stacks = 0
        self.create()

    def teardown(self):
        if hasattr(self, "cleanup"):
            self.cleanup.close()

    def take_slot(self):
        """Return the slot of the quota that a request takes, and else for how many seconds it has to wait."""
        is_free = [not self.now - PERIOD < at <= self.now + 60 for at in self.slots]
        for number in range(len(self.slots)):
            if is_free[number] and not (self.holder and self.held == number):
                return number, 0
        taken = [at for at, free in zip(self.slots, is_free, strict=True) if not free]
        return None, (min(taken) + PERIOD - self.now if taken else PERIOD)

    def expect(self, response, status):
        """Check a response, whose *status* is that for a valid key; return whether it is this one."""
        seconds = 0
        if not self.is_valid:
            status = 401
        else:
            self.is_noted |= not self.is_recorded
            if self.slots:
                number, seconds = self.take_slot()
                if number is not None:
                    self.slots[number] = self.now
            status = 429 if seconds else 500 if self.is_rebound else status
        assert response.status_int == status
        if seconds:
            elapsed = time.monotonic() - self.began
            assert seconds - elapsed - 1 <= int(response.headers["Retry-After"]) <= seconds
        return status < 300

    def create(self):
        idempotency_key = str(uuid4())
        response = self.client.create(configuration(), key=idempotency_key)
        if self.expect(response, 201):
            self.stack_id, self.created = response.json["id"], idempotency_key
            self.stacks, self.revisions = self.stacks + 1, self.revisions + 1

    @rule(name=st.sampled_from([*OTHERS, "create"]))
    def send(self, name):
        if name == "create":
            self.create()
        else:
            status, send = OTHERS[name]
            self.revisions += self.expect(send(self), status) and name == "update"

    @rule(seconds=st.sampled_from([300, 700, PERIOD, -3600]))
    @precondition(lambda self: not self.holder)
    def let_pass(self, seconds):
        self.execute(AGE, [seconds, self.key_id])
        self.now += seconds

    @rule()
    def let_an_hour_pass(self):
        self.change(b"last_used_at = last_used_at - interval '1 hour'")
        self.is_recorded = False

    @rule(end=st.sampled_from(ENDS), name=st.sampled_from(["no id", "no body", *OTHERS]))
    def end_or_restore(self, end, name):
        self.change(end if self.is_valid else RESTORED)
        self.is_valid = not self.is_valid
        self.send(name)  # while the worker may remember the key

    def change(self, change):
        self.execute(b"UPDATE stackmgr.api_keys SET %b WHERE key_id = %%s" % change, [self.key_id])

    @rule()
    def rebind(self):
        self.is_rebound = not self.is_rebound
        identity_id = f"{'other' if self.is_rebound else 'stackmgr'}:{self.external_id}"
        query = b"UPDATE stackmgr.managers SET identity_id = %s WHERE external_id = %s::text::uuid"
        self.execute(query, [identity_id, self.external_id])

    @rule()
    def change_worker(self):
        self.client.change_worker()

    @rule()
    def write_uses(self):
        self.fixtures.statements_run.clear()
        self.notes.write()
        assert self.fixtures.statements_run == ["api_key_use_record"] * self.is_noted
        self.is_recorded |= self.is_noted
        self.is_noted = False
        assert bool(self.execute(RECORDED, [self.key_id]).fetchone()[0]) == self.is_recorded

    @rule()
    @precondition(lambda self: self.slots and not self.holder)
    def hold_slot(self):
        self.held, _ = self.take_slot()
        if self.held is not None:
            self.holder = self.cleanup.enter_context(psycopg.connect(self.fixtures.database_url))
            self.holder.execute(CONSUME, {"quota_id": self.quota_id, "quota_seconds": PERIOD})

    @rule(ends=st.sampled_from(["commit", "rollback"]))
    @precondition(lambda self: self.holder)
    def end_the_other(self, ends):
        getattr(self.holder, ends)()
        if ends == "commit":
            self.slots[self.held] = self.now
        self.holder = None

    @invariant()
    def stored_is_what_succeeded(self):
        if hasattr(self, "external_id"):
            found = self.execute(COUNT, [self.external_id]).fetchone()
            assert found == (self.revisions, self.stacks)
            assert bool(self.notes._noticed) == self.is_noted


@pytest.fixture
def fixtures(database, database_url, admin, issue, client_with, statements_run, monkeypatch):
    monkeypatch.setattr(database, "variants", database.variants)  # restored at the end
    return SimpleNamespace(**locals())


def test_a_key_behaves_as_its_model(fixtures):
    Key.fixtures = fixtures
    run_model(Key)
