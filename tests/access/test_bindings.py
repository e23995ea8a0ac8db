"""Bindings of managers to identities: how the operator's commands show and change them."""

from uuid import uuid4

import pytest

from stackmgr.access.verifiers import Identity
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier


@pytest.fixture
def client_as(client_with):
    def make(identity_id: str, external_id: str):
        verifier = FixedVerifier(Identity(identity_id=identity_id, external_id=external_id))
        return client_with("key", external_id, verifier=verifier)

    return make


@pytest.fixture
def bound(client_as):
    identity_id, external_id = f"id_{uuid4().hex}", str(uuid4())
    client = client_as(identity_id, external_id)
    assert client.create(configuration()).status_int == 201
    return client, identity_id, external_id


def test_the_conflict_of_each_manager_is_logged(client_as, caplog):
    for external_id in (str(uuid4()), str(uuid4())):
        first, other = (client_as(f"id_{uuid4().hex}", external_id) for _ in range(2))
        assert [client.page().status_int for client in (first, other, other)] == [200, 500, 500]
        assert len([line for line in caplog.messages if external_id in line]) == 1


def rebind(command, manager, external_id, identity_id, *arguments):
    confirmed = ("--confirm-external-id", external_id, "--confirm-identity-id", identity_id)
    return command("managers", "rebind", manager, *confirmed, *arguments)


@pytest.mark.parametrize("place", [0, 1], ids=["identity id", "external id"])
def test_rebinding_keeps_the_stacks(bound, client_as, command, admin, place):
    client, *old = bound
    new = [*old]
    new[place] = str(uuid4())
    after, before = client_as(*new), client.page().json
    assert after.page().status_int == 500
    assert command("managers", "show", new[place]).status == 1
    [saved] = command("managers", "show", "--json", old[1]).json
    assert [saved["identity_id"], saved["external_id"]] == old
    assert command("managers", "show", "--json", "--identity-id", old[0]).json == [saved]
    to = (("--to-identity-id", "--to-external-id")[place], new[place])
    rebound = rebind(command, saved["manager_id"], old[1], old[0], *to, "--json").json
    assert rebound == [{"manager_id": saved["manager_id"], "identity_id": new[0], "external_id": new[1]}]
    assert after.page().json == before
    assert client.page().status_int == 500
    recorded = b"""
        SELECT old_identity_id, old_external_id::text, new_identity_id, new_external_id::text
        FROM stackmgr.manager_rebindings WHERE manager_id = %s
    """
    assert admin.execute(recorded, [saved["manager_id"]]).fetchall() == [(*old, *new)]


def test_rebinding_needs_the_saved_binding(bound, client_as, command, contents):
    _, identity_id, external_id = bound
    other_identity, other_external = f"id_{uuid4().hex}", str(uuid4())
    client_as(other_identity, other_external).page()
    before = contents()
    for confirmed, arguments, status, message in (
        ("id_wrong", ("--to-identity-id", "id_new"), 1, "the saved binding is another one"),
        (identity_id, ("--to-identity-id", other_identity), 1, "another manager is bound to the new id"),
        (identity_id, ("--to-external-id", other_external), 1, "another manager is bound to the new id"),
        (identity_id, ("--to-identity-id", "two\nlines"), 2, "must be 1 to 255"),
        (identity_id, ("--to-identity-id", "x" * 256), 2, "must be 1 to 255"),
        (identity_id, (), 2, "--to-external-id or --to-identity-id is required"),
    ):
        rejected = rebind(command, external_id, external_id, confirmed, *arguments)
        assert (rejected.status, rejected.out) == (status, "")
        assert message in rejected.err
    for manager, message in {external_id: "saved binding is another", str(uuid4()): "no manager has"}.items():
        rejected = rebind(command, manager, other_external, identity_id, "--to-identity-id", "id_new")
        assert message in rejected.err
    assert "MANAGER_ID or --identity-id is required" in command("managers", "show").err
    assert contents() == before
