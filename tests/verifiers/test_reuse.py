"""STACKMGR_VERIFY_REUSE_SECONDS: a key that Unkey accepted is not verified again within that time."""

from types import SimpleNamespace

import pytest

from stackmgr.access.verifiers import Identity, reuse
from stackmgr.access.verifiers.remote import Endpoint
from stackmgr.access.verifiers.reuse import RecentIdentities
from stackmgr.access.verifiers.unkey import UnkeyVerifier
from stackmgr.http.app import create_app
from stackmgr.settings import Secret
from tests.support.client import Client
from tests.support.unkey_server import ROOT_KEY, accepted, respond, verification

EXTERNAL = "5a6d3c1e-6f0e-4a53-9d3b-0d8a3f5d7c11"
ACCEPTED = respond(200, accepted(EXTERNAL, "id_reuse"))


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(reuse, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def client_of(database, spellings, statements_run, unkey):
    """Return a function that makes a client whose key Unkey verifies, reusing its acceptance for so long."""

    def make(seconds, key="key-reuse"):
        endpoint = Endpoint(unkey.url, timeout=10.0, connections=4)
        verifier = UnkeyVerifier(endpoint, Secret(ROOT_KEY), reuse_seconds=seconds)
        app = create_app(database=database, verifier=verifier, spellings=spellings)
        return Client(app, key, EXTERNAL, statements_run)

    return make


def test_by_default_each_request_is_verified(client_of, unkey):
    unkey.behave = ACCEPTED
    client = client_of(0.0)
    assert [client.page().status_int for _ in range(3)] == [200] * 3
    assert len(unkey.requests) == 3


def test_an_accepted_key_is_not_verified_again_even_if_it_is_revoked_meanwhile(client_of, unkey):
    unkey.behave = ACCEPTED
    client = client_of(60.0)
    assert client.page().status_int == 200
    unkey.behave = respond(200, verification("DISABLED"))
    assert [client.page().status_int for _ in range(3)] == [200] * 3
    assert len(unkey.requests) == 1
    client.key = "another-key"
    assert client.page().status_int == 401


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (respond(200, verification("NOT_FOUND")), 401),
        (respond(200, verification("RATE_LIMITED")), 429),
        (respond(200, accepted("no-uuid")), 401),
        (respond(500, {}), 503),
    ],
)
def test_nothing_but_an_acceptance_is_reused(client_of, unkey, behaviour, status):
    unkey.behave = behaviour
    client = client_of(60.0)
    assert [client.page().status_int for _ in range(2)] == [status] * 2
    assert len(unkey.requests) == 2
    unkey.behave = ACCEPTED
    assert client.page().status_int == 200


def test_an_acceptance_lasts_from_the_time_of_its_request(clock):
    recent = RecentIdentities(10.0)
    recent.add("key", Identity("id", EXTERNAL), asked_at=clock.seconds - 4.0)
    clock.seconds += 5.9
    assert recent.get("key") == Identity("id", EXTERNAL)
    clock.seconds += 0.1
    assert recent.get("key") is None


def test_the_number_of_kept_identities_is_limited_and_no_key_is_kept(clock, monkeypatch):
    monkeypatch.setattr(reuse, "MAX_IDENTITIES", 3)
    recent = RecentIdentities(10.0)
    for number in (1, 2, 3, 1, 4):
        recent.add(f"key-{number}", Identity(f"id-{number}", EXTERNAL), clock.seconds)
    kept = {number for number in range(1, 5) if recent.get(f"key-{number}")}
    assert kept == {1, 3, 4}
    assert "key-" not in repr(vars(recent))
