"""A rejected key: what the log line of its request says, and what the response does not."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from stackmgr.access.verifiers import unkey as unkey_verifier
from stackmgr.access.verifiers.remote import retry_after
from stackmgr.operate import keys
from tests.support.http_server import respond
from tests.support.unkey_server import accepted, verification

NOW = 1_800_000_000
UNKEY = {
    "NOT_FOUND": (401, "key_unknown"), "EXPIRED": (401, "key_expired"), "DISABLED": (401, "key_disabled"),
    "FORBIDDEN": (401, "key_forbidden"), "INSUFFICIENT_PERMISSIONS": (401, "key_without_permission"),
    "A_CODE_OF_THE_FUTURE": (401, "key_refused"), "RATE_LIMITED": (429, "key_limited"),
    "USAGE_EXCEEDED": (429, "key_usage_exceeded"),
}  # fmt: skip


@pytest.fixture
def lines():
    return []


@pytest.fixture
def unkey_client(client_with, unkey, make_verifier, lines):
    verifier = make_verifier(unkey.url)
    return client_with("some_key", str(uuid4()), verifier=verifier, observers=[lines.append])


@pytest.mark.parametrize("code", UNKEY)
def test_each_code_of_unkey_has_its_reason(unkey_client, unkey, lines, code):
    unkey.behave = respond(200, verification(code, keyId="key_1"))
    assert unkey_client.page().status_int == UNKEY[code][0]
    assert lines[-1]["reason"] == UNKEY[code][1]
    assert (lines[-1]["key_id"], lines[-1]["verifier_request_id"]) == ("key_1", "req_1")


UNUSABLE = {
    "identity_missing": verification("VALID", valid=True), "identity_id_missing": accepted(str(uuid4()), ""),
    "external_id_not_canonical": accepted("x"), "verifier_response_contradictory": verification("VALID"),
    "verifier_response_without_data": {"meta": {}}, "verifier_response_not_an_object": b"[]",
    "verifier_response_not_json": b"[" * 15_000, "verifier_response_too_long": b"[" * 60_000,
    "key_too_long": b"",
}  # fmt: skip


@pytest.mark.parametrize("reason", UNUSABLE)
def test_each_unusable_response_has_its_reason(unkey_client, unkey, lines, reason):
    unkey.behave = respond(200, UNUSABLE[reason])
    unkey_client.key *= 1000 if reason == "key_too_long" else 1
    assert unkey_client.page().status_int == (503 if reason.startswith("verifier") else 401)
    assert lines[-1]["reason"] == reason


def test_ids_that_are_not_printable_are_not_logged(unkey_client, unkey, lines):
    for meta in ({"requestId": ["x"]}, ["x"], None):
        unkey.behave = respond(200, verification("DISABLED", keyId="a\nb") | {"meta": meta})
        assert unkey_client.page().status_int == 401
        assert lines[-1]["key_id"] is None
        assert "verifier_request_id" not in lines[-1]


def limit(seconds, **changed):
    reset = int((NOW + seconds) * 1000)
    return {"name": "r", "duration": 60_000, "reset": reset, "exceeded": True} | changed


@pytest.mark.parametrize(("limits", "expected"), [
    ([limit(29.5)], "30"), ([limit(10), limit(40), limit(55, exceeded=False)], "40"),
    ([limit(-3600)], "1"),  # this host's clock is fast
    ([limit(3600)], "60"),  # or slow
    ([limit(7, duration=0)], "1"), ([limit(10**7, duration=10**30)], "86400"),
    ([limit(7, reset="soon")], None), ([limit(7, reset=True)], None), ([limit(7, duration=None)], None),
    ([limit(7, exceeded="yes")], None), *((none, None) for none in ([], ["r"], {}, None)),
], ids=repr)  # fmt: skip
def test_a_limited_key_gets_the_time_of_the_reset(unkey_client, unkey, monkeypatch, limits, expected):
    monkeypatch.setattr(unkey_verifier, "time", lambda: NOW)
    unkey.behave = respond(200, verification("RATE_LIMITED", ratelimits=limits))
    response = unkey_client.page()
    assert (response.status_int, response.headers.get("Retry-After")) == (429, expected)


def test_a_warning_says_once_that_all_keys_are_unknown(unkey_client, unkey, caplog):
    def warnings():
        return [each for each in caplog.messages if "root key" in each]

    unkey.behave = respond(200, verification("NOT_FOUND"))
    assert [unkey_client.page().status_int for _ in range(19)] == [401] * 19
    unkey.behave = respond(200, accepted(unkey_client.external_id, unkey_client.external_id))
    unkey_client.page()
    unkey.behave = respond(200, verification("NOT_FOUND"))
    assert [unkey_client.page().status_int for _ in range(19)] == [401] * 19
    assert warnings() == []
    assert [unkey_client.page().status_int for _ in range(21)] == [401] * 21
    assert len(warnings()) == 1
    assert unkey_client.key not in caplog.text


def test_rejected_key_is_logged_with_its_id(client_with, issue, operator, lines):
    revoked, used_up = issue(), issue(quota=keys.Quota(1, 60))
    expired = issue(expires_at=datetime.now(UTC) - timedelta(seconds=60))
    tried = (revoked.key, expired.key, api_keys.generate(), used_up.key, used_up.key)
    known, *others = [client_with(key, observers=[lines.append]) for key in tried]
    assert known.page().status_int == 200
    keys.revoke(operator.session(), revoked.key_id)
    assert [each.page().status_int for each in (known, *others)] == [401, 401, 401, 200, 429]
    assert [(line["reason"], line["key_id"], bool(line["manager_id"])) for line in lines] == [
        (None, revoked.key_id, True), ("key_revoked", revoked.key_id, False),
        ("key_expired", expired.key_id, False), ("key_unknown", None, False), (None, used_up.key_id, True),
        ("quota", used_up.key_id, False),
    ]  # fmt: skip
    assert [line["verifier"] for line in lines] == [line["code"] or "accepted" for line in lines]


TEXTS = {
    "0": 0, "17": 17, "007": 7, "Wed, 21 Oct 2015 07:28:00 GMT": 0,
    **dict.fromkeys(("", "soon", "-1", "1.5", "1e3", "17, 18", "\u0661\u0667", "1" * 5000, "17s")),
    "Wed, 99 Oct 2015 07:28:00 GMT": None, "Wed, 21 Oct 99999 07:28:00 GMT": None,
    "Wed, 21 Oct 2015 07:28:00 +99999999999999": None, "2015-10-21T07:28:00Z": None,
}  # fmt: skip
CLOCKS = {  # Retry-After and Date of a verifier whose clock is wrong
    ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:27:30 GMT"): 30,
    ("Fri, 31 Dec 2100 23:59:59 GMT", "Fri, 31 Dec 2100 23:59:19 GMT"): 40,
    ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:29:00 GMT"): 0,
    ("Wed, 21 Oct 2015 07:28:00 GMT", "today"): 0,
    ("17", "Wed, 21 Oct 2015 07:28:00 GMT"): 17,
}


@pytest.mark.parametrize(
    ("fields", "seconds"), [*(((text,), seconds) for text, seconds in TEXTS.items()), *CLOCKS.items()]
)
def test_retry_after_in_seconds_or_past(fields, seconds):
    assert retry_after(*fields) == seconds


@pytest.mark.parametrize("ahead", [1, 90, 86400])
def test_retry_after_as_a_date(ahead):
    moment = datetime.now(UTC) + timedelta(seconds=ahead)
    for text in (format_datetime(moment, usegmt=True), format_datetime(moment.replace(tzinfo=None))):
        assert ahead - 2 <= retry_after(text) <= ahead
