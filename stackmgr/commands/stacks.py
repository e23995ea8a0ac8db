"""`stackmgr stacks`: a stack of any manager, what was changed in it, when, by which key and which request."""

import argparse
import sys
from datetime import UTC
from itertools import pairwise

from stackmgr.commands import find, revisions
from stackmgr.commands.arguments import canonical_uuid, instant, row_limit, whole_number
from stackmgr.commands.command import (
    FOUND,
    NEEDS_READER,
    STACKS,
    Command,
    argument,
    database_url,
)
from stackmgr.commands.output import (
    moment,
    percent,
    print_json,
    print_json_page,
    print_note,
    print_table,
    printable,
    quoted,
)
from stackmgr.commands.revisions import Located, Revision, weights
from stackmgr.database.single_connection import reading
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist
from stackmgr.stacks.whitelist import Whitelist


def _print_revision(stack: Located, revision: Revision, listed: Whitelist) -> None:
    """Print the configuration of a revision, and who made it."""
    fields = [
        ("stack_id", stack.stack_id),
        ("external_id", stack.external_id),
        ("manager_id", stack.manager_id),
        ("name", quoted(revision.name)),
        ("preset", revision.preset),
        ("revision", f"{revision.number} of {stack.revision_number}"),
        ("revision_id", revision.revision_id),
        ("changed", moment(revision.created_at)),
        ("key", revision.key),
        ("key_id", printable(revision.key_id or "-")),
        ("request_id", printable(revision.request_id)),
        ("created", moment(stack.created_at)),
    ]
    print_table(("FIELD", "VALUE"), [*fields])
    print()
    items = sorted((listed.symbol(address), address, bps) for address, bps in weights(revision).items())
    rows = [(printable(symbol), percent(bps), address) for symbol, address, bps in items]
    print_table(("TOKEN", "WEIGHT", "ADDRESS"), [*rows])


def _print(arguments: argparse.Namespace, stack: Located, revision: Revision) -> None:
    if arguments.json:
        head = {
            "stack_id": stack.stack_id,
            "external_id": stack.external_id,
            "manager_id": stack.manager_id,
            "stack_created_at": moment(stack.created_at),
        }
        print_json(head | revisions.document(revision))
    else:
        _print_revision(stack, revision, whitelist.load_configured())


def _show(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        stack = revisions.locate(reader, arguments.stack_id)
        found = revisions.revisions(reader, stack)
    if not found or found[0].revision_id != stack.revision_id:
        raise CommandError("the stack and its revisions disagree: run 'stackmgr audit'")
    _print(arguments, stack, found[0])


def _at(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        stack = revisions.locate(reader, arguments.stack_id)
        found = revisions.revisions(reader, stack, not_after=arguments.time)
    if not found:
        raise CommandError(f"the stack was created later, at {moment(stack.created_at)}")
    _print(arguments, stack, found[0])


def _history(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        stack = revisions.locate(reader, arguments.stack_id)
        # One more, to know what the oldest one shown has changed.
        found = revisions.revisions(reader, stack, limit=arguments.limit + 1)
    shown = list(pairwise([*found, None]))[: arguments.limit]
    listed = whitelist.load_configured()
    if arguments.json:
        print_json_page(
            (
                revisions.document(after) | {"changed": revisions.summary(before, after, listed)}
                for after, before in shown
                if after is not None
            ),
            lambda: len(found) > arguments.limit,
        )
        return
    rows = [
        (
            str(after.number),
            f"{after.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            after.key,
            printable(after.request_id),
            revisions.summary(before, after, listed),
        )
        for after, before in shown
        if after is not None
    ]
    print_table(("#", "WHEN (UTC)", "KEY", "REQUEST_ID", "CHANGED"), [*rows])
    if len(found) > arguments.limit:
        print_note(f"Older revisions: {found[-1].number}; --limit {2 * arguments.limit} shows more.")


def _diff(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        stack = revisions.locate(reader, arguments.stack_id)
        newer = stack.revision_number if arguments.newer is None else arguments.newer
        older = newer - 1 if arguments.older is None else arguments.older
        pair = [revisions.revisions(reader, stack, newest=number) for number in (older, newer)]
    for number, found in zip((older, newer), pair, strict=True):
        if not found or found[0].number != number:
            raise CommandError(f"there is no revision {number}: the last one is {stack.revision_number}")
    changed = revisions.differences(pair[0][0], pair[1][0], whitelist.load_configured())
    if arguments.json:
        print_json([dict(zip(("what", "before", "after"), row, strict=True)) for row in changed])
    elif changed:
        print_table(("WHAT", f"REVISION {older}", f"REVISION {newer}"), [*changed])
    else:
        print_note(f"Revisions {older} and {newer} have the same configuration.")
    if changed:
        sys.exit(FOUND)


_STACK_ID = argument("stack_id", type=canonical_uuid, metavar="STACK_ID")
_number = whole_number(1, 999_999_999)

COMMAND = Command(
    name="stacks",
    summary="stacks of all managers, and every revision of them",
    reads=STACKS,
    found="something was found",
    commands=[
        Command(
            name="show",
            summary="show a stack as it is now",
            description=f"Show a stack as it is now. {NEEDS_READER}",
            run=_show,
            arguments=[_STACK_ID],
        ),
        Command(
            name="history",
            summary="show who changed what in a stack, and when",
            description="Show who changed what in a stack, when and with which key, latest first. "
            f"{NEEDS_READER}",
            run=_history,
            arguments=[
                _STACK_ID,
                argument("--limit", type=row_limit, default=20, metavar="N", help="revisions (default 20)"),
            ],
        ),
        Command(
            name="at",
            summary="show a stack as it was at a time",
            description=f"Show a stack as it was at a time. {NEEDS_READER}",
            run=_at,
            arguments=[
                _STACK_ID,
                argument("time", type=instant, metavar="TIME", help="ISO 8601 time with offset"),
            ],
        ),
        Command(
            name="diff",
            summary="compare two revisions of a stack",
            description="Compare two revisions of a stack, by default the current one and the one before it. "
            f"{NEEDS_READER}",
            found="the revisions differ",
            run=_diff,
            arguments=[
                _STACK_ID,
                argument("older", type=_number, nargs="?", metavar="OLDER", help="number of a revision"),
                argument(
                    "newer", type=_number, nargs="?", metavar="NEWER", help="number of a later revision"
                ),
            ],
        ),
        find.COMMAND,
    ],
)
