"""`stackmgr stacks find`: the stacks of all managers by token, name, revision or request.

Each search reads a complete table: no request needs it, and an index would cost every write.
"""

import argparse
from collections.abc import Sequence

from stackmgr.commands.arguments import canonical_uuid, row_limit
from stackmgr.commands.command import NEEDS_READER, Command, argument, database_url
from stackmgr.commands.output import moment, percent, print_json, print_note, print_table, printable
from stackmgr.commands.tokens import weights
from stackmgr.database import statements
from stackmgr.database.connection import Row
from stackmgr.database.single_connection import Reader, reading
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist

_HOLDING = statements.load("stack_list_holding")
_REVISIONS = statements.load("revision_search")
_NAMED = statements.load("stack_search_name")

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _by_token(reader: Reader, text: str, limit: int) -> Table:
    listed = whitelist.load_configured()
    token = listed.find(text)
    # A token that has left the list is found by its address.
    address = token.address if token else text.lower()
    if token is None and not (address.startswith("0x") and len(address) == 42):
        raise CommandError(f"{text} is no symbol of {listed.path}, and no address")
    rows = reader.rows(_HOLDING, {"addresses": [address], "row_limit": limit})
    held = [weights(row[3], listed, [address]).values() for row in rows]
    return ("MANAGER", "STACK", "WEIGHT", "NAME"), [
        (row[0], row[1], ", ".join(map(percent, bps)), printable(row[2]))
        for row, bps in zip(rows, held, strict=True)
    ]


def _revision_table(rows: Sequence[Row]) -> Table:
    return ("MANAGER", "STACK", "#", "WHEN", "REVISION", "REQUEST"), [
        (row[0], row[1], str(row[2]), moment(row[4]) or "", row[3], printable(row[5])) for row in rows
    ]


def _by_revision(reader: Reader, text: str, limit: int) -> Table:
    parameters = {"revision_id": text, "request_id": None, "row_limit": limit}
    return _revision_table(reader.rows(_REVISIONS, parameters))


def _by_request(reader: Reader, text: str, limit: int) -> Table:
    parameters = {"revision_id": None, "request_id": text, "row_limit": limit}
    return _revision_table(reader.rows(_REVISIONS, parameters))


def _by_name(reader: Reader, text: str, limit: int) -> Table:
    rows = reader.rows(_NAMED, {"part": text, "row_limit": limit})
    return ("MANAGER", "STACK", "NAME"), [(row[0], row[1], printable(row[2])) for row in rows]


def _find(arguments: argparse.Namespace) -> None:
    searches = {
        _by_token: arguments.token,
        _by_revision: arguments.revision,
        _by_request: arguments.request,
        _by_name: arguments.name,
    }
    [(search, text)] = [(search, text) for search, text in searches.items() if text is not None]
    with reading(database_url()) as reader:
        head, rows = search(reader, text, arguments.limit + 1)
    shown = rows[: arguments.limit]
    if arguments.json:
        keys = [{"#": "number", "WHEN": "created_at"}.get(column, column.lower()) for column in head]
        print_json([dict(zip(keys, row, strict=True)) for row in shown])
    else:
        print_table(head, [*shown])
    if len(rows) > arguments.limit:
        print_note(f"There are more: --limit {10 * arguments.limit} shows them.")


COMMAND = Command(
    name="find",
    summary="find stacks of all managers by token, revision, request or name",
    description="Find stacks of all managers by token, revision, request or name. Each search reads a "
    f"whole table. {NEEDS_READER}",
    run=_find,
    arguments=[argument("--limit", type=row_limit, default=100, metavar="N", help="rows (default 100)")],
    one_of=[
        argument("--token", metavar="SYMBOL|ADDRESS", help="stacks whose current allocation names a token"),
        argument(
            "--revision", type=canonical_uuid, metavar="UUID", help="the revision with this id, as in an ETag"
        ),
        argument("--request", metavar="ID", help="revisions that a request made, by its X-Request-Id"),
        argument("--name", metavar="TEXT", help="stacks whose current name contains a text, in any case"),
    ],
    needs_one=True,
)
