"""`stackmgr stacks`: a stack of any manager, what was changed in it, when, by which key and which request."""

import argparse
import json
import sys
from itertools import pairwise

from stackmgr.commands import find, revisions
from stackmgr.commands.arguments import canonical_uuid, instant, row_limit
from stackmgr.commands.common import FOUND, NEEDS_READER, Commands, database_url, exit_statuses
from stackmgr.commands.output import moment, percent, print_json, print_note, print_table, printable
from stackmgr.commands.revisions import Located, Revision
from stackmgr.database.single_connection import reading
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist
from stackmgr.stacks.whitelist import Whitelist


def _print_revision(stack: Located, revision: Revision, listed: Whitelist) -> None:
    """Print the configuration of a revision, and who made it."""
    fields = [
        ("stack", stack.stack_id),
        ("manager", stack.external_id),
        ("name", json.dumps(revision.name)),
        ("preset", revision.preset),
        ("revision", f"{revision.number} of {stack.revision_number}"),
        ("revision_id", revision.revision_id),
        ("changed", moment(revision.created_at)),
        ("key", revision.key),
        ("key_id", printable(revision.key_id or "-")),
        ("request", printable(revision.request_id)),
        ("created", moment(stack.created_at)),
    ]
    print_table(("FIELD", "VALUE"), [*fields])
    print()
    weights = sorted((listed.symbol(address), address, bps) for address, bps in revision.weights.items())
    rows = [(printable(symbol), percent(bps), address) for symbol, address, bps in weights]
    print_table(("TOKEN", "WEIGHT", "ADDRESS"), [*rows])


def _print(arguments: argparse.Namespace, stack: Located, revision: Revision) -> None:
    if arguments.json:
        head = {"stack_id": stack.stack_id, "external_id": stack.external_id}
        print_json(head | {"created_at": moment(stack.created_at)} | revisions.document(revision))
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
        print_json(
            [
                revisions.document(after) | {"changed": revisions.summary(before, after, listed)}
                for after, before in shown
                if after is not None
            ]
        )
        return
    rows = [
        (
            str(after.number),
            f"{after.created_at:%Y-%m-%d %H:%M:%S}",
            after.key,
            printable(after.request_id),
            revisions.summary(before, after, listed),
        )
        for after, before in shown
        if after is not None
    ]
    print_table(("#", "WHEN (UTC)", "KEY", "REQUEST", "CHANGED"), [*rows])
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


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1):
        raise argparse.ArgumentTypeError("must be the number of a revision, 1 or greater")
    return int(text)


def _add(
    commands: Commands, name: str, summary: str, description: str, found: str | None = None
) -> argparse.ArgumentParser:
    """Add a command on one stack; *found* says what exit status 3 means, if it has one."""
    command = commands.add_parser(
        name, help=summary, description=f"{description} {NEEDS_READER}", epilog=exit_statuses(found)
    )
    command.add_argument("stack_id", type=canonical_uuid, metavar="STACK_ID")
    return command


def add_to(commands: Commands) -> None:
    """Add `stacks` and its commands."""
    stacks = commands.add_parser(
        "stacks",
        help="stacks of all managers, and every revision of them",
        epilog=exit_statuses("something was found"),
    )
    stack_commands = stacks.add_subparsers(required=True, metavar="COMMAND")

    command = _add(stack_commands, "show", "show a stack as it is now", "Show a stack as it is now.")
    command.set_defaults(run=_show)

    command = _add(
        stack_commands,
        "history",
        "show who changed what in a stack, and when",
        "Show who changed what in a stack, when and with which key, latest first.",
    )
    command.add_argument("--limit", type=row_limit, default=20, metavar="N", help="revisions (default 20)")
    command.set_defaults(run=_history)

    command = _add(
        stack_commands, "at", "show a stack as it was at a time", "Show a stack as it was at a time."
    )
    command.add_argument("time", type=instant, metavar="TIME", help="ISO 8601 time with offset")
    command.set_defaults(run=_at)

    command = _add(
        stack_commands,
        "diff",
        "compare two revisions of a stack",
        "Compare two revisions of a stack, by default the current one and the one before it.",
        found="the revisions differ",
    )
    command.add_argument("older", type=_number, nargs="?", metavar="OLDER", help="number of a revision")
    command.add_argument("newer", type=_number, nargs="?", metavar="NEWER", help="number of a later revision")
    command.set_defaults(run=_diff)

    find.add_to(stack_commands)
    for command in stack_commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON document")
