"""Paths, methods, stack ids, and the isolation of managers."""

import json
from uuid import UUID, uuid4

import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS
from tests.support.examples import configuration, padded
from tests.support.tables import each_case

# webtest's lint warns of unknown method names; here they are the point.
pytestmark = pytest.mark.filterwarnings("ignore::webtest.lint.WSGIWarning")
ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
ITEM = f"{STACKS}/{ID}"
PREFLIGHT = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
CREDENTIALS = {"as a manager": {}, "as a browser's preflight": {"Authorization": None, **PREFLIGHT}}
STRANGE_METHODS = ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "FOOBAR", "WEBSOCKET", "get"]
UNKNOWN_PATHS = {
    "other names": ("/", "/manager", "/manager/stack", "/v1/manager/stacks", "/app/stacks", "/favicon.ico"),
    "paths of `stackmgr dev`": ("/docs", "/openapi.json", "/swagger-ui.css", "/swagger-ui-bundle.js"),
    "another case": ("/Manager/stacks", "/manager/STACKS"),
    "more slashes": ("//manager/stacks", "///manager/stacks", "/manager//stacks"),
    "slashes at the end": (f"{STACKS}/", f"{STACKS}//"),
    "more slashes and an id": (f"{STACKS}//{ID}", f"/{ITEM}", f"{ITEM}/", f"{ITEM}//", f"{ITEM}/revisions"),
    "dots": ("/manager/./stacks", "/manager/../manager/stacks"),
    "more in a name": [f"{STACKS}{more}" for more in (";v=1", "%20", "%00", "%ff", "%3Flimit=1")],
}


@pytest.mark.parametrize("headers", CREDENTIALS.values(), ids=CREDENTIALS)
@each_case("path", UNKNOWN_PATHS)
def test_an_unknown_path_is_not_found(client, path, headers):
    for method in ["GET", "HEAD", "POST", "PATCH", *STRANGE_METHODS]:
        response = client.request(method, path, headers=headers)
        assert response.status_int == 404, method
        assert client.statements == []


@pytest.mark.parametrize("headers", CREDENTIALS.values(), ids=CREDENTIALS)
@pytest.mark.parametrize(("path", "method", "allowed"), [
    *((STACKS, method, "GET, HEAD, POST") for method in [*STRANGE_METHODS, "PATCH"]),
    *((ITEM, method, "GET, HEAD, PATCH") for method in [*STRANGE_METHODS, "POST"]),
    (f"{STACKS}?limit=0", "DELETE", "GET, HEAD, POST"),
    (f"{STACKS}/not-a-uuid", "DELETE", "GET, HEAD, PATCH"),
])  # fmt: skip
def test_another_method_is_rejected(client, path, method, allowed, headers):
    response = client.request(method, path, headers=headers)
    assert (response.status_int, response.headers["Allow"]) == (405, allowed)
    assert response.json["code"] == "invalid_request"
    assert client.statements == []


@pytest.mark.parametrize("spell", [str.upper, str.title, str.swapcase])
def test_an_id_is_accepted_in_any_case(client, client_with, stack, spell):
    spelled, lines = spell(stack["id"]), []
    assert client_with(client.key, observers=[lines.append]).get(spell(ID)).status_int == 404
    assert [line["stack_id"] for line in lines] == [ID]
    assert client.get(spelled).json == stack
    assert client.update(spelled, {"name": "Value"}).json["id"] == stack["id"]


@each_case("text", {
    "other texts": ("not-a-uuid", "0", "%00", "%20", "%ff", "null", "0" * 32),
    "another form": (ID.replace("-", ""), f"%7B{ID}%7D", f"urn:uuid:{ID}", f"0x{ID[2:]}"),
    "more": (f"%20{ID}", *(ID + more for more in ("%20", "%0A", "%00", "%3F", "0", ";v=1", ".json"))),
    "another digit": (ID[:-1], ID.replace("f", "g"), ID.replace("4", "%D9%A4")),
    "another hyphen": [ID.replace(*other) for other in (("c-0b", "c0-b"), ("-", "_"), ("-", "%E2%80%90"))],
})  # fmt: skip
def test_an_id_is_a_hyphenated_uuid(client, text):
    for response in (client.get(text), client.update(text, {"name": "Value"})):
        assert response.status_int == 400
    assert client.request("GET", f"{STACKS}/{text}", headers={"Authorization": None}).status_int == 401


def test_an_id_of_any_version_is_an_id(client):
    versions = "c232ab00-9414-11ec-b3c8-9f6bdeced846", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
    for text in (str(UUID(int=0)), str(UUID(int=(1 << 128) - 1)), *versions):
        for response in (client.get(text), client.update(text, {"name": "Value"})):
            assert response.status_int == 404


@pytest.mark.parametrize(
    "query", ["limit=0", "cursor=", "limit=1&limit=2", "unknown=1", "%zz", "%ff=%00", "?"]
)
def test_only_a_list_has_a_query(client, stack, query):
    assert client.get(f"{stack['id']}?{query}").json == stack
    assert client.update(f"{stack['id']}?{query}", {"name": "Value"}).status_int == 200
    body, key = json.dumps(configuration()).encode(), {"Idempotency-Key": str(uuid4())}
    assert client.request("POST", f"{STACKS}?{query}", body, key).status_int == 201


IGNORED = {
    "broken JSON": (b"{", {}), "an update": (b'{"name":"Value"}', {}),
    "bytes": (b"\xff\x00", {"Content-Type": "text/plain"}), "a coding": (b"{}", {"Content-Encoding": "gzip"}),
    "over the limit": (b"x" * 262145, {}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "headers"), IGNORED.values(), ids=IGNORED)
def test_a_body_of_a_read_is_ignored(client, stack, body, headers):
    for method in ("GET", "HEAD"):
        assert client.request(method, STACKS, body, headers).status_int == 200
        assert client.request(method, f"{STACKS}/{stack['id']}", body, headers).status_int == 200
    assert client.get(stack["id"]).json == stack


@pytest.mark.parametrize("headers", CREDENTIALS.values(), ids=CREDENTIALS)
@pytest.mark.parametrize(
    "path",
    [STACKS, f"{STACKS}?limit=1", f"{STACKS}?limit=0", f"{STACKS}/own", ITEM, f"{STACKS}/x", "/nowhere"],
)
def test_head_returns_the_headers_of_get(client, stack, path, headers):
    path = path.replace("own", stack["id"])
    headers = {"X-Request-Id": "the same for both"} | headers
    got, head = (client.request(method, path, headers=headers) for method in ("GET", "HEAD"))
    assert head.status_int == got.status_int
    assert dict(head.headers) == dict(got.headers)
    assert head.headers["Content-Length"] == str(len(got.body))
    assert head.body == b""


def test_an_escaped_slash_is_data(client, stack):
    assert client.request("GET", f"/manager/st%61cks/{stack['id']}").json == stack
    for path in (f"/manager%2Fstacks%2f{stack['id']}", "/manager%2Fstacks", f"{STACKS}%2F", f"%2F{STACKS}"):
        assert client.request("GET", path).status_int == 404
    for text in (f"{stack['id']}%2F", "a%2Fb", "%2f", "a%252Fb"):
        assert client.get(text).status_int == client.update(text, {"name": "Value"}).status_int == 400
        assert client.request("GET", f"{STACKS}/{text}", headers={"Authorization": None}).status_int == 401


@pytest.mark.parametrize(("status", "environ"), [
    (400, {"RAW_URI": f"{STACKS}/a%2fb?limit=1"}),
    (400, {"REQUEST_URI": f"HTTPS://host{STACKS}/a%2fb"}),
    (400, {"REQUEST_URI": f"/base{STACKS}/a%2Fb", "SCRIPT_NAME": "/base"}),
    (400, {"REQUEST_URI": "/before%2Fit/was/rewritten", "PATH_INFO": f"{STACKS}/a"}),
    (404, {}),
])  # fmt: skip
def test_escaped_slashes_of_another_server(serving, client, status, environ):
    app = serving(DatabaseVerifier())
    response = call(app, client, "GET", "/", Input(b""), **{"PATH_INFO": f"{STACKS}/a/b"} | environ)
    assert response.status_int == status


GOOD = json.dumps(configuration(name="Stolen")).encode()
REQUESTS = {
    "read": ("GET", None, {}), "read headers": ("HEAD", None, {}), "update": ("PATCH", GOOD, {}),
    "update, not JSON": ("PATCH", b"{", {}), "update, any version": ("PATCH", GOOD, {"If-Match": "*"}),
    "update, too large": ("PATCH", padded({"name": "Stolen"}, 262145), {}), "remove": ("DELETE", None, {}),
}  # fmt: skip


@pytest.mark.parametrize("in_capitals", [False, True], ids=["id as given", "id in capitals"])
@pytest.mark.parametrize("title", REQUESTS)
def test_a_foreign_stack_is_a_missing_one(client, make_client, unchanged, title, in_capitals):
    method, body, headers = REQUESTS[title]
    theirs = make_client()
    theirs.create(configuration(name="Theirs"))
    [foreign] = theirs.page().json["items"]
    for _ in range(2):  # after these the service remembers the key and its manager
        client.page()
    responses = []
    for stack_id in (foreign["id"], str(uuid4())):
        path = f"{STACKS}/{stack_id.upper() if in_capitals else stack_id}"
        response = unchanged(client.request, method, path, body, headers | {"X-Request-Id": "same"})
        responses.append((response.status, response.headerlist, response.body, client.statements))
    assert responses[0] == responses[1]
    assert responses[0][0][:3] in ("404", "400", "405", "413")
    assert theirs.page().json["items"] == [foreign]
