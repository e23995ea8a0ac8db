"""The contract as a client sees it: one function for each check, numbered like the specification.

A check raises Failed.  It uses two managers, `first` and `second`, and depends on no other check.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from stackmgr.limits import BODY_LIMIT_BYTES
from tests.conformance.client import (
    STACKS,
    Deployment,
    check_stack,
    expect,
    stack_of,
    status,
)
from tests.support.bad_bodies import (
    NOT_AN_OBJECT,
    NOT_JSON,
    bad_fields,
    body_with,
    cased_token,
)
from tests.support.examples import PRESETS

# A manager with more stacks than these pages hold is not followed to its last page.
_MOST_PAGES = 100

Check = Callable[[Deployment], None]
# In the order of their sections.
CHECKS: list[tuple[str, str, Check]] = []


def check(section: str, title: str) -> Callable[[Check], Check]:
    """Register a check under a section of the specification."""

    def register(function: Check) -> Check:
        CHECKS.append((section, title, function))
        return function

    return register


def _expect_rejected(deployment: Deployment, bodies: Mapping[str, bytes]) -> None:
    """Create and update with each body; expect 400 for both, and no new revision."""
    stack = deployment.first.created(deployment.body())
    for title, body in bodies.items():
        for verb, response in (
            ("create", deployment.first.create(body)),
            ("update", deployment.first.update(stack["id"], body)),
        ):
            expect(response.status == 400, f"{verb} with {title}: status {response.status}, not 400")
    expect(stack_of(deployment.first.get(stack["id"])) == stack, "a rejected update changed the stack")


def _bodies(deployment: Deployment, *kinds: str) -> dict[str, bytes]:
    """Return a body for each bad field of these kinds."""
    fields = bad_fields(deployment.listed, *kinds).items()
    return {title: body_with(deployment.body(), field, text) for title, (field, text) in fields}


@check("2.1", "a stack has its five fields, a sorted lowercase allocation and its ETag")
def _stack(deployment: Deployment) -> None:
    body = deployment.body(allocation=deployment.allocation(1, 9999)[::-1])
    stack = deployment.first.created(body)
    expect(stack["allocation"] == body["allocation"][::-1], "the allocation is not the one of the request")
    expect((stack["name"], stack["schedule"]) == (body["name"], body["schedule"]), "name or schedule differ")


@check("2.2", "addresses are accepted in lowercase or with their EIP-55 checksum, in no other spelling")
def _addresses(deployment: Deployment) -> None:
    token = cased_token(deployment.listed)
    allocation = [{"token_address": token.checksummed, "weight_bps": 10000}]
    stack = deployment.first.created(deployment.body(allocation=allocation))
    saved = stack["allocation"][0]["token_address"]
    expect(saved == token.address, "the address is not returned in lowercase")
    _expect_rejected(deployment, _bodies(deployment, "address"))


@check("2.2", "weights are JSON integers from 0 to 10000")
def _weights(deployment: Deployment) -> None:
    deployment.first.created(deployment.body(allocation=deployment.allocation(0, 10000)))
    _expect_rejected(deployment, _bodies(deployment, "weight"))


@check("2.3", "each preset is accepted, and nothing else in a schedule")
def _presets(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    for preset in PRESETS:
        schedule = {"preset": preset}
        updated = stack_of(deployment.first.update(stack["id"], {"schedule": schedule}))
        expect(updated["schedule"] == schedule, f"{preset} is not saved")
    _expect_rejected(deployment, _bodies(deployment, "schedule"))


@check("2.4", "names are saved exactly; blank ones and U+0000 are rejected")
def _names(deployment: Deployment) -> None:
    for name in (" two  spaces ", "caf\u00e9", "cafe\u0301", "\U0001f4c8", "x" * 2000):
        saved = deployment.first.created(deployment.body(name=name))["name"]
        expect(saved == name, f"{name[:20]!a} is changed")
    _expect_rejected(deployment, _bodies(deployment, "name"))


@check("2.5", "a create body has its three fields, no others, and a valid allocation")
def _create_body(deployment: Deployment) -> None:
    _expect_rejected(deployment, _bodies(deployment, "allocation", "id", "manager_id") | NOT_AN_OBJECT)
    for field in ("name", "allocation", "schedule"):
        body = deployment.body()
        del body[field]
        expect(deployment.first.create(body).status == 400, f"a create without {field} is not 400")


@check("2.6", "an update changes the supplied fields only, and needs at least one")
def _update_body(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    changes: list[dict[str, Any]] = [
        {"name": "renamed"},
        {"allocation": deployment.allocation(10000)},
        {"schedule": {"preset": "hourly"}},
    ]
    for change in changes:
        updated = stack_of(deployment.first.update(stack["id"], change))
        expected = stack | change | {"current_revision_id": updated["current_revision_id"]}
        expect(updated == expected, f"an update of {next(iter(change))} changed something else")
        stack = updated
    expect(deployment.first.update(stack["id"], {}).status == 400, "an empty update is not 400")


@check("2.7", "a page has items and next_cursor; the last one has null")
def _page(deployment: Deployment) -> None:
    deployment.first.created(deployment.body())
    page = deployment.first.page("limit=100").json
    expect(set(page) == {"items", "next_cursor"}, f"a page with the fields {sorted(page)}")
    for stack in page["items"]:
        check_stack(stack)
    for _ in range(_MOST_PAGES):
        if page["next_cursor"] is None:
            return
        expect(isinstance(page["next_cursor"], str) and page["next_cursor"], "next_cursor is no text")
        page = deployment.first.page(f"limit=100&cursor={page['next_cursor']}").json


@check("3", "each update appends a revision, one that repeats the current values too")
def _revisions(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    seen = {stack["current_revision_id"]}
    for _ in range(3):
        stack = stack_of(deployment.first.update(stack["id"], {"name": stack["name"]}))
        expect(stack["current_revision_id"] not in seen, "an update did not change current_revision_id")
        seen.add(stack["current_revision_id"])
        current = stack_of(deployment.first.get(stack["id"]))
        expect(current == stack, "get does not return the last update: is a response cached?")


@check("4.1", "a retry returns 200 with the same stack in its current state, however it is written")
def _retry(deployment: Deployment) -> None:
    key, body = str(uuid4()), deployment.body()
    first = deployment.first.create(body, key)
    status(first, 201)
    stack = stack_of(first)
    tokens = deployment.listed.tokens
    other = [
        item | {"token_address": tokens[item["token_address"]].checksummed} for item in body["allocation"]
    ]
    again = {"schedule": body["schedule"], "allocation": other[::-1], "name": body["name"]}
    retry = deployment.first.create(json.dumps(again, indent=3).encode(), key)
    status(retry, 200)
    expect(stack_of(retry) == stack, "the retry does not return the stack that was created")
    updated = stack_of(deployment.first.update(stack["id"], {"name": "later"}))
    expect(
        stack_of(deployment.first.create(body, key)) == updated, "the retry does not return the current state"
    )
    expect(stack_of(deployment.first.get(stack["id"])) == updated, "the retry changed the stack")


@check("4.1", "different input under a used key is 409 and changes nothing")
def _conflict(deployment: Deployment) -> None:
    key, body = str(uuid4()), deployment.body()
    stack = stack_of(deployment.first.create(body, key))
    for change in ({"name": "Conformance"}, {"schedule": {"preset": "daily"}}, {"name": "conformance "}):
        response = deployment.first.create(body | change, key)
        expect(response.status == 409, f"status {response.status}, not 409, for other input under a used key")
    expect(stack_of(deployment.first.get(stack["id"])) == stack, "a conflict changed the stack")


@check("4.1", "an Idempotency-Key is required, not blank, bounded, and scoped to the manager")
def _keys(deployment: Deployment) -> None:
    body = deployment.body()
    expect(deployment.first.request("POST", STACKS, body).status == 400, "a create without a key is not 400")
    for title, key in (("blank", " "), ("3000 characters long", "k" * 3000)):
        expect(deployment.first.create(body, key).status == 400, f"a key that is {title} is not 400")
    key = str(uuid4())
    mine = stack_of(deployment.first.create(body, key))
    response = deployment.second.create(body, key)
    status(response, 201)
    expect(stack_of(response)["id"] != mine["id"], "two managers share an Idempotency-Key")


@check("4.2", "a list is in order of creation, newest first, and its pages have each stack once")
def _order(deployment: Deployment) -> None:
    created = [deployment.first.created(deployment.body(name=f"page {number}"))["id"] for number in range(4)]
    found: list[str] = []
    query = "limit=2"
    while len(found) < len(created):
        page = deployment.first.page(query).json
        expect(len(page["items"]) <= 2, "a page has more items than its limit")
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query = f"limit=2&cursor={page['next_cursor']}"
    expect(found[:4] == created[::-1], "the last four stacks are not the first of the list, newest first")


@check("4.2", "invalid, unknown and repeated query parameters are rejected")
def _query(deployment: Deployment) -> None:
    queries = ("limit=0", "limit=101", "limit=x", "limit=%2B5", "limit=1.0", "limit=", "limit=1&limit=1")
    for query in (*queries, "cursor=", "cursor=x", "cursor=a&cursor=b", "offset=1", "Limit=1"):
        response = deployment.first.page(query)
        expect(response.status == 400, f"?{query}: status {response.status}, not 400")
    for query in ("limit=1", "limit=100", "limit=007"):
        status(deployment.first.page(query), 200)


@check("4.3", "get returns the stack; an invalid id is 400, a missing one 404")
def _get(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    expect(stack_of(deployment.first.get(stack["id"])) == stack, "get differs from create")
    expect(stack_of(deployment.first.get(stack["id"].upper())) == stack, "an id in uppercase is another id")
    status(deployment.first.get(str(uuid4())), 404)
    for text in ("1", stack["id"].replace("-", ""), f"%7B{stack['id']}%7D"):
        expect(deployment.first.get(text).status == 400, f"the id {text} is not 400")


@check("4.4", "update needs no condition and ignores If-Match")
def _conditions(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    response = deployment.first.update(stack["id"], {"name": "second"}, **{"If-Match": '"another"'})
    status(response, 200)
    expect(response.headers.get("etag") != f'"{stack["current_revision_id"]}"', "the ETag did not change")
    status(deployment.first.update(str(uuid4()), {"name": "x"}), 404)
    expect(
        deployment.first.update(str(uuid4()), {}).status == 400, "a bad body for a missing stack is not 400"
    )


@check("4.5", "X-Request-Id is echoed, and generated where it is missing or empty")
def _request_id(deployment: Deployment) -> None:
    for value in ("a", "no UUID, with spaces", "f" * 200, "", None):
        for path in (STACKS, f"{STACKS}/{uuid4()}"):
            deployment.first.request("GET", path, headers={"X-Request-Id": value})
    anonymous = {"Authorization": None, "X-Request-Id": "without a credential"}
    deployment.first.request("GET", STACKS, headers=anonymous)


@check("5.1", "a missing or an unknown credential is 401")
def _credentials(deployment: Deployment) -> None:
    for value in (None, "Bearer", "Bearer unknown", "Basic YTpi", "Bearer a b"):
        for method, path in (("GET", STACKS), ("POST", STACKS), ("PATCH", f"{STACKS}/{uuid4()}")):
            body = None if method == "GET" else deployment.body()
            response = deployment.first.request(method, path, body, {"Authorization": value})
            expect(response.status == 401, f"{method} with Authorization {value}: {response.status}, not 401")


@check("5.3", "a manager reads and changes its own stacks only")
def _isolation(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    for response in (
        deployment.second.get(stack["id"]),
        deployment.second.update(stack["id"], {"name": "stolen"}),
    ):
        status(response, 404)
    foreign, missing = deployment.second.get(stack["id"]).json, deployment.second.get(str(uuid4())).json
    expect(foreign["message"] == missing["message"], "a foreign stack and a missing one differ")
    listed = deployment.second.page("limit=100").json["items"]
    expect(stack["id"] not in [item["id"] for item in listed], "a list shows another manager's stack")
    expect(stack_of(deployment.first.get(stack["id"])) == stack, "another manager changed the stack")


@check("5.8", "no CORS access: OPTIONS is no success, and Origin changes nothing")
def _cors(deployment: Deployment) -> None:
    origin = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    response = deployment.first.request("OPTIONS", STACKS, headers=origin)
    expect(response.status >= 400, f"OPTIONS: status {response.status}")
    status(deployment.first.request("GET", STACKS, headers=origin), 200)


@check("7", "unknown paths and methods are Error objects")
def _routes(deployment: Deployment) -> None:
    for path in ("/manager", f"{STACKS}/", f"{STACKS}/{uuid4()}/revisions", "/nowhere"):
        status(deployment.first.request("GET", path), 404)
    for method in ("DELETE", "PUT"):
        status(deployment.first.request(method, STACKS, headers={"Content-Length": "0"}), 405)


@check("7", "malformed JSON and other media types are 400")
def _malformed(deployment: Deployment) -> None:
    _expect_rejected(deployment, NOT_JSON)
    stack = deployment.first.created(deployment.body())
    typed = deployment.first.update(stack["id"], {"name": "a"}, **{"Content-Type": "text/plain"})
    expect(typed.status == 400, f"text/plain: status {typed.status}, not 400")


@check("8", f"a body may have {BODY_LIMIT_BYTES} bytes, and not one more")
def _body_limit(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    body = b'{"name":"large"}'
    largest = deployment.first.update(stack["id"], body.ljust(BODY_LIMIT_BYTES))
    expect(largest.status == 200, f"{BODY_LIMIT_BYTES} bytes: status {largest.status}, not 200")
    larger = deployment.first.update(stack["id"], body.ljust(BODY_LIMIT_BYTES + 1))
    expect(larger.status == 413, f"{BODY_LIMIT_BYTES + 1} bytes: status {larger.status}, not 413")


@check("8", "an allocation may have 30 items")
def _items(deployment: Deployment) -> None:
    allocation = deployment.allocation(10000, *[0] * 29)
    stack = deployment.first.created(deployment.body(allocation=allocation))
    expect(stack["allocation"] == allocation, "30 items are not saved as they are")
