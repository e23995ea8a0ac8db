"""`stackmgr managers`: list and change the identity bindings of managers, and erase a manager."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict

from stackmgr.access import erasure, managers
from stackmgr.access.managers import Binding
from stackmgr.access.verifiers import is_identity_id
from stackmgr.commands import paging
from stackmgr.commands.arguments import canonical_uuid
from stackmgr.commands.command import DATABASE, NEEDS_READER, Command, argument, database_url
from stackmgr.commands.output import print_json, print_json_list, print_table
from stackmgr.commands.paging import Page
from stackmgr.commands.progress import Progress
from stackmgr.database.single_connection import operating, operator_session, reading
from stackmgr.errors import CommandError, DatabaseError

_UNIQUE_VIOLATION = "23505"


def _identity_id(text: str) -> str:
    if not is_identity_id(text):
        raise argparse.ArgumentTypeError("must be 1 to 255 printable characters")
    return text


def _print(arguments: argparse.Namespace, bindings: Iterable[Binding]) -> None:
    if arguments.json:
        print_json_list(asdict(binding) for binding in bindings)
        return
    print_table(
        ("MANAGER_ID", "EXTERNAL_ID", "IDENTITY_ID"),
        ((binding.manager_id, binding.external_id, binding.identity_id) for binding in bindings),
    )


def _list(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        page = Page(
            lambda first, limit: managers.list_all(reader, first=first, limit=limit),
            lambda binding: binding.manager_id,
            arguments.after,
            arguments.limit,
        )
        _print(arguments, page)
    page.print_rest()


def _show(arguments: argparse.Namespace) -> None:
    if arguments.external_id is None and arguments.identity_id is None:
        arguments.error("--external-id or --identity-id is required")
    with reading(database_url()) as reader:
        found = managers.find(reader, external_id=arguments.external_id, identity_id=arguments.identity_id)
    if not found:
        raise CommandError("no manager is bound to this id")
    _print(arguments, found)


def _rebind(arguments: argparse.Namespace) -> None:
    if arguments.to_external_id is None and arguments.to_identity_id is None:
        arguments.error("--to-external-id or --to-identity-id is required")
    saved = Binding(arguments.manager_id, arguments.confirm_external_id, arguments.confirm_identity_id)
    with operator_session(database_url()) as session:
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
    _print(arguments, [bound])


def _erase(arguments: argparse.Namespace) -> None:
    try:
        with Progress("rows deleted") as progress, operating(database_url()) as operator:
            erased = erasure.erase(operator, arguments.manager_id, arguments.confirm, progress.report)
    except KeyboardInterrupt as ex:
        raise CommandError("interrupted: to continue, run the command again") from ex
    if erased is None:
        raise CommandError(
            "no such manager has that external id: see 'stackmgr managers show'; nothing was changed"
        )
    if arguments.json:
        print_json({"manager_id": arguments.manager_id, **asdict(erased)})
    else:
        counts = ", ".join(f"{count} {name}" for name, count in asdict(erased).items())
        print(f"{arguments.manager_id} is erased: {counts}")


_MANAGER_ID = argument("manager_id", type=canonical_uuid, metavar="MANAGER_ID")

COMMAND = Command(
    name="managers",
    summary="the identities that managers are bound to",
    reads=DATABASE,
    commands=[
        Command(
            name="list",
            summary="list every binding",
            description=NEEDS_READER,
            run=_list,
            arguments=paging.arguments("MANAGER_ID"),
        ),
        Command(
            name="show",
            summary="show bindings by an id",
            description=NEEDS_READER,
            run=_show,
            arguments=[
                argument("--external-id", type=canonical_uuid, help="the account"),
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
