"""Random histories of two managers on two hosts: every response equals that of a small model of the contract.

In CI the cases are the same in every run; elsewhere each run tries others.
"""

import os
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, multiple, rule

from stackmgr.database.pool import Database
from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.stacks import repository
from tests.contract.generated.model import Model
from tests.contract.generated.strategies import Document, chances, changes, configurations, unlike, written
from tests.support.bad_bodies import NOT_JSON, field_text

HISTORIES = int(os.environ.get("STACKMGR_PROPERTY_HISTORIES", "30"))  # for each size of a page

managers = st.integers(0, 1)
# Few keys and few configurations, so that histories are full of retries and conflicts.
keys = st.sampled_from(["a", "A", '"a"', "b"])
mostly = st.sampled_from([True, True, True, False])
bad_bodies = st.sampled_from([b"{}", b'{"name":null}', NOT_JSON["name twice"], field_text("name", '" "')])


class Created(NamedTuple):
    """A stack, and what it was created with."""

    manager: int
    key: str
    document: Document
    stack_id: str


class Histories(stateful.RuleBasedStateMachine):
    """The same requests to the service and the model; a cursor has a text and a place among all stacks."""

    make_clients: staticmethod  # set for each test: the rules cannot take fixtures

    documents = Bundle("documents")
    stacks = Bundle("stacks")
    cursors = Bundle("cursors")

    def __init__(self) -> None:
        super().__init__()
        self.clients, self.other_clients = zip(*(self.make_clients() for _ in range(2)), strict=True)
        self.model = Model(2, repository.PAGE_NAME_BYTES)

    @rule()
    def change_host(self):
        self.clients, self.other_clients = self.other_clients, self.clients

    @initialize(target=documents, drawn=st.lists(configurations, min_size=2, max_size=3))
    def think_of_some(self, drawn):
        return multiple(*drawn)

    @initialize(target=stacks, document=configurations, chance=chances)
    def create_some(self, document, chance):
        # Without these, most histories would be over before there is anything to page through.
        pairs = [(manager, key) for key in ("x", "y") for manager in (0, 1)]
        return multiple(*(self._create(manager, key, document, chance) for manager, key in pairs))

    @rule(target=stacks, manager=managers, key=keys, document=documents, chance=chances)
    def create(self, manager, key, document, chance):
        created = self._create(manager, key, document, chance)
        return multiple() if created is None else created

    @rule(stack=stacks, same_manager=mostly, chance=chances)
    def create_again(self, stack, same_manager, chance):
        manager = stack.manager if same_manager else 1 - stack.manager
        self._create(manager, stack.key, stack.document, chance)

    @rule(stack=stacks, data=st.data(), chance=chances)
    def create_almost_the_same(self, stack, data, chance):
        self._create(stack.manager, stack.key, data.draw(unlike(stack.document)), chance)

    @rule(stack=stacks, as_update=st.booleans(), body=bad_bodies)
    def send_a_bad_body(self, stack, as_update, body):
        client = self.clients[stack.manager]
        response = client.update(stack.stack_id, body) if as_update else client.create(body, stack.key)
        assert response.status_int == 400

    @rule(stack=stacks, by_owner=mostly)
    def get(self, stack, by_owner):
        manager = stack.manager if by_owner else 1 - stack.manager
        self._check_item(self.clients[manager].get(stack.stack_id), manager, stack.stack_id)

    @rule(stack=stacks, by_owner=mostly, wanted=changes, chance=chances)
    def update(self, stack, by_owner, wanted, chance):
        manager = stack.manager if by_owner else 1 - stack.manager
        response = self.clients[manager].update(stack.stack_id, written(wanted, chance))
        if by_owner:
            self.model.updated(manager, stack.stack_id, wanted, response.json)
        self._check_item(response, manager, stack.stack_id)

    @rule(target=cursors, manager=managers, limit=st.integers(1, 3))
    def first_page(self, manager, limit):
        return self._page(manager, limit, "", None)

    @rule(target=cursors, manager=managers, limit=st.integers(1, 3), cursor=cursors)
    def next_page(self, manager, limit, cursor):
        text, place = cursor
        return self._page(manager, limit, f"&cursor={text}", place)

    def teardown(self) -> None:
        for manager in range(len(self.clients)):
            text, place = self._check_page(manager, 100, "", None)
            while place is not None:
                text, place = self._check_page(manager, 100, f"&cursor={text}", place)

    def _create(self, manager, key, document, chance):
        """Return the stack that was created, or None where the key was used before."""
        response = self.clients[manager].create(written(document, chance), key)
        status, stack_id = self.model.create(manager, key, document)
        assert response.status_int == status
        if status == 201:
            self.model.created(manager, key, document, response.json)
            stack_id = response.json["id"]
            assert response.headers["Location"] == f"/manager/stacks/{stack_id}"
        if stack_id is not None:
            self._check_item(response, manager, stack_id, status)
        return Created(manager, key, document, stack_id) if status == 201 else None

    def _check_item(self, response, manager, stack_id, status=200):
        expected = self.model.accounts[manager].stacks.get(stack_id)
        assert response.status_int == (404 if expected is None else status)
        assert expected is None or response.json == expected

    def _page(self, manager, limit, query, before):
        text, place = self._check_page(manager, limit, query, before)
        return multiple() if place is None else (text, place)

    def _check_page(self, manager, limit, query, before):
        page = self.clients[manager].page(f"limit={limit}{query}").json
        items, place = self.model.page(manager, limit, before)
        assert page["items"] == items
        assert (page["next_cursor"] is None) == (place is None)
        return page["next_cursor"], place


@pytest.fixture
def make_clients(make_client, client_with, service_url, variant):
    """Return a function that makes one manager's clients of two hosts, which share only the database."""
    database = Database(service_url, pool_size=1, variant=variant)
    database.open()

    def make():
        client = make_client()
        return client, client_with(client.key, database=database)

    yield make
    database.close()


@pytest.mark.parametrize("page_bytes", [50, PAGE_NAME_BYTES], ids=["pages end early", "full pages"])
def test_a_history_of_two_managers_matches_the_model(make_clients, monkeypatch, page_bytes):
    monkeypatch.setattr(repository, "PAGE_NAME_BYTES", page_bytes)
    histories = type("Histories", (Histories,), {"make_clients": staticmethod(make_clients)})
    chosen = settings(
        max_examples=HISTORIES,
        stateful_step_count=40,
        deadline=None,  # nothing here is about speed
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        # Not `explain`, which takes a minute to say what the smallest case shows.
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        derandomize=os.environ.get("CI") == "true",
        database=None,
        print_blob=True,
    )
    stateful.run_state_machine_as_test(histories, settings=chosen)
