"""`stackmgr request`: what a request did, by its X-Request-Id.

The id is stored with each revision, without an index: one would cost every write.  Without a manager every
revision is read.
"""

import argparse
import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

from stackmgr.commands import managers, revisions
from stackmgr.commands.arguments import row_limit, unicode_text
from stackmgr.commands.command import NEEDS_READER, STACKS, Command, argument, database_url
from stackmgr.commands.output import print_json_page, print_note, print_table, printable, quoted
from stackmgr.database import statements
from stackmgr.database.connection import Row
from stackmgr.database.single_connection import Reader, reading
from stackmgr.dev.explanations import header_value
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist

_SEARCH = statements.load("revision_search")

_STORED_CHARACTERS = 255
# Around the beginning of a transaction, whose request is logged at its end.
_LOG_WINDOW = timedelta(minutes=1)


def find_revisions(reader: Reader, request_id: str, manager_id: str | None, limit: int) -> list[Row]:
    """Return the revisions that a request made, newest first."""
    # As JSON shows the id, and as a client sends it; they differ outside of ASCII.
    ids = [text[:_STORED_CHARACTERS] for text in (request_id, header_value(request_id))]
    parameters = {"revision_id": None, "request_ids": ids, "manager_id": manager_id, "row_limit": limit}
    return reader.rows(_SEARCH, parameters)


def _log_text(request_id: str) -> str:
    """Return the text by which to find the line of a request in the service's log."""
    return f'"request_id": {json.dumps(request_id)}'


def _log_command(request_id: str, at: datetime | None = None) -> str:
    window = ""
    if at is not None:
        since, until = (at.astimezone(UTC) + each for each in (-_LOG_WINDOW, _LOG_WINDOW))
        window = f" --since '{since:%Y-%m-%d %H:%M:%S} UTC' --until '{until:%Y-%m-%d %H:%M:%S} UTC'"
    return f"journalctl -u stackmgr{window} | grep -F {shlex.quote(_log_text(request_id))}"


def _document(reader: Reader, row: Row) -> dict[str, Any]:
    """Return a revision with its place in the history of its stack and the receipt of its creation."""
    _, manager_id, stack_id, number, *_ = row
    stack = revisions.locate(reader, stack_id, manager_id)
    made, *before = revisions.revisions(reader, stack, newest=number, limit=2)
    receipt = revisions.receipt(reader, manager_id, stack_id=stack_id) if number == 1 else None
    head = {"external_id": stack.external_id, "manager_id": manager_id, "stack_id": stack_id}
    return (
        head
        | revisions.document(made)
        | {
            "key": made.key,
            "last_number": stack.revision_number,
            "changed": revisions.summary(before[0] if before else None, made, whitelist.load_configured()),
            "idempotency_key": receipt and receipt.idempotency_key,
            "log_command": _log_command(made.request_id, made.created_at),
        }
    )


def _print(found: dict[str, Any]) -> None:
    key = found["idempotency_key"]
    print_table(
        ("FIELD", "VALUE"),
        [
            ("request_id", printable(found["request_id"])),
            ("external_id", found["external_id"]),
            ("manager_id", found["manager_id"]),
            ("stack_id", found["stack_id"]),
            ("revision", f"{found['number']} of {found['last_number']}"),
            ("revision_id", found["revision_id"]),
            ("at", found["created_at"]),
            ("changed", found["changed"]),
            ("idempotency_key", None if key is None else quoted(key)),
            ("key", found["key"]),
            ("key_id", found["key_id"]),
            ("log", printable(found["log_command"])),
        ],
    )


def _request(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        manager = managers.locate(reader, arguments.external_id) if arguments.external_id else None
        manager_id = manager.manager_id if manager else None
        rows = find_revisions(reader, arguments.request_id, manager_id, arguments.limit + 1)
        found = [_document(reader, row) for row in rows[: arguments.limit]]
    if not rows:
        raise CommandError(
            "no revision has this request id: the request read, repeated a create, or was rejected. Its log "
            f"line: {_log_command(header_value(arguments.request_id))}"
        )
    if arguments.json:
        print_json_page(found, lambda: len(rows) > arguments.limit)
        return
    for number, document in enumerate(found):
        if number:
            print()
        _print(document)
    if len(rows) > arguments.limit:
        print_note(f"There are more: --limit {10 * arguments.limit} shows them.")


COMMAND = Command(
    name="request",
    summary="show what a request did, by its X-Request-Id",
    description="Show the revisions that a request made, newest first: the place of each in the history of "
    "its stack, the key, the receipt of a creation, and where its log line is. Without --external-id every "
    f"revision is read. {NEEDS_READER}",
    reads=STACKS,
    run=_request,
    arguments=[
        argument("request_id", type=unicode_text, metavar="ID", help="the X-Request-Id of a response"),
        managers.MANAGER,
        argument("--limit", type=row_limit, default=10, metavar="N", help="revisions (default 10)"),
    ],
)
