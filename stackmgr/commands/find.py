"""`stackmgr stacks find`: stacks by manager, Idempotency-Key, token, name or revision.

Without a manager a search reads a complete table: no request needs it, and an index would cost every write.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stackmgr.access.managers import Manager
from stackmgr.commands import managers, revisions
from stackmgr.commands.arguments import canonical_uuid, row_limit, unicode_text
from stackmgr.commands.command import FOUND, NEEDS_READER, Command, argument, database_url
from stackmgr.commands.output import moment, percent, print_json_page, print_note, print_table, printable
from stackmgr.commands.tokens import weights
from stackmgr.database import statements
from stackmgr.database.single_connection import Reader, reading
from stackmgr.dev.explanations import CREATE, explain, header_value
from stackmgr.errors import CommandError
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks import cursor, whitelist
from stackmgr.stacks.configuration import Configuration

_OF_MANAGER = statements.load("stack_list")
_HOLDING = statements.load("stack_list_holding")
_REVISIONS = statements.load("revision_search")
_NAMED = statements.load("stack_search_name")

Found = list[dict[str, Any]]

# How a table shows a member of the JSON document, where not under its own name and unchanged.
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "number": ("#", str),
    "created_at": ("WHEN", str),
    "weight_bps": ("WEIGHT", percent),
    "name": ("NAME", printable),
    "request_id": ("REQUEST_ID", printable),
}

_OUTCOMES = {
    "same": "A create with this key and body returns 200.",
    "different": "A create with this key and body returns 409.",
    None: "A create with this key returns 200 for the same input, otherwise 409: --body FILE compares.",
}


def _of_manager(reader: Reader, manager: Manager, limit: int) -> Found:
    start = {"after_created_at": cursor.START.created_at, "after_stack_id": cursor.START.stack_id}
    rows = reader.rows(_OF_MANAGER, {"manager_id": manager.manager_id, "row_limit": limit} | start)
    return [
        {
            "external_id": manager.external_id,
            "stack_id": row[0],
            "created_at": moment(row[5]),
            "name": row[2],
        }
        for row in rows
    ]


def _by_token(reader: Reader, manager_id: str | None, text: str, limit: int) -> Found:
    listed = whitelist.load_configured()
    token = listed.find(text)
    # A token that has left the list is found by its address.
    address = token.address if token else text.lower()
    if token is None and not (address.startswith("0x") and len(address) == 42):
        raise CommandError(f"{text} is no symbol of {listed.path}, and no address")
    parameters = {"addresses": [address], "manager_id": manager_id, "row_limit": limit}
    return [
        {"external_id": row[0], "stack_id": row[1], "weight_bps": bps, "name": row[2]}
        for row in reader.rows(_HOLDING, parameters)
        for bps in weights(row[3], listed, [address]).values()
    ]


def _by_revision(reader: Reader, manager_id: str | None, text: str, limit: int) -> Found:
    parameters = {"revision_id": text, "request_ids": None, "manager_id": manager_id, "row_limit": limit}
    names = ("external_id", "manager_id", "stack_id", "number", "revision_id", "created_at", "request_id")
    found = [dict(zip(names, row, strict=True)) for row in reader.rows(_REVISIONS, parameters)]
    return [each | {"created_at": moment(each["created_at"])} for each in found]


def _by_name(reader: Reader, manager_id: str | None, text: str, limit: int) -> Found:
    rows = reader.rows(_NAMED, {"part": text, "manager_id": manager_id, "row_limit": limit})
    return [dict(zip(("external_id", "stack_id", "name"), row, strict=True)) for row in rows]


def _print(arguments: argparse.Namespace, found: Found) -> None:
    """Print at most `--limit` of those found, and whether there are more."""
    shown, has_more = found[: arguments.limit], len(found) > arguments.limit
    if arguments.json:
        print_json_page(shown, lambda: has_more)
        return
    if shown:
        columns = [_COLUMNS.get(name, (name.upper(), str)) for name in shown[0]]
        rows = (
            tuple(show(value) for (_, show), value in zip(columns, each.values(), strict=True))
            for each in shown
        )
        print_table(tuple(head for head, _ in columns), rows)
    else:
        print_note("No stack is found.")
    if has_more:
        print_note(f"There are more: --limit {10 * arguments.limit} shows them.")


def _configuration(file: Path) -> Configuration:
    """Return what a body of a create is normalized to.  Raises CommandError for one that is rejected."""
    try:
        with file.open("rb") as body:
            found = explain(body.read(BODY_LIMIT_BYTES + 1), CREATE, whitelist.load_configured())
    except OSError as ex:
        raise CommandError(f"{file} cannot be read: {ex.strerror}") from ex
    if not isinstance(found.accepted, Configuration):
        raise CommandError(f"the service rejects {file}: 'stackmgr explain {file}' says why")
    return found.accepted


def _by_key(reader: Reader, manager: Manager, arguments: argparse.Namespace) -> Found:
    """Return the stack that a manager's Idempotency-Key created; with `--body`, how that is other input."""
    body = None if arguments.body is None else _configuration(arguments.body)
    key = header_value(arguments.idempotency_key)
    receipt = revisions.receipt(reader, manager.manager_id, idempotency_key=key)
    if receipt is None:
        return []
    stack = revisions.locate(reader, receipt.stack_id, manager.manager_id)
    first = revisions.first(reader, stack)
    found: dict[str, Any] = {
        "external_id": manager.external_id,
        "stack_id": receipt.stack_id,
        "created_at": moment(receipt.created_at),
        "request_id": first.request_id,
        "name": first.name,
    }
    if body is not None:
        is_same = body.digest() == receipt.input_digest
        changed = [] if is_same else revisions.differences(first, body, whitelist.load_configured())
        found |= {"input": "same" if is_same else "different", "differences": changed}
    return [found]


def _find_key(arguments: argparse.Namespace) -> None:
    """Print which stack has an Idempotency-Key, and what a create with it returns."""
    with reading(database_url()) as reader:
        found = _by_key(reader, managers.locate(reader, arguments.external_id), arguments)
    if arguments.json:
        names = ("what", "before", "after")
        for each in found:
            if "differences" in each:
                each["differences"] = [dict(zip(names, row, strict=True)) for row in each["differences"]]
        _print(arguments, found)
    elif not found:
        print_note("The key is not used: a create with it returns 201.")
    else:
        changed = found[0].pop("differences", [])
        _print(arguments, found)
        if changed:
            print()
            print_table(("WHAT", "CREATED WITH", "BODY"), changed)
        print_note(_OUTCOMES[found[0].get("input")])
    if found and found[0].get("input") == "different":
        sys.exit(FOUND)


def _find(arguments: argparse.Namespace) -> None:
    if arguments.body is not None and arguments.idempotency_key is None:
        arguments.error("--body needs --idempotency-key")
    if arguments.idempotency_key is not None:
        if arguments.external_id is None:
            arguments.error("--idempotency-key needs --external-id: keys of two managers do not collide")
        _find_key(arguments)
        return
    given = {_by_token: arguments.token, _by_revision: arguments.revision, _by_name: arguments.name}
    searches = [(search, text) for search, text in given.items() if text is not None]
    if not searches and arguments.external_id is None:
        arguments.error("--external-id, --token, --revision or --name is required")
    limit = arguments.limit + 1
    with reading(database_url()) as reader:
        manager = managers.locate(reader, arguments.external_id) if arguments.external_id else None
        if searches:
            [(search, text)] = searches
            found = search(reader, manager.manager_id if manager else None, text, limit)
        else:
            found = _of_manager(reader, manager, limit) if manager else []
    _print(arguments, found)


COMMAND = Command(
    name="find",
    summary="find stacks by manager, Idempotency-Key, token, revision or name",
    description="Find stacks by manager, Idempotency-Key, token, revision or name. Without --external-id a "
    f"search reads a whole table. {NEEDS_READER}",
    found="the body is other input than that of the key",
    run=_find,
    arguments=[
        managers.MANAGER,
        argument(
            "--body", type=Path, metavar="FILE", help="compare this body with that of the Idempotency-Key"
        ),
        argument("--limit", type=row_limit, default=100, metavar="N", help="rows (default 100)"),
    ],
    one_of=[
        argument("--idempotency-key", metavar="KEY", help="the stack that the manager created with this key"),
        argument("--token", metavar="SYMBOL|ADDRESS", help="stacks whose current allocation names a token"),
        argument(
            "--revision", type=canonical_uuid, metavar="UUID", help="the revision with this id, as in an ETag"
        ),
        argument(
            "--name",
            type=unicode_text,
            metavar="TEXT",
            help="stacks whose current name contains a text, in any case",
        ),
    ],
)
