"""Bindings of managers to identities: how the operator's commands show and change them."""

from uuid import uuid4

import pytest

from stackmgr.access.verifiers import Identity
from stackmgr.http.app import create_app
from tests.support.client import Client
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier


@pytest.fixture
def client_as(database, spellings, statements_run):
    """Return a function that makes a client with a given verified identity."""

    def make(identity_id: str, external_id: str) -> Client:
        verifier = FixedVerifier(Identity(identity_id=identity_id, external_id=external_id))
        app = create_app(database=database, verifier=verifier, spellings=spellings)
        return Client(app, "key", external_id, statements_run)

    return make


@pytest.fixture
def bound(client_as):
    """A client whose binding is saved, its identity id, and its external id."""
    identity_id, external_id = f"id_{uuid4().hex}", str(uuid4())
    client = client_as(identity_id, external_id)
    assert client.create(configuration()).status_int == 201
    return client, identity_id, external_id


@pytest.mark.parametrize("half", ["the same external id", "the same identity id"])
def test_a_conflict_in_either_direction_is_an_error_that_names_both_sides_to_the_operator(
    bound, client_as, contents, caplog, half
):
    _, identity_id, external_id = bound
    same_external_id = half == "the same external id"
    other = client_as("id_other", external_id) if same_external_id else client_as(identity_id, str(uuid4()))
    before = contents()
    for response in (other.create(configuration()), other.page(), other.page()):
        assert (response.status_int, response.json["code"]) == (500, "internal_error")
        assert identity_id not in response.text
    assert contents() == before
    assert identity_id in caplog.text
    assert external_id in caplog.text
    assert f"stackmgr managers show {other.external_id}" in caplog.text
    assert caplog.text.count("binding conflict") == 1
    assert "a request failed" not in caplog.text


def test_show_finds_a_binding_by_either_id(bound, command):
    _, identity_id, external_id = bound
    by_external_id = command("managers", "show", "--json", external_id).json
    assert [(shown["external_id"], shown["identity_id"]) for shown in by_external_id] == [
        (external_id, identity_id)
    ]
    assert command("managers", "show", "--json", "--identity-id", identity_id).json == by_external_id
    listed = command("managers", "list", "--json").json
    assert by_external_id[0] in listed
    row = "\t".join(each or "-" for each in by_external_id[0].values())
    assert row in command("managers", "show", external_id).out
    assert command("managers", "show", str(uuid4())).status == 1


def rebind(command, external_id, identity_id, *arguments):
    (saved,) = command("managers", "show", "--json", external_id).json
    return command(
        "managers", "rebind", saved["manager_id"], "--confirm-external-id", external_id,
        "--confirm-identity-id", identity_id, *arguments,
    )  # fmt: skip


def test_after_a_change_of_verifier_a_manager_is_rebound_and_keeps_its_stacks(
    bound, client_as, command, admin
):
    client, identity_id, external_id = bound
    after = client_as(f"new_{identity_id}", external_id)
    before = client.page().json
    assert after.page().status_int == 500
    assert rebind(command, external_id, identity_id, "--to-identity-id", f"new_{identity_id}").status == 0
    assert after.page().json == before
    assert client.page().status_int == 500
    recorded = admin.execute(
        b"SELECT old_identity_id, new_identity_id, old_external_id::text, new_external_id::text"
        b" FROM stackmgr.manager_rebindings WHERE old_identity_id = %s",
        [identity_id],
    ).fetchall()
    assert recorded == [(identity_id, f"new_{identity_id}", external_id, external_id)]


def test_an_external_id_can_be_corrected(bound, client_as, command):
    _, identity_id, external_id = bound
    corrected = str(uuid4())
    rebound = command(
        "managers", "rebind", external_id, "--confirm-external-id", external_id,
        "--confirm-identity-id", identity_id, "--to-external-id", corrected,
    )  # fmt: skip
    assert rebound.status == 0
    assert len(client_as(identity_id, corrected).page().json["items"]) == 1


def test_a_rebinding_needs_the_saved_binding_and_ids_that_no_other_manager_has(
    bound, client_as, command, contents
):
    _, identity_id, external_id = bound
    other_identity, other_external = f"id_{uuid4().hex}", str(uuid4())
    client_as(other_identity, other_external).page()
    before = contents()
    for arguments, message in [
        ((external_id, "id_wrong", "--to-identity-id", "id_new"), "the saved binding is another one"),
        (
            (external_id, identity_id, "--to-identity-id", other_identity),
            "another manager is bound to the new id",
        ),
        (
            (external_id, identity_id, "--to-external-id", other_external),
            "another manager is bound to the new id",
        ),
    ]:
        rejected = rebind(command, *arguments)
        assert rejected.status == 1
        assert message in rejected.err
    for rejected, message in [
        (rebind(command, external_id, identity_id), "--to-external-id or --to-identity-id is required"),
        (command("managers", "show"), "MANAGER_ID or --identity-id is required"),
    ]:
        assert (rejected.status, rejected.out) == (2, "")
        assert message in rejected.err
    assert rebind(command, external_id, identity_id, "--to-identity-id", "two\nlines").status == 2
    assert contents() == before
