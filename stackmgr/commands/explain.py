"""`stackmgr explain`: why the service rejects a request body, or the normalized form of one that it accepts.

Offline: whether the response to an accepted body is 200, 201, 404 or 409 depends on what is saved.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from stackmgr.commands.command import FOUND, TOKENS, Command, argument
from stackmgr.commands.output import percent, print_json, printable
from stackmgr.dev.explanations import CREATE, UPDATE, Explanation, explain, key_reasons
from stackmgr.errors import CommandError, InvalidIdempotencyKey
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks import whitelist
from stackmgr.stacks.configuration import Changes, Configuration
from stackmgr.stacks.whitelist import Whitelist

_OUTCOMES = {
    CREATE: "With a new Idempotency-Key 201; with a used one 200 if its identity is the same, otherwise 409.",
    UPDATE: "200 with a new revision, if the stack exists; fields left out keep their saved values.",
}


def _read(name: str) -> bytes:
    """Return the body; of a body over the limit its first bytes, one more than the limit."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(BODY_LIMIT_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(BODY_LIMIT_BYTES + 1)
    except OSError as ex:
        raise CommandError(f"{name} cannot be read: {ex.strerror}") from ex


def _normalized(accepted: Configuration | Changes) -> dict[str, Any]:
    """Return what is saved, as a body."""
    fields: dict[str, Any] = {}
    if accepted.name is not None:
        fields["name"] = accepted.name
    if accepted.allocation is not None:
        fields["allocation"] = json.loads(accepted.allocation)
    if accepted.preset is not None:
        fields["schedule"] = {"preset": accepted.preset}
    return fields


def _document(name: str, found: Explanation) -> dict[str, Any]:
    document: dict[str, Any] = {"file": name, "accepted": found.error is None}
    if found.error is not None:
        document |= {"status": found.error.status, "code": found.error.code}
    document["reasons"] = [
        {"path": reason.place, "rule": reason.rule, "message": reason.message} for reason in found.reasons
    ]
    if found.accepted is not None:
        document["normalized"] = _normalized(found.accepted)
    if isinstance(found.accepted, Configuration):
        document["identity"] = found.accepted.digest().hex()
    return document


def _print_columns(rows: list[tuple[str, str]]) -> None:
    width = max(len(head) for head, _ in rows)
    for head, text in rows:
        print(f"  {head:{width}}  {printable(text)}")


def _print_text(name: str, found: Explanation, schema: str, listed: Whitelist) -> None:
    if found.error is not None:
        print(f"{name}: {found.error.status} {found.error.code}")
        _print_columns([(reason.place, reason.message) for reason in found.reasons])
        return
    print(f"{name}: accepted")
    fields = _normalized(found.accepted) if found.accepted is not None else {}
    rows = [("name", fields["name"])] if "name" in fields else []
    if "allocation" in fields:
        items = [(listed.symbol(item["token_address"]), item["weight_bps"]) for item in fields["allocation"]]
        rows.append(("allocation", ", ".join(f"{symbol} {percent(bps)}" for symbol, bps in items)))
    if "schedule" in fields:
        rows.append(("preset", fields["schedule"]["preset"]))
    if isinstance(found.accepted, Configuration):
        rows.append(("identity", found.accepted.digest().hex()))
    _print_columns(rows)
    print(_OUTCOMES[schema])


def _explain(arguments: argparse.Namespace) -> None:
    listed = whitelist.load_configured()
    schema = UPDATE if arguments.update else CREATE
    found = explain(_read(arguments.file), schema, listed)
    if arguments.idempotency_key is not None and (of_key := key_reasons(arguments.idempotency_key)):
        error = found.error or InvalidIdempotencyKey()
        found = Explanation(error, None, [*of_key, *found.reasons])
    if arguments.json:
        print_json(_document(arguments.file, found))
    else:
        _print_text(arguments.file, found, schema, listed)
    if found.error is not None:
        sys.exit(FOUND)


COMMAND = Command(
    name="explain",
    summary="explain why a request body is rejected, or show its normalized form",
    description="Validate a request body as the service does. Print every reason for a 400 or 413 with "
    "its place in the body; for a valid body the normalized input and its identity. Needs no "
    "database. Uses the token list that STACKMGR_TOKENS names.",
    reads=TOKENS,
    found="the service rejects it",
    run=_explain,
    arguments=[argument("file", metavar="FILE", help="a file with the body; - for standard input")],
    one_of=[
        argument("--update", action="store_true", help="a body of PATCH, not of POST"),
        argument("--idempotency-key", metavar="KEY", help="also check that this key fits the receipt index"),
    ],
)
