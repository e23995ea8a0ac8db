"""The contract as a client sees it: one function for each check, numbered like the specification."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import urllib3
from webtest.response import TestResponse

from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks.whitelist import Whitelist
from tests.support.client import STACKS, ContractClient
from tests.support.examples import FIELDS, configuration

_TIMEOUT_SECONDS = 30.0


class HttpClient(ContractClient):
    """One manager's view of the deployment at *base*."""

    def __init__(self, base: str, key: str) -> None:
        super().__init__(key)
        self._base = base.rstrip("/")
        self._http = urllib3.PoolManager(retries=False, timeout=_TIMEOUT_SECONDS)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> TestResponse:
        received = self._http.request(method, self._base + path, body=body, headers=headers, redirect=False)
        status, fields = f"{received.status} {received.reason}", list(received.headers.items())
        return TestResponse(status=status, headerlist=fields, body=received.data)

    def created(self, document: Any) -> Any:
        response = self.create(document)
        assert response.status_int == 201, f"a create: status {response.status_int}, not 201"
        return response.json


@dataclass(frozen=True)
class Deployment:
    first: HttpClient
    second: HttpClient
    listed: Whitelist

    def body(self, **fields: Any) -> dict[str, Any]:
        return configuration(name="conformance", allocation=self.allocation(6000, 4000)) | fields

    def allocation(self, *weights: int) -> list[dict[str, Any]]:
        pairs = zip(sorted(self.listed.tokens), weights, strict=False)
        return [{"token_address": address, "weight_bps": weight} for address, weight in pairs]


Check = Callable[[Deployment], None]
# In the order of their sections.
CHECKS: list[tuple[str, str, Check]] = []


def check(section: str, title: str) -> Callable[[Check], Check]:

    def register(function: Check) -> Check:
        CHECKS.append((section, title, function))
        return function

    return register


def _expect(response, *wanted: int, of: str = "the response") -> None:
    expected = " or ".join(map(str, wanted))
    assert response.status_int in wanted, f"{of}: status {response.status_int}, not {expected}"


@check("2.1", "a stack has its five fields, a sorted lowercase allocation and its ETag")
def _stack(to: Deployment) -> None:
    body = to.body(allocation=to.allocation(1, 9999)[::-1])
    stack = to.first.created(body)
    assert stack["allocation"] == body["allocation"][::-1], "the allocation is not the one of the request"
    others = [field for field in FIELDS if field != "allocation"]
    assert [stack[field] for field in others] == [body[field] for field in others], "another field differs"


@check("2.2", "an address with its EIP-55 checksum is accepted, and returned in lowercase")
def _addresses(to: Deployment) -> None:
    token = next(token for token in to.listed.tokens.values() if token.checksummed != token.address)
    allocation = [{"token_address": token.checksummed, "weight_bps": 10000}]
    saved = to.first.created(to.body(allocation=allocation))["allocation"]
    assert saved[0]["token_address"] == token.address, "the address is not returned in lowercase"


@check("2.4", "names are saved exactly")
def _names(to: Deployment) -> None:
    for name in (" two  spaces ", "caf\u00e9", "cafe\u0301", "\U0001f4c8", "x" * 2000):
        assert to.first.created(to.body(name=name))["name"] == name, f"{name[:20]!a} is changed"


@check("2.6", "an update changes the supplied fields only, and needs at least one")
def _update_body(to: Deployment) -> None:
    stack = to.first.created(to.body())
    changes = {"name": "renamed", "allocation": to.allocation(10000), "schedule": {"preset": "hourly"}}
    for change in ({name: value} for name, value in changes.items()):
        updated = to.first.update(stack["id"], change).json
        expected = stack | change | {"current_revision_id": updated["current_revision_id"]}
        assert updated == expected, f"an update of {next(iter(change))} changed something else"
        stack = updated
    _expect(to.first.update(stack["id"], {}), 400, of="an empty update")


@check("3", "each update appends a revision, one that repeats the current values too")
def _revisions(to: Deployment) -> None:
    stack = to.first.created(to.body())
    seen = {stack["current_revision_id"]}
    for _ in range(3):
        stack = to.first.update(stack["id"], {"name": stack["name"]}).json
        assert stack["current_revision_id"] not in seen, "an update did not change current_revision_id"
        seen.add(stack["current_revision_id"])
        current = to.first.get(stack["id"]).json
        assert current == stack, "get does not return the last update: is a response cached?"


@check("4.1", "a retry returns 200 with the same stack in its current state, however it is written")
def _retry(to: Deployment) -> None:
    key, body = str(uuid4()), to.body()
    created = to.first.create(body, key)
    _expect(created, 201, of="a create")
    stack = created.json
    spelled = [
        item | {"token_address": to.listed.tokens[item["token_address"]].checksummed}
        for item in body["allocation"]
    ]
    again = dict(reversed((body | {"allocation": spelled[::-1]}).items()))
    retry = to.first.create(json.dumps(again, indent=3).encode(), key)
    _expect(retry, 200, of="a retry")
    assert retry.json == stack, "the retry does not return the stack that was created"
    updated = to.first.update(stack["id"], {"name": "later"}).json
    assert to.first.create(body, key).json == updated, "the retry does not return the current state"
    assert to.first.get(stack["id"]).json == updated, "the retry changed the stack"


@check("4.1", "different input under a used key is 409 and changes nothing")
def _conflict(to: Deployment) -> None:
    key, body = str(uuid4()), to.body()
    stack = to.first.create(body, key).json
    for change in ({"name": "Conformance"}, {"schedule": {"preset": "daily"}}, {"name": "conformance "}):
        _expect(to.first.create(body | change, key), 409, of="other input under a used key")
    assert to.first.get(stack["id"]).json == stack, "a conflict changed the stack"


@check("4.1", "an Idempotency-Key is required, not blank, bounded, and scoped to the manager")
def _keys(to: Deployment) -> None:
    body = to.body()
    for title, rejected in (("missing", None), ("blank", " "), ("3000 characters long", "k" * 3000)):
        response = to.first.create(body, headers={"Idempotency-Key": rejected})
        _expect(response, 400, of=f"a create whose key is {title}")
    key = str(uuid4())
    mine, theirs = to.first.create(body, key), to.second.create(body, key)
    _expect(theirs, 201, of="a create under another manager's key")
    assert theirs.json["id"] != mine.json["id"], "two managers share an Idempotency-Key"


@check("4.2", "a list is in order of creation, newest first, and its pages have each stack once")
def _order(to: Deployment) -> None:
    created = [to.first.created(to.body(name=f"page {number}"))["id"] for number in range(4)]
    found: list[str] = []
    query = "limit=2"
    while len(found) < len(created):
        page = to.first.page(query).json
        assert len(page["items"]) <= 2, "a page has more items than its limit"
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query = f"limit=2&cursor={page['next_cursor']}"
    assert found[:4] == created[::-1], "the last four stacks are not the first of the list, newest first"


@check("4.2", "invalid, unknown and repeated query parameters are rejected")
def _query(to: Deployment) -> None:
    queries = ("limit=0", "limit=101", "limit=x", "limit=%2B5", "limit=1.0", "limit=", "limit=1&limit=1")
    for query in (*queries, "cursor=", "cursor=x", "cursor=a&cursor=b", "offset=1", "Limit=1"):
        _expect(to.first.page(query), 400, of=f"?{query}")
    for query in ("limit=1", "limit=100", "limit=007"):
        _expect(to.first.page(query), 200, of=f"?{query}")


@check("4.3", "get returns the stack; an invalid id is 400, a missing one 404")
def _get(to: Deployment) -> None:
    stack = to.first.created(to.body())
    assert to.first.get(stack["id"]).json == stack, "get differs from create"
    assert to.first.get(stack["id"].upper()).json == stack, "an id in uppercase is another id"
    _expect(to.first.get(str(uuid4())), 404, of="a missing stack")
    for text in ("1", stack["id"].replace("-", ""), f"%7B{stack['id']}%7D"):
        _expect(to.first.get(text), 400, of=f"the id {text}")


@check("4.4", "update needs no condition and ignores If-Match")
def _conditions(to: Deployment) -> None:
    stack = to.first.created(to.body())
    updated = to.first.update(stack["id"], {"name": "second"}, {"If-Match": '"another"'})
    _expect(updated, 200, of="an update")
    assert updated.headers["ETag"] != f'"{stack["current_revision_id"]}"', "the ETag did not change"
    _expect(to.first.update(str(uuid4()), {"name": "x"}), 404, of="an update of a missing stack")
    _expect(to.first.update(str(uuid4()), {}), 400, of="a bad body for a missing stack")


@check("4.5", "X-Request-Id is echoed, and generated where it is missing or empty")
def _request_id(to: Deployment) -> None:
    for value in ("a", "no UUID, with spaces", "f" * 200, "", None):
        for path, more in ((STACKS, {}), (f"{STACKS}/{uuid4()}", {}), (STACKS, {"Authorization": None})):
            response = to.first.request("GET", path, headers={"X-Request-Id": value} | more)
            echoed = response.headers["X-Request-Id"]
            assert echoed == value if value else UUID(echoed), f"X-Request-Id is {echoed}, not {value}"


@check("5.1", "a missing or an unknown credential is 401")
def _credentials(to: Deployment) -> None:
    for value in (None, "Bearer", "Bearer unknown", "Basic YTpi", "Bearer a b"):
        for method, path in (("GET", STACKS), ("POST", STACKS), ("PATCH", f"{STACKS}/{uuid4()}")):
            body = None if method == "GET" else to.body()
            response = to.first.request(method, path, body, {"Authorization": value})
            _expect(response, 401, of=f"{method} with Authorization {value}")


@check("5.3", "a manager reads and changes its own stacks only")
def _isolation(to: Deployment) -> None:
    stack = to.first.created(to.body())
    foreign, missing = to.second.get(stack["id"]), to.second.get(str(uuid4()))
    for response in (foreign, to.second.update(stack["id"], {"name": "stolen"})):
        _expect(response, 404, of="a foreign stack")
    assert foreign.json["message"] == missing.json["message"], "a foreign stack and a missing one differ"
    listed = [item["id"] for item in to.second.page("limit=100").json["items"]]
    assert stack["id"] not in listed, "a list shows another manager's stack"
    assert to.first.get(stack["id"]).json == stack, "another manager changed the stack"


@check("5.8", "no CORS access: OPTIONS is no success, and Origin changes nothing")
def _cors(to: Deployment) -> None:
    origin = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    preflight = to.first.request("OPTIONS", STACKS, headers=origin)
    assert preflight.status_int >= 400, f"OPTIONS: status {preflight.status_int}"
    _expect(to.first.request("GET", STACKS, headers=origin), 200, of="a list with an Origin")


@check("7", "unknown paths and methods are Error objects")
def _routes(to: Deployment) -> None:
    for path in ("/manager", f"{STACKS}/", f"{STACKS}/{uuid4()}/revisions", "/nowhere"):
        _expect(to.first.request("GET", path), 404, of=path)
    for method in ("DELETE", "PUT"):
        _expect(to.first.request(method, STACKS, headers={"Content-Length": "0"}), 405, of=method)


@check("7", "a malformed body and another media type are 400, and change nothing")
def _malformed(to: Deployment) -> None:
    stack = to.first.created(to.body())
    for body in (b"", b"{", b"null", b'{"name":"\xff"}', b'{"name":" "}', b'{"id":"x"}'):
        _expect(to.first.create(body), 400, of=f"create with {body!r}")
        _expect(to.first.update(stack["id"], body), 400, of=f"update with {body!r}")
    typed = to.first.update(stack["id"], {"name": "a"}, {"Content-Type": "text/plain"})
    _expect(typed, 400, of="text/plain")
    assert to.first.get(stack["id"]).json == stack, "a rejected update changed the stack"


@check("8", f"a body may have {BODY_LIMIT_BYTES} bytes, and not one more")
def _body_limit(to: Deployment) -> None:
    stack = to.first.created(to.body())
    for size, expected in ((BODY_LIMIT_BYTES, 200), (BODY_LIMIT_BYTES + 1, 413)):
        body = b'{"name":"large"}'.ljust(size)
        _expect(to.first.update(stack["id"], body), expected, of=f"{size} bytes")


@check("8", "an allocation may have 30 items")
def _items(to: Deployment) -> None:
    allocation = to.allocation(10000, *[0] * 29)
    stack = to.first.created(to.body(allocation=allocation))
    assert stack["allocation"] == allocation, "30 items are not saved as they are"
