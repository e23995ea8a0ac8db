"""`stackmgr managers`: list managers, rebind their identities, hold and erase them."""

import argparse
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from psycopg import errors

from stackmgr.access.verifiers import printable_id
from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate import command, erasure
from stackmgr.operate.command import document, print_documents, print_json
from stackmgr.operate.operator import Operator, operating, reading

_LIST = statements.load("manager_list")
_LOCATE = statements.load("manager_locate")
_REBIND = statements.load("manager_rebind")


def _identity_id(text: str) -> str:
    if not printable_id(text):
        raise argparse.ArgumentTypeError("must be 1 to 255 printable characters")
    return text


def find(operator: Operator, any_id: str) -> Any:
    """Return the manager with this external id or manager id, or None.  Raises CommandError."""
    found = operator.rows(_LOCATE, {"any_id": any_id, "identity_id": None})
    if len(found) > 1:
        raise CommandError(
            f"{any_id} is the manager id of one manager and the external id of another: give another id"
        )
    return found[0] if found else None


def external_id(operator: Operator, any_id: str) -> str:
    """Return the external id of the manager that *any_id* names, or *any_id* itself."""
    found = find(operator, any_id)
    return found.external_id if found else any_id


def _list(arguments: argparse.Namespace) -> None:
    with reading(command.database_url()) as reader:
        print_documents(arguments, map(document, reader.iterate(_LIST, {})))


def _show(arguments: argparse.Namespace) -> None:
    if arguments.manager_id is None and arguments.identity_id is None:
        arguments.error("MANAGER_ID or --identity-id is required")
    with reading(command.database_url()) as reader:
        ids = {"any_id": arguments.manager_id, "identity_id": arguments.identity_id}
        found = reader.rows(_LOCATE, ids)
    if not found:
        raise CommandError("no manager is bound to this id: see 'stackmgr managers list'")
    print_documents(arguments, map(document, found))


def _rebind(arguments: argparse.Namespace) -> None:
    if arguments.to_external_id is None and arguments.to_identity_id is None:
        arguments.error("--to-external-id or --to-identity-id is required")
    with operating(command.database_url()) as operator:
        manager = find(operator, arguments.manager_id)
        if manager is None:
            raise CommandError(erasure.NO_MANAGER.format(arguments.manager_id))
        saved = {
            "manager_id": manager.manager_id,
            "old_external_id": arguments.confirm_external_id,
            "old_identity_id": arguments.confirm_identity_id,
            "new_external_id": arguments.to_external_id,
            "new_identity_id": arguments.to_identity_id,
        }
        try:
            rows = operator.rows(_REBIND, saved)
        except errors.UniqueViolation as ex:
            raise CommandError(
                "another manager is bound to the new id: see 'stackmgr managers show'; nothing was changed"
            ) from ex
    if not rows:
        raise CommandError(
            "the saved binding is another one: see 'stackmgr managers show'; nothing was changed"
        )
    print_documents(arguments, map(document, rows))


def _change_hold(arguments: argparse.Namespace, change: Callable[[Operator, str], Any]) -> None:
    with operating(command.database_url()) as operator:
        # A manager whose erasure has begun is named by its manager id.
        found = find(operator, arguments.manager_id)
        held = change(operator, found.manager_id if found else arguments.manager_id)
    print_documents(arguments, [document(held)])


def _hold(arguments: argparse.Namespace) -> None:
    if not arguments.reason.strip():
        arguments.error("--reason must not be blank")
    _change_hold(arguments, lambda operator, found: erasure.hold(operator, found, arguments.reason))


def _erase(arguments: argparse.Namespace) -> None:
    manager_id = arguments.manager_id
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with operating(command.database_url()) as operator:
            # The manager of an interrupted run is gone: it is named by its manager id.
            if found := find(operator, manager_id):
                manager_id = found.manager_id
            erased = erasure.erase(operator, manager_id, arguments.confirm, erasure.Progress())
    except erasure.HeldError:
        raise
    except (KeyboardInterrupt, CommandError) as ex:
        again = f"stackmgr managers erase {manager_id} --confirm {arguments.confirm}"
        raise CommandError(f"{str(ex) or 'interrupted'}: continue with {again}") from ex
    if erased is None:
        raise CommandError(
            "the manager has another external id, or none: see 'stackmgr managers show'; nothing was changed"
        )
    if arguments.json:
        print_json({"manager_id": manager_id, **document(erased)})
    else:
        counts = ", ".join(f"{count} {name}" for name, count in document(erased).items())
        print(f"{manager_id} is erased: {counts}")


def _add_manager(parser: argparse.ArgumentParser, **options: Any) -> None:
    options |= {"metavar": "MANAGER_ID", "help": "its external id or manager id"}
    parser.add_argument("manager_id", type=command.canonical_uuid, **options)


def add_to(commands: command.Commands) -> None:
    group = command.add_group(commands, "managers", "the identities that managers are bound to")
    summary = "list every manager with its binding and hold"
    command.add_command(group, "list", summary, _list, more=command.NEEDS_READER)
    show = command.add_command(
        group, "show", "show a manager by any of its ids", _show, more=command.NEEDS_READER
    )
    _add_manager(show, nargs="?")
    show.add_argument("--identity-id", type=_identity_id, help="the verifier's own id of the holder")
    summary = "bind a manager, with all its stacks, to another identity"
    more = "State the saved binding in full: nothing changes if the saved one differs."
    rebind = command.add_command(group, "rebind", summary, _rebind, more=more)
    _add_manager(rebind)
    for half, parse in (("external", command.canonical_uuid), ("identity", _identity_id)):
        rebind.add_argument(f"--to-{half}-id", type=parse, help=f"the new {half} id")
        confirm = f"--confirm-{half}-id"
        rebind.add_argument(confirm, type=parse, required=True, help=f"the {half} id as saved")
    summary = "let nothing delete a manager, its stacks, revisions or receipts, until its release"
    more = "A hold also stops an erasure that runs: what that deleted before stays deleted. Requests go on."
    hold = command.add_command(group, "hold", summary, _hold, more=more)
    _add_manager(hold)
    reason = "why, kept for good"
    hold.add_argument("--reason", type=command.label, required=True, metavar="TEXT", help=reason)
    end_hold = partial(_change_hold, change=erasure.release)
    _add_manager(command.add_command(group, "release", "end the hold of a manager", end_hold))
    summary = "delete a manager with its stacks, revisions, receipts and keys, for good"
    more = (
        "Its keys are revoked first. The run takes at least 30 s, in which requests in progress end. An "
        "interrupted run is continued by the next one. A held manager is not erased. A manager that a remote "
        "verifier still accepts starts anew with its next request."
    )
    erase = command.add_command(group, "erase", summary, _erase, more=more)
    _add_manager(erase)
    options: dict[str, Any] = {"metavar": "EXTERNAL_ID", "help": "the external id as saved"}
    erase.add_argument("--confirm", type=command.canonical_uuid, required=True, **options)
