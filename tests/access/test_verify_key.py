"""`stackmgr verify-key`: the verifier's outcome, the status it means, and no row written."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest

from stackmgr.errors import CommandError, DatabaseError
from stackmgr.operate import verify_key
from stackmgr.reasons import ReasonSlug
from tests.support.http_server import hang_up, respond
from tests.support.unkey_server import ROOT_KEY, accepted, settings_for, verification

STEP_CLOCK = b"""
    UPDATE stackmgr.api_key_quota_slots SET granted_at = granted_at + '1 hour'
    WHERE quota_id = (SELECT quota_id FROM stackmgr.api_keys WHERE key_id = %s)
"""
NOT_VERIFIED, NOT_ACCEPTED = 1, 3


@pytest.fixture
def with_unkey(unkey, monkeypatch):
    for name, value in settings_for(unkey.url).items():
        monkeypatch.setenv(name, value)
    return unkey


def test_verify_key_leaves_no_trace(command, contents):
    external_id = str(uuid4())
    issued = command("keys", "issue", "--external-id", external_id.upper(), "--quota", "1/60", "--json").json
    before = contents()
    for end in ("", "\r\n"):
        result = command("verify-key", "--json", stdin=issued["key"] + end)
        assert result.status == 0
        document = result.json
        assert document.pop("duration_ms") > 0
        assert document == {
            **dict.fromkeys(("code", "reason", "retry_after", "manager_id")), "verifier": "database",
            "accepted": True, "status": 200, "key_id": issued["key_id"], "external_id": external_id,
            "identity_id": f"stackmgr:{external_id}",
        }  # fmt: skip
    text = command("verify-key", stdin=issued["key"]).out
    assert text.endswith("\nmanager_id\t- (the first request creates the record)\n")
    assert contents() == before
    (record,) = command("keys", "list", "--json", "--external-id", external_id).json
    assert record["last_used_hour"] is None


def test_an_existing_manager_is_named(command, client, monkeypatch):
    client.page()
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(verify_key, "sys", SimpleNamespace(stdin=terminal))
    monkeypatch.setattr("getpass.getpass", lambda _: client.key)  # which shows nothing of it
    result = command("verify-key")
    assert result.out.startswith("accepted: requests with this key are authenticated\n")
    assert "manager_id\t" in result.out
    assert client.key not in result.out + result.err


def test_verify_key_names_the_rejected_key(command, holder, admin):
    key = command("keys", "issue", "--external-id", str(uuid4()), "--quota", "1/60", "--json").json
    holder(key["key"]).page()
    limited = command("verify-key", "--json", stdin=key["key"])
    admin.execute(STEP_CLOCK, [key["key_id"]])
    assert command("verify-key", stdin=key["key"]).status == 0
    command("keys", "revoke", key["key_id"])
    revoked = command("verify-key", "--json", stdin=key["key"])
    for result, expected in (
        (limited, [429, "rate_limited", "quota"]),
        (revoked, [401, "unauthorized", "key_revoked"]),
    ):
        assert result.status == NOT_ACCEPTED
        assert [result.json[name] for name in ("status", "code", "reason")] == expected
        assert (result.json["key_id"], result.json["duration_ms"] > 0) == (key["key_id"], True)
    assert 50 <= limited.json["retry_after"] <= 60
    assert command("verify-key", stdin=key["key"]).out.startswith("not accepted\nverifier\tdatabase\n")


@pytest.mark.parametrize(("behaviour", "status", "reason"), [
    (respond(200, verification("NOT_FOUND")), 401, "key_unknown"),
    (respond(200, accepted("no-uuid")), 401, "external_id_not_canonical"),
    (respond(200, verification("RATE_LIMITED")), 429, "key_limited"),
    (respond(503, b"", "Retry-After: 9"), 503, "verifier_http_503"),
    (hang_up, 503, "verifier_response_broken"),
], ids=lambda value: str(value) if isinstance(value, int) else "")  # fmt: skip
def test_verify_key_reports_unkeys_outcome(command, with_unkey, behaviour, status, reason):
    with_unkey.behave = behaviour
    result = command("verify-key", "--json", stdin="some_key\n")
    exit_status, is_accepted = (NOT_VERIFIED, None) if status == 503 else (NOT_ACCEPTED, False)
    assert (result.status, result.json["accepted"]) == (exit_status, is_accepted)
    assert [result.json[name] for name in ("verifier", "status", "reason")] == ["unkey", status, reason]
    assert ROOT_KEY not in result.out + result.err
    assert "some_key" not in result.out + result.err


@pytest.mark.parametrize(("behaviour", "warned"), [
    (respond(200, verification("NOT_FOUND")), ""),
    (respond(403, {}), "warning: Unkey verifies no key now: verifier_http_403\n"),
    (respond(429, {}), "warning: Unkey verifies no key now: verifier_http_429\n"),
    (hang_up, "warning: Unkey verifies no key now: verifier_response_broken\n"),
], ids=["accepted root key", "rejected root key", "too many", "no response"])  # fmt: skip
def test_check_tries_the_root_key_with_a_made_up_key(command, with_unkey, behaviour, warned):
    with_unkey.behave = behaviour
    out = command("check").out
    assert "".join(line for line in out.splitlines(keepends=True) if "Unkey verifies" in line) == warned
    assert ROOT_KEY not in out
    assert len(with_unkey.requests) == 1


def test_a_conflicting_binding_is_reported(client, command, with_unkey, contents):
    client.page()
    found = accepted(client.external_id, "id_of_unkey")
    found["data"]["keyId"] = "key_1"
    with_unkey.behave, before = respond(200, found), contents()
    result = command("verify-key", "--json", stdin="some_key\n")
    assert result.status == NOT_ACCEPTED
    assert (result.json["status"], result.json["reason"]) == (500, "manager_binding")
    assert (result.json["identity_id"], result.json["key_id"]) == ("id_of_unkey", "key_1")
    assert contents() == before


def test_a_failed_database_rejects_no_key(command, with_unkey, monkeypatch):
    with_unkey.behave = respond(200, accepted(str(uuid4()), "id_of_unkey"))
    monkeypatch.setattr(verify_key.managers, "look_up", Mock(side_effect=DatabaseError(ReasonSlug.DEADLINE)))
    result = command("verify-key", "--json", stdin="some_key\n")
    assert (result.status, result.json["accepted"], result.json["reason"]) == (NOT_VERIFIED, None, "deadline")


def test_malformed_key_needs_no_verifier(command, with_unkey, monkeypatch):
    form = "authorization_header"
    for text, reason in {"two words\n": form, "\xff\xfek\0": form, "k" * 70_000: "key_too_long"}.items():
        malformed = command("verify-key", "--json", stdin=text)
        assert (malformed.json["status"], malformed.json["reason"]) == (401, reason)
    assert sys.stdin.buffer.tell() == 65_536  # however much follows
    missing = command("verify-key", stdin="\n")
    no_key = "stackmgr: standard input has no key: stackmgr verify-key < FILE"
    assert (missing.status, missing.err) == (1, f"{no_key}\n")
    assert with_unkey.requests == []
    monkeypatch.setattr(sys, "stdin", None)  # as after <&-
    with pytest.raises(CommandError, match="standard input has no key"):
        verify_key._read_key()
