"""The contract as a client sees it: one function for each check, numbered like the specification.

A check raises Failed.  It uses two managers, `first` and `second`, and depends on no other check.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from stackmgr.commands.conformance.client import STACKS, Client, check_stack, expect, stack_of, status
from stackmgr.stacks.whitelist import Whitelist


@dataclass(frozen=True)
class Deployment:
    """What is tested: two managers' clients, one without a credential, and the token list."""

    first: Client
    second: Client
    anonymous: Client
    listed: Whitelist

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a valid create body, with other fields in the place of its own."""
        return {
            "name": "conformance",
            "allocation": self.allocation(6000, 4000),
            "schedule": {"preset": "weekly"},
        } | fields

    def allocation(self, *weights: Any) -> list[dict[str, Any]]:
        """Return an allocation of the first tokens of the list with these weights."""
        addresses = sorted(self.listed.tokens)
        return [
            {"token_address": address, "weight_bps": weight}
            for address, weight in zip(addresses, weights, strict=False)
        ]


# A manager with more stacks than these pages hold is not followed to its last page.
_MOST_PAGES = 100

Check = Callable[[Deployment], None]
CHECKS: list[tuple[str, str, Check]] = []


def check(section: str, title: str) -> Callable[[Check], Check]:
    """Register a check under a section of the specification."""

    def register(function: Check) -> Check:
        CHECKS.append((section, title, function))
        return function

    return register


def _rejected(deployment: Deployment, bodies: dict[str, Any]) -> None:
    """Create with each body, and update with it; expect 400 for both, and no new revision."""
    stack = deployment.first.created(deployment.body())
    for title, body in bodies.items():
        for verb, response in (
            ("create", deployment.first.create(body)),
            ("update", deployment.first.update(stack["id"], body)),
        ):
            expect(response.status == 400, f"{verb} with {title}: status {response.status}, not 400")
    expect(stack_of(deployment.first.get(stack["id"])) == stack, "a rejected update changed the stack")


@check("2.1", "a stack has its five fields, a sorted lowercase allocation and its ETag")
def _stack(deployment: Deployment) -> None:
    body = deployment.body(allocation=deployment.allocation(1, 9999)[::-1])
    stack = deployment.first.created(body)
    expect(stack["allocation"] == body["allocation"][::-1], "the allocation is not the one of the request")
    expect((stack["name"], stack["schedule"]) == (body["name"], body["schedule"]), "name or schedule differ")


@check("2.2", "addresses are accepted in lowercase or with their EIP-55 checksum, in no other spelling")
def _addresses(deployment: Deployment) -> None:
    token = next(t for t in deployment.listed.tokens.values() if t.checksummed != t.address)
    allocation = [{"token_address": token.checksummed, "weight_bps": 10000}]
    stack = deployment.first.created(deployment.body(allocation=allocation))
    expect(
        stack["allocation"][0]["token_address"] == token.address, "the address is not returned in lowercase"
    )
    wrong = {
        "a wrong checksum": token.checksummed.swapcase().replace("X", "x"),
        "the settlement asset": deployment.listed.settlement.address,
        "an unknown token": "0x" + "0" * 40,
        "39 digits": token.address[:-1],
        "no prefix": token.address[2:],
    }
    _rejected(
        deployment,
        {
            title: deployment.body(allocation=[{"token_address": address, "weight_bps": 10000}])
            for title, address in wrong.items()
        },
    )


@check("2.2", "weights are JSON integers from 0 to 10000")
def _weights(deployment: Deployment) -> None:
    deployment.first.created(deployment.body(allocation=deployment.allocation(0, 10000)))
    bodies = {
        f"weights {weights}": deployment.body(allocation=deployment.allocation(*weights))
        for weights in ((1.0, 9999), ("1", 9999), (True, 9999), (None, 10000), (-1, 10001), (10001, -1))
    }
    text = json.dumps(deployment.body(allocation=deployment.allocation(100, 9900)))
    _rejected(deployment, bodies | {"a weight 1e2": text.replace(": 100}", ": 1e2}").encode()})


@check("2.3", "the four presets are accepted, and nothing else in a schedule")
def _presets(deployment: Deployment) -> None:
    stack = deployment.first.created(deployment.body())
    for preset in ("hourly", "daily", "weekly", "monthly"):
        response = deployment.first.update(stack["id"], {"schedule": {"preset": preset}})
        status(response, 200)
        expect(stack_of(response)["schedule"] == {"preset": preset}, f"{preset} is not saved")
    schedules: list[Any] = [{}, {"preset": "yearly"}, {"preset": "Weekly"}, {"preset": None}, "weekly", None]
    schedules += [{"preset": "weekly", "timezone": "UTC"}, {"preset": "weekly", "cron": "0 0 * * 1"}]
    _rejected(deployment, {f"the schedule {each}": deployment.body(schedule=each) for each in schedules})


@check("2.4", "names are saved exactly; blank ones and U+0000 are rejected")
def _names(deployment: Deployment) -> None:
    for name in (" two  spaces ", "caf\u00e9", "cafe\u0301", "\U0001f4c8", "x" * 2000):
        expect(
            deployment.first.created(deployment.body(name=name))["name"] == name, f"{name[:20]!a} is changed"
        )
    names: list[Any] = ["", " \t\n", "\u2003", "a\0", None, 7]
    _rejected(deployment, {f"the name {name!a}": deployment.body(name=name) for name in names})


@check("2.5", "a create body has its three fields, no others, and a valid allocation")
def _create_body(deployment: Deployment) -> None:
    one = deployment.allocation(10000)[0]
    allocations = {
        "an empty allocation": [],
        "a total of 9999": deployment.allocation(6000, 3999),
        "a total of 10001": deployment.allocation(6000, 4001),
        "a repeated address": [one, one | {"weight_bps": 0}],
        "31 items": [one, *({"token_address": one["token_address"], "weight_bps": 0},) * 30],
        "an unknown field in an item": [one | {"symbol": "AAPL"}],
        "null as allocation": None,
    }
    bodies: dict[str, Any] = {title: deployment.body(allocation=each) for title, each in allocations.items()}
    bodies |= {f"the field {field}": deployment.body(**{field: "x"}) for field in ("id", "manager_id")}
    _rejected(deployment, bodies | {"an array": [], "null": b"null", "no JSON": b"{", "no body": b""})
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
