"""The checks of lists, reads, headers, credentials, errors and limits; see `checks`."""

from typing import Any
from uuid import uuid4

from stackmgr.commands.conformance.checks import Deployment, check
from stackmgr.commands.conformance.client import STACKS, expect, stack_of, status
from stackmgr.limits import BODY_LIMIT_BYTES


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
    deployment.anonymous.request("GET", STACKS, headers={"X-Request-Id": "without a credential"})


@check("5.1", "a missing or an unknown credential is 401")
def _credentials(deployment: Deployment) -> None:
    for value in (None, "Bearer", "Bearer unknown", "Basic YTpi", "Bearer a b"):
        for method, path in (("GET", STACKS), ("POST", STACKS), ("PATCH", f"{STACKS}/{uuid4()}")):
            body = None if method == "GET" else deployment.body()
            response = deployment.anonymous.request(method, path, body, {"Authorization": value})
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
    bodies: dict[str, Any] = {
        "a repeated member": b'{"name":"a","name":"b"}',
        "NaN": b'{"name":NaN}',
        "UTF-16": '{"name":"a"}'.encode("utf-16"),
        "invalid UTF-8": b'{"name":"\xff"}',
        "a lone surrogate": b'{"name":"\\ud800"}',
        "deep nesting": b"[" * 5000,
    }
    stack = deployment.first.created(deployment.body())
    for title, body in bodies.items():
        response = deployment.first.update(stack["id"], body)
        expect(response.status == 400, f"{title}: status {response.status}, not 400")
    typed = deployment.first.update(stack["id"], {"name": "a"}, **{"Content-Type": "text/plain"})
    expect(typed.status == 400, f"text/plain: status {typed.status}, not 400")


@check("8", "a body may have 262144 bytes, and not one more")
def _body_limit(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    body = b'{"name":"large"}'
    largest = deployment.first.update(stack["id"], body.ljust(BODY_LIMIT_BYTES))
    expect(largest.status == 200, f"262144 bytes: status {largest.status}, not 200")
    larger = deployment.first.update(stack["id"], body.ljust(BODY_LIMIT_BYTES + 1))
    expect(larger.status == 413, f"262145 bytes: status {larger.status}, not 413")


@check("8", "an allocation may have 30 items")
def _items(deployment: Deployment) -> None:
    allocation = deployment.allocation(10000, *[0] * 29)
    stack = deployment.first.created(deployment.body(allocation=allocation))
    expect(stack["allocation"] == allocation, "30 items are not saved as they are")
