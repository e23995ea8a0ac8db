"""`stackmgr managers`: list and change the identity bindings of managers, and erase a manager."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice, starmap
from typing import Any

from stackmgr.access import managers
from stackmgr.access.managers import Binding, Manager
from stackmgr.access.verifiers import is_identity_id
from stackmgr.database import statements
from stackmgr.database.statements import Reads
from stackmgr.errors import CommandError, DatabaseError
from stackmgr.operate import erasure, paging
from stackmgr.operate.arguments import canonical_uuid
from stackmgr.operate.command import DATABASE, NEEDS_READER, Command, argument, database_url
from stackmgr.operate.connection import Reader, operating, operator_session, reading
from stackmgr.operate.output import moment, print_json, print_json_page, print_table
from stackmgr.operate.paging import Page
from stackmgr.operate.progress import Progress

_COUNT_STACKS = statements.load("stack_count")

_UNIQUE_VIOLATION = "23505"
_COUNTED_AT_A_TIME = 1000


def _identity_id(text: str) -> str:
    if not is_identity_id(text):
        raise argparse.ArgumentTypeError("must be 1 to 255 printable characters")
    return text


def find(reads: Reads, any_id: str) -> Manager | None:
    """Return the manager with the external id or manager id *any_id*.

    Raises CommandError if there are two.
    """
    found = managers.locate(reads, any_id)
    if len(found) > 1:
        raise CommandError(f"{any_id} is the manager id of one manager and the external id of another")
    return found[0] if found else None


def locate(reads: Reads, any_id: str) -> Manager:
    """Return the same.  Raises CommandError if there is none."""
    found = find(reads, any_id)
    if found is None:
        raise CommandError(f"no manager has the external id or manager id {any_id}")
    return found


def external_id(reads: Reads, any_id: str) -> str:
    """Return the external id of the manager that *any_id* names; without one it is an external id itself."""
    found = find(reads, any_id)
    return any_id if found is None else found.external_id


def _with_stacks(reader: Reader, found: Iterable[Manager]) -> Iterator[tuple[Manager, int]]:
    """Yield each manager with the number of its stacks."""
    rest = iter(found)
    while batch := list(islice(rest, _COUNTED_AT_A_TIME)):
        rows = reader.rows(_COUNT_STACKS, {"manager_ids": [each.manager_id for each in batch]})
        counts: dict[str, int] = dict(rows)
        yield from ((each, counts.get(each.manager_id, 0)) for each in batch)


def _print_table(found: Iterable[tuple[Manager, int | None]], *columns: str) -> None:
    print_table(
        ("MANAGER_ID", "EXTERNAL_ID", "IDENTITY_ID", "CREATED", *columns),
        (
            (each.manager_id, each.external_id, each.identity_id, moment(each.created_at))
            + (() if stacks is None else (str(stacks),))
            for each, stacks in found
        ),
    )


def _document(manager: Manager, stacks: int | None) -> dict[str, Any]:
    document = asdict(manager) | {"created_at": moment(manager.created_at)}
    return document if stacks is None else document | {"stacks": stacks}


def _list(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        after = arguments.after and find(reader, arguments.after)
        page = Page(
            lambda first, limit: managers.list_all(reader, first=first, limit=limit),
            lambda manager: manager.manager_id,
            after.manager_id if after else arguments.after,
            arguments.limit,
        )
        found = _with_stacks(reader, page) if arguments.stacks else ((each, None) for each in page)
        if arguments.json:
            print_json_page(starmap(_document, found), page.has_more)
        else:
            _print_table(found, *(["STACKS"] if arguments.stacks else []))
    page.print_rest()


def _show(arguments: argparse.Namespace) -> None:
    if arguments.external_id is None and arguments.identity_id is None:
        arguments.error("--external-id or --identity-id is required")
    with reading(database_url()) as reader:
        located = managers.locate(reader, arguments.external_id, identity_id=arguments.identity_id)
        found = list(_with_stacks(reader, located))
    if not found:
        raise CommandError("no manager is bound to this id")
    if arguments.json:
        print_json([*starmap(_document, found)])
    else:
        _print_table(found, "STACKS")


def _rebind(arguments: argparse.Namespace) -> None:
    if arguments.to_external_id is None and arguments.to_identity_id is None:
        arguments.error("--to-external-id or --to-identity-id is required")
    with operator_session(database_url()) as session:
        manager_id = locate(session, arguments.manager_id).manager_id
        saved = Binding(manager_id, arguments.confirm_external_id, arguments.confirm_identity_id)
        try:
            bound = managers.rebind(
                session,
                saved,
                external_id=arguments.to_external_id,
                identity_id=arguments.to_identity_id,
            )
        except DatabaseError as ex:
            if ex.sqlstate != _UNIQUE_VIOLATION:
                raise
            raise CommandError("another manager is bound to the new id: see 'stackmgr managers show'") from ex
    if bound is None:
        raise CommandError("the saved binding differs: see 'stackmgr managers show'; nothing changed")
    if arguments.json:
        print_json([asdict(bound)])
    else:
        print_table(
            ("MANAGER_ID", "EXTERNAL_ID", "IDENTITY_ID"),
            [(bound.manager_id, bound.external_id, bound.identity_id)],
        )


def _erase(arguments: argparse.Namespace) -> None:
    manager_id = arguments.manager_id
    try:
        with Progress("rows deleted") as progress, operating(database_url()) as operator:
            # The manager of an interrupted run is gone: it is named by its manager id.
            if found := find(operator, manager_id):
                manager_id = found.manager_id
            erased = erasure.erase(operator, manager_id, arguments.confirm, progress.report)
    except KeyboardInterrupt as ex:
        again = f"stackmgr managers erase {manager_id} --confirm {arguments.confirm}"
        raise CommandError(f"interrupted. To continue: {again}") from ex
    if erased is None:
        raise CommandError(
            "no such manager has that external id: see 'stackmgr managers show'; nothing was changed"
        )
    if arguments.json:
        print_json({"manager_id": manager_id, **asdict(erased)})
    else:
        counts = ", ".join(f"{count} {name}" for name, count in asdict(erased).items())
        print(f"{manager_id} is erased: {counts}")


_EITHER_ID = "external id or manager id"

# Which manager a command is about.
MANAGER = argument(
    "--external-id", type=canonical_uuid, metavar="UUID", help=f"only this manager, by its {_EITHER_ID}"
)
_MANAGER_ID = argument("manager_id", type=canonical_uuid, metavar="MANAGER_ID", help=f"its {_EITHER_ID}")

COMMAND = Command(
    name="managers",
    summary="the identities that managers are bound to",
    reads=DATABASE,
    commands=[
        Command(
            name="list",
            summary="list every manager with its binding",
            description=NEEDS_READER,
            run=_list,
            arguments=[
                argument("--stacks", action="store_true", help="count the stacks of each manager"),
                *paging.arguments("MANAGER_ID"),
            ],
        ),
        Command(
            name="show",
            summary="show a manager by an id",
            description=NEEDS_READER,
            run=_show,
            arguments=[
                argument("--external-id", type=canonical_uuid, metavar="UUID", help=f"its {_EITHER_ID}"),
                argument("--identity-id", type=_identity_id, help="the verifier's own id of the holder"),
            ],
        ),
        Command(
            name="rebind",
            summary="bind a manager, with all its stacks, to another identity",
            description="Bind a manager, with all its stacks, to another identity. State the saved binding "
            "in full: nothing changes if the saved one differs.",
            run=_rebind,
            arguments=[
                _MANAGER_ID,
                argument("--to-external-id", type=canonical_uuid, help="the new external id"),
                argument("--to-identity-id", type=_identity_id, help="the new identity id"),
                argument(
                    "--confirm-external-id",
                    type=canonical_uuid,
                    required=True,
                    help="the external id as saved",
                ),
                argument(
                    "--confirm-identity-id", type=_identity_id, required=True, help="the identity id as saved"
                ),
            ],
        ),
        Command(
            name="erase",
            summary="delete a manager with its stacks, revisions, receipts and keys",
            description="Delete a manager with its stacks, revisions, receipts and keys, for good. Its keys "
            "are revoked first. The run takes at least 30 s, in which requests in progress end. An "
            "interrupted run is continued by the next one. A manager that a remote verifier still knows "
            "starts anew with its next request.",
            run=_erase,
            arguments=[
                _MANAGER_ID,
                argument(
                    "--confirm",
                    type=canonical_uuid,
                    required=True,
                    metavar="EXTERNAL_ID",
                    help="the external id as saved",
                ),
            ],
        ),
    ],
)
