"""`stackmgr managers`: which identity each manager is bound to, and the one way to change that."""

import argparse
from dataclasses import asdict

from stackmgr import managers
from stackmgr.commands.common import (
    CommandError,
    Commands,
    canonical_uuid,
    operator_session,
    print_json,
    print_table,
)
from stackmgr.errors import DatabaseError
from stackmgr.managers import Binding
from stackmgr.verifiers import is_identity_id

_UNIQUE_VIOLATION = "23505"


def _identity_id(text: str) -> str:
    if not is_identity_id(text):
        raise argparse.ArgumentTypeError("must be 1 to 255 printable characters")
    return text


def _print(arguments: argparse.Namespace, bindings: list[Binding]) -> None:
    if arguments.json:
        print_json([asdict(binding) for binding in bindings])
        return
    print_table(
        ("MANAGER_ID", "EXTERNAL_ID", "IDENTITY_ID"),
        [(binding.manager_id, binding.external_id, binding.identity_id) for binding in bindings],
    )


def _list(arguments: argparse.Namespace) -> None:
    with operator_session() as session:
        _print(arguments, managers.list_all(session))


def _show(arguments: argparse.Namespace) -> None:
    if arguments.external_id is None and arguments.identity_id is None:
        raise CommandError("--external-id or --identity-id is needed")
    with operator_session() as session:
        found = managers.find(session, external_id=arguments.external_id, identity_id=arguments.identity_id)
    if not found:
        raise CommandError("no manager is bound to that")
    _print(arguments, found)


def _rebind(arguments: argparse.Namespace) -> None:
    if arguments.to_external_id is None and arguments.to_identity_id is None:
        raise CommandError("--to-external-id or --to-identity-id is needed")
    saved = Binding(arguments.manager_id, arguments.confirm_external_id, arguments.confirm_identity_id)
    try:
        with operator_session() as session:
            bound = managers.rebind(
                session,
                saved,
                external_id=arguments.to_external_id,
                identity_id=arguments.to_identity_id,
            )
    except DatabaseError as ex:
        if ex.sqlstate == _UNIQUE_VIOLATION:
            raise CommandError("another manager is bound to that: see 'stackmgr managers show'") from ex
        raise
    if bound is None:
        raise CommandError("that is not the saved binding: see 'stackmgr managers show'; nothing was changed")
    _print(arguments, [bound])


def add_to(commands: Commands) -> None:
    """Add `managers` and its commands."""
    parser = commands.add_parser("managers", help="the identities that managers are bound to")
    manager_commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = manager_commands.add_parser("list", help="list every binding")
    command.set_defaults(run=_list)

    command = manager_commands.add_parser("show", help="show the bindings that have either id")
    command.add_argument("--external-id", type=canonical_uuid)
    command.add_argument("--identity-id", type=_identity_id)
    command.set_defaults(run=_show)

    command = manager_commands.add_parser(
        "rebind",
        help="give a manager, and all its stacks, to another identity",
        description="Give a manager, and all its stacks, to another identity. The saved binding is to be "
        "stated in full: nothing happens if it is another by now.",
    )
    command.add_argument("manager_id", type=canonical_uuid, metavar="MANAGER_ID")
    command.add_argument("--to-external-id", type=canonical_uuid, help="the new external id")
    command.add_argument("--to-identity-id", type=_identity_id, help="the new identity id")
    command.add_argument(
        "--confirm-external-id", type=canonical_uuid, required=True, help="the external id as saved"
    )
    command.add_argument(
        "--confirm-identity-id", type=_identity_id, required=True, help="the identity id as saved"
    )
    command.set_defaults(run=_rebind)

    for command in manager_commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON document")
