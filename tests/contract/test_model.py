"""The operations against dictionaries: what clients of two managers get, and what is stored at the end."""

from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_model
from psycopg.rows import dict_row

from stackmgr.access import api_keys
from stackmgr.stacks import repository
from stackmgr.stacks.eip55 import eip55
from tests.support import examples
from tests.support.examples import ADDRESSES, CHANGED, COLUMNS, CONFIGURATION, PRESETS, allocation

PAGE_BYTES, NAME_BYTES = 18, 9  # of the names of a page, and of a name that is not read again
NAMES = ["a", "A", "\xe9", "e\u0301", " a", "a ", "long name", "\xe9" * 6, "the name of a page itself"]
WEIGHTS = [(0, 10000, 0), (4000, 6000, 0), (4000, 5999, 1), (4000, 0, 6000)]
BAD = [b"{", b"{}", {"name": ""}, examples.configuration(note=1), b" " * 262145]
PAST = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
REVISIONS = f"""
    SELECT stack_id::text AS id, revisions.revision_id::text AS current_revision_id, request_id, key_digest,
        revisions.identity_id, revisions.revision_number, stacks.revision_number AS newest,
        {", ".join(f"revisions.{column}" for column in COLUMNS)}
    FROM stackmgr.stack_revisions AS revisions
    JOIN stackmgr.stacks USING (manager_id, stack_id) JOIN stackmgr.managers USING (manager_id)
    LEFT JOIN stackmgr.api_keys ON api_keys.key_id::text = revisions.key_id
    WHERE managers.external_id = ANY (%s) ORDER BY stack_id, revisions.revision_number
"""
RECEIPTS = """
    SELECT external_id::text, idempotency_key, stack_id::text
    FROM stackmgr.creation_receipts JOIN stackmgr.managers USING (manager_id) WHERE external_id = ANY (%s)
"""
FIELDS = {name: st.sampled_from([value, CHANGED[name]]) for name, value in CONFIGURATION.items()} | {
    "name": st.sampled_from(NAMES),
    "allocation": st.sampled_from([allocation(*zip(ADDRESSES, each, strict=False)) for each in WEIGHTS]),
    "schedule": st.sampled_from([{"preset": preset} for preset in PRESETS]),
}
documents, otherwise = st.fixed_dictionaries(FIELDS), st.booleans()
changes = st.fixed_dictionaries({}, optional=FIELDS).filter(bool)
numbers, places, keys = st.integers(0, 2), st.integers(0, 1000), st.sampled_from(["key", "Key", "key 0"])
limits = st.sampled_from([1, 2, 3, 100])


def written(document, *, otherwise):
    fields = dict(reversed(document.items())) if otherwise else dict(document)
    if otherwise and "allocation" in fields:
        items = fields["allocation"][::-1]
        fields["allocation"] = [item | {"token_address": eip55(item["token_address"])} for item in items]
    return fields


class Stacks(RuleBasedStateMachine):
    """*fixtures* are those of pytest."""

    fixtures: SimpleNamespace
    cursors = Bundle("cursors")

    def __init__(self):
        super().__init__()
        first = self.fixtures.make_client()
        self.clients = [first, self.fixtures.make_client(first.external_id), self.fixtures.make_client()]
        self.history = {}  # by id: who wrote each revision, and the state it led to
        self.created, self.owners = {}, {}  # by id: the moment, and the manager
        self.receipts = {}  # by manager and key: the input and the id

    def any_stack(self, number, place):
        stack_id = list(self.history)[place % len(self.history)]
        client, owner = self.clients[number], self.owners[stack_id]
        return client, stack_id, self.history[stack_id][-1][1], owner == client.external_id

    def write(self, send, client, body):
        self.author = {"request_id": str(uuid4()), "key_digest": api_keys.digest(client.key)}
        self.author["identity_id"] = api_keys.identity_of(client.external_id)
        return send(body, headers={"X-Request-Id": self.author["request_id"]})

    def save(self, expected, returned):
        ids = {"id": returned["id"], "current_revision_id": returned["current_revision_id"]}
        assert returned == expected | ids
        seen = [state["current_revision_id"] for history in self.history.values() for _, state in history]
        assert ids["current_revision_id"] not in seen
        self.history.setdefault(returned["id"], []).append((self.author, returned))

    @initialize(some=st.lists(documents, min_size=3, max_size=5))
    def create_some(self, some):
        for number, document in enumerate(some):
            self.create(0, f"key {number}", document, otherwise=False)

    @rule(number=numbers, key=keys, document=documents, otherwise=otherwise)
    def create(self, number, key, document, otherwise):
        client, body = self.clients[number], written(document, otherwise=otherwise)
        response = self.write(partial(client.create, key=key), client, body)
        used, stack_id = self.receipts.get((client.external_id, key), (None, None))
        if used is None:
            stack_id = response.json["id"]
            assert (response.status_int, stack_id in self.history) == (201, False)
            assert response.headers["Location"] == f"/manager/stacks/{stack_id}"
            self.save(document, response.json)
            self.created[stack_id], self.owners[stack_id] = (1, len(self.history)), client.external_id
            self.receipts[client.external_id, key] = document, stack_id
        elif used == document:
            assert (response.status_int, response.json) == (200, self.history[stack_id][-1][1])
        else:
            assert response.status_int == 409

    @rule(number=numbers, place=places, changes=changes, otherwise=otherwise)
    def update(self, number, place, changes, otherwise):
        client, stack_id, state, is_own = self.any_stack(number, place)
        response = self.write(partial(client.update, stack_id), client, written(changes, otherwise=otherwise))
        assert response.status_int == (200 if is_own else 404)
        if is_own:
            self.save(state | changes, response.json)

    @rule(number=numbers, place=places)
    def get(self, number, place):
        client, stack_id, state, is_own = self.any_stack(number, place)
        response = client.get(stack_id)
        assert response.status_int == (200 if is_own else 404)
        assert not is_own or response.json == state

    @rule(number=numbers, key=keys, body=st.sampled_from(BAD), place=places)
    def reject(self, number, key, body, place):
        client, stack_id, *_ = self.any_stack(number, place)
        for send in (partial(client.create, key=key), partial(client.update, stack_id)):
            assert send(body).status_int in (400, 413)

    @rule(bits=st.integers(0, 63))
    def date(self, bits):
        """Move the creation of each stack to one of two moments, behind the service's back."""
        for place, stack_id in enumerate(self.history):
            later = bits >> place & 1
            dated = "UPDATE stackmgr.stacks SET created_at = %s WHERE stack_id = %s"
            self.fixtures.admin.execute(dated, (PAST + timedelta(microseconds=later), stack_id))
            self.created[stack_id] = (0, later)

    @rule(number=numbers)
    def change_worker(self, number):
        self.clients[number].change_worker()

    @rule(target=cursors, number=numbers, limit=limits)
    def first_page(self, number, limit):
        return self.next_page(number, limit, ("", ((2, 0), "")))

    @rule(target=cursors, number=numbers, limit=limits, cursor=cursors)
    def next_page(self, number, limit, cursor):
        """A cursor is a position: whoever sends it, and whatever has been created or changed since."""
        client, (text, after) = self.clients[number], cursor
        own = [each for each, owner in self.owners.items() if owner == client.external_id]
        order = sorted(((self.created[stack_id], stack_id) for stack_id in own), reverse=True)
        rest = [each for each in order if each < after]
        page = rest[:limit]
        states = [self.history[stack_id][-1][1] for _, stack_id in page]
        sizes = [len(state["name"].encode()) for state in states]
        if max(sizes, default=0) > NAME_BYTES:
            page = [each for n, each in enumerate(page) if not n or sum(sizes[: n + 1]) <= PAGE_BYTES]
        found = client.page(f"limit={limit}{text and '&cursor='}{text}").json
        assert found["items"] == states[: len(page)]
        assert (found["next_cursor"] is not None) == (len(page) < len(rest))
        return (found["next_cursor"], page[-1]) if found["next_cursor"] else multiple()

    def teardown(self):
        ids = [[client.external_id for client in self.clients]]
        rows = self.fixtures.admin.cursor(row_factory=dict_row).execute(REVISIONS, ids).fetchall()
        others = [{name: row[name] for name in row if name not in COLUMNS} for row in rows]
        assert [examples.from_columns(row) | other for row, other in zip(rows, others, strict=True)] == [
            state | author | {"revision_number": number, "newest": len(self.history[stack_id])}
            for stack_id in sorted(self.history)
            for number, (author, state) in enumerate(self.history[stack_id], 1)
        ]
        stored = self.fixtures.admin.execute(RECEIPTS, ids).fetchall()
        assert {(*key, stack_id) for key, (_, stack_id) in self.receipts.items()} == set(stored)


@pytest.fixture
def fixtures(make_client, admin, monkeypatch):
    monkeypatch.setattr(repository, "PAGE_NAME_BYTES", PAGE_BYTES)
    monkeypatch.setattr(repository, "MAX_PAGE_SIZE", PAGE_BYTES // NAME_BYTES)
    return SimpleNamespace(make_client=make_client, admin=admin)


def test_operations_are_those_of_the_model(fixtures):
    Stacks.fixtures = fixtures
    run_model(Stacks)
