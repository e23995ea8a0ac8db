"""Pages of more than a megabyte: they wait for room, and are built in turns with other requests."""

import json
import time

import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.capacity import CAPACITY, Capacity
from stackmgr.database.pool import Database
from tests.http.raw_wsgi import Input, call
from tests.support.client import STACKS
from tests.support.examples import configuration

BODY = json.dumps(configuration(name='"\N{GRINNING FACE}' * 43_000), ensure_ascii=False).encode()


@pytest.fixture
def page_of(client, app):
    """Return a function that lists six large stacks, with other members of the environ."""
    for _ in range(6):
        assert client.create(BODY).status_int == 201

    def page(application=app, method="GET", **environ):
        return call(application, client, method, STACKS, Input(b""), **environ)

    return page


def test_a_large_page_has_its_length_and_the_responses_of_get(client, page_of):
    page = page_of()
    assert len(page.body) == int(page.headers["Content-Length"]) > 1_048_576
    assert [client.get(item["id"]).json for item in page.json["items"]] == page.json["items"]
    assert page_of(method="HEAD").headers["Content-Length"] == page.headers["Content-Length"]


def test_a_page_waits_for_room_without_a_connection(page_of, serving, service_url, database):
    only = Database(service_url, pool_size=1, deadline=20, variant="citus" if database.variants else "plain")
    only.open()
    sizes = []

    def wait_for_room(_, size):
        sizes.append(size)
        only.release(only.acquire(time.monotonic() + 5))
        return 0

    try:
        page = page_of(serving(DatabaseVerifier(), only), **{CAPACITY: Capacity(wait_for_room)})
    finally:
        only.close()
    assert (page.status_int, len(sizes)) == (200, 1)


def test_a_page_without_room_is_503(page_of):
    page = page_of(**{CAPACITY: Capacity(lambda *_: 7)})
    assert (page.status_int, page.json["code"]) == (503, "service_unavailable")
    assert page.headers["Retry-After"] == "7"
