"""The binding of an external id to an identity id: saved once, conflicts, concurrent first requests."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from tests.support.client import STACKS
from tests.support.examples import configuration

INSERT = "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) VALUES (%s, %s, %s)"
BOUND = """
    SELECT external_id::text, identity_id FROM stackmgr.managers
    WHERE external_id = %(external_id)s OR identity_id = %(identity_id)s ORDER BY identity_id
"""


def both_halves(client):
    return {"external_id": client.external_id, "identity_id": api_keys.identity_of(client.external_id)}


def save(admin, external_id, identity_id):
    admin.execute(INSERT, (uuid4(), external_id, identity_id))


@pytest.mark.parametrize("same", [("external_id",), ("identity_id",), ("external_id", "identity_id")])
def test_a_conflicting_binding_is_an_internal_error_every_time_and_is_never_changed(
    client, admin, caplog, same
):
    for half in same:
        other = {"external_id": str(uuid4()), "identity_id": f"elsewhere:{uuid4()}"}
        save(admin, **other | {half: both_halves(client)[half]})
    bound = admin.execute(BOUND, both_halves(client)).fetchall()
    for _ in range(2):
        for response in (
            client.page(),
            client.page("limit=0"),
            client.get(str(uuid4())),
            client.create(configuration()),
            client.update(str(uuid4()), {"name": "Value"}),
            client.request("HEAD", STACKS),
        ):
            assert response.status_int == 500
            assert not response.body or response.json["code"] == "internal_error"
            assert client.statements == ["api_key_verify", "manager_find"]
    assert admin.execute(BOUND, both_halves(client)).fetchall() == bound
    # The operator learns both sides, once.
    for identifier in (*both_halves(client).values(), *bound[0]):
        assert identifier in caplog.text
    assert f"stackmgr managers show {client.external_id}" in caplog.text
    assert caplog.text.count("binding conflict") == 1
    assert "a request failed" not in caplog.text


# What a concurrent request saves, and the status of one that waited until that was committed.
RIVALS = {
    "the same": (lambda halves: halves, 200),
    "external id": (lambda halves: halves | {"identity_id": f"elsewhere:{uuid4()}"}, 500),
    "identity id": (lambda halves: halves | {"external_id": str(uuid4())}, 500),
}


@pytest.mark.parametrize(("rival", "status"), RIVALS.values(), ids=RIVALS)
def test_a_first_request_waits_for_a_concurrent_one_and_uses_what_it_saved(
    make_client, admin, other, rival, status
):
    for end, expected in ((other.rollback, 200), (other.commit, status)):
        client = make_client()
        halves = rival(both_halves(client))
        save(other, *halves.values())
        with ThreadPoolExecutor(1) as thread:
            response = thread.submit(client.page)
            other.wait_until_waited_for(admin)
            end()
            assert response.result().status_int == expected
        assert client.page().status_int == expected
        saved = halves if end == other.commit else both_halves(client)
        assert admin.execute(BOUND, both_halves(client)).fetchall() == [tuple(saved.values())]
