"""The page about verifiers: its worked example works, and its statements are true."""

import re
from pathlib import Path

import pytest

from stackmgr.access import api_keys, verifiers
from stackmgr.settings import Secret
from tests.support.http_server import respond

PAGE = (Path(verifiers.__file__).parent / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SUBJECT = "7f2b7c3e-6f0e-4c43-9d8e-0d1a4b1f6a11"
TOKEN = {"active": True, "iss": "https://id.example.org", "sub": SUBJECT, "aud": "stackmgr"}


@pytest.fixture
def token_client(unkey, client_with, make_endpoint):
    defined: dict = {}
    exec(compile(EXAMPLE, "README.md", "exec"), defined)  # noqa: S102 - our own page
    verifier = defined["IntrospectionVerifier"](make_endpoint(unkey.url), Secret("introspector"), "stackmgr")
    return client_with("tok+en/1", SUBJECT, verifier=verifier)


@pytest.mark.parametrize("audience", ["stackmgr", ["other", "stackmgr"]])
def test_the_example_accepts_an_active_token(token_client, unkey, admin, audience):
    unkey.behave = respond(200, TOKEN | {"aud": audience})
    assert token_client.page().status_int == 200
    assert unkey.requests[0].line == "POST /oauth2/introspect HTTP/1.1"
    assert unkey.requests[0].body == b"token=tok%2Ben%2F1&token_type_hint=access_token"
    assert unkey.requests[0].headers["authorization"] == "Bearer introspector"
    saved = admin.execute("SELECT identity_id FROM stackmgr.managers WHERE external_id = %s", [SUBJECT])
    assert saved.fetchall() == [(f"https://id.example.org#{SUBJECT}",)]


@pytest.mark.parametrize(("token", "status"), [
    ({"active": False}, 401), (TOKEN | {"aud": "other"}, 401), (TOKEN | {"aud": None}, 401),
    (TOKEN | {"sub": None}, 401), (TOKEN | {"sub": SUBJECT.upper()}, 401),
    (TOKEN | {"iss": 7}, 401), (TOKEN | {"active": "true"}, 503), ({}, 503),
])  # fmt: skip
def test_the_example_rejects_every_other_token(token_client, unkey, token, status):
    unkey.behave = respond(200, token)
    assert token_client.page().status_int == status


def test_the_published_pattern_is_that_of_the_keys():
    [pattern] = re.findall(r"`(stackmgr_\[.+?)`", PAGE)
    assert re.fullmatch(pattern, api_keys.generate())
