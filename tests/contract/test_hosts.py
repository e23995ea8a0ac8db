"""Several service hosts on one database: a retry or a cursor may reach any of them."""

import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.http.app import create_app
from tests.support.client import Client
from tests.support.examples import configuration


@pytest.fixture
def hosts(client, service_url, spellings):
    """The same manager's clients of two hosts, which share nothing but the database."""
    database = Database(service_url, pool_size=1)
    database.open()
    app = create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
    yield client, Client(app, client.key, client.external_id, [])
    database.close()


def test_a_retry_on_another_host_returns_the_stack_of_the_first(hosts):
    first, second = hosts
    created = first.create(configuration(), key="one")
    retried = second.create(configuration(), key="one")
    assert (created.status_int, retried.status_int) == (201, 200)
    assert retried.json == created.json
    assert second.create(configuration(name="other"), key="one").status_int == 409


def test_a_cursor_of_one_host_continues_on_another(hosts):
    first, second = hosts
    made = [first.create(configuration(), key=f"{n}").json["id"] for n in range(5)]
    found, query = [], "limit=2"
    for client in (first, second, first):
        page = client.page(query).json
        found += [item["id"] for item in page["items"]]
        query = f"limit=2&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert found == made[::-1]


def test_an_update_on_one_host_is_read_on_another_at_once(hosts):
    stack_id = hosts[0].create(configuration()).json["id"]
    for writer, reader in (hosts, hosts[::-1], hosts):
        updated = writer.update(stack_id, {"name": "New"})
        assert reader.get(stack_id).json == updated.json
