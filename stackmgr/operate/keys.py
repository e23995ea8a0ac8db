"""`stackmgr keys`: the keys of the database verifier, from issue to revocation."""

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from stackmgr.errors import CommandError
from stackmgr.operate import command, issued_keys, managers
from stackmgr.operate.connection import Operator, operating, reading
from stackmgr.operate.issued_keys import IssuedKey, Quota
from stackmgr.operate.output import discard, document, moment, print_documents, print_json, print_note

LARGEST_QUOTA = Quota(10000, 86400)


def _quota(text: str) -> Quota:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    quota = Quota(int(match[1]), int(match[2])) if match else Quota(0, 0)
    if not (1 <= quota.limit <= LARGEST_QUOTA.limit and 1 <= quota.seconds <= LARGEST_QUOTA.seconds):
        raise argparse.ArgumentTypeError(
            "must be N/SECONDS, such as 100/10 for a hundred requests in any ten seconds; "
            f"at most {LARGEST_QUOTA.limit} requests and {LARGEST_QUOTA.seconds} seconds"
        )
    return quota


def _deliver(arguments: argparse.Namespace, make: Callable[[Operator], IssuedKey]) -> None:
    """Print a new key, whose text is not stored, before the commit: or nothing has happened."""
    printed = ""
    try:
        with operating(command.database_url()) as operator, operator.transaction():
            members = document(make(operator))
            if members["predecessor_expires_at"] is None:
                del members["predecessor_expires_at"]
            try:
                print(json.dumps(members, indent=2) if arguments.json else members["key"], flush=True)
            except OSError as ex:
                discard()
                message = f"the new key could not be printed ({ex.strerror}): nothing was changed"
                raise CommandError(message) from ex
            printed = members["key_id"]
    except CommandError as ex:
        if printed:
            raise CommandError(f"{ex}; 'stackmgr keys list' shows whether key {printed} was saved") from ex
        raise
    if not arguments.json:
        print_note(f"key id {printed}")


def _issue(arguments: argparse.Namespace) -> None:
    terms = {name: getattr(arguments, name) for name in ("label", "expires_at", "quota")}

    def make(operator: Operator) -> IssuedKey:
        return issued_keys.create(operator, managers.external_id(operator, arguments.external_id), **terms)

    _deliver(arguments, make)


def _list(arguments: argparse.Namespace) -> None:
    with reading(command.database_url()) as reader:
        account = arguments.external_id and managers.external_id(reader, arguments.external_id)
        print_documents(arguments, map(document, issued_keys.list_all(reader, account)))


def _revoke(arguments: argparse.Namespace) -> None:
    with operating(command.database_url()) as operator:
        revoked_at = issued_keys.revoke(operator, arguments.key_id)
    if revoked_at is None:
        raise CommandError(_why_not(arguments.key_id, None))
    if arguments.json:
        print_json({"key_id": arguments.key_id, "revoked_at": moment(revoked_at)})
    else:
        print(f"{arguments.key_id} was revoked at {moment(revoked_at)}")


def _rotate(arguments: argparse.Namespace) -> None:
    terms = {"overlap_seconds": arguments.overlap, "expires_at": arguments.expires_at}

    def make(operator: Operator) -> IssuedKey:
        issued = issued_keys.rotate(operator, arguments.key_id, **terms)
        if issued is None:
            raise CommandError(_why_not(arguments.key_id, issued_keys.find(operator, arguments.key_id)))
        return issued

    _deliver(arguments, make)


def _why_not(key_id: str, record: Any) -> str:
    if record is None:
        return f"no key has the id {key_id}: see 'stackmgr keys list'"
    if record.successor_id is not None:
        return f"key {key_id} was rotated before: rotate its successor {record.successor_id}"
    return f"key {key_id} is {record.state}: issue another with 'stackmgr keys issue'"


def add_to(commands: command.Commands) -> None:
    """Add the commands."""
    uuid, future = command.canonical_uuid, command.future
    group = command.add_group(commands, "keys", "API keys of the database verifier")
    summary = "issue a key and print it on standard output, alone and only once"
    issue = command.add_command(group, "issue", summary, _issue)
    help_text = "the manager's account; the manager id of an existing one is taken as well"
    issue.add_argument("--external-id", type=uuid, required=True, metavar="UUID", help=help_text)
    issue.add_argument("--label", type=command.label, default="", help="a note, shown in lists")
    help_text = (
        "expiry: an ISO 8601 time with an offset, or a date, at whose beginning in UTC the key expires"
    )
    issue.add_argument("--expires-at", type=future, help=help_text)
    help_text = "at most N requests in any period of SECONDS"
    issue.add_argument("--quota", type=_quota, metavar="N/SECONDS", help=help_text)
    summary = "list every key by its id, never the key itself"
    lists = command.add_command(group, "list", summary, _list, more=command.NEEDS_READER)
    help_text = "only this manager, by its external id or manager id"
    lists.add_argument("--external-id", type=uuid, metavar="UUID", help=help_text)
    revoke = command.add_command(group, "revoke", "revoke a key at once", _revoke)
    revoke.add_argument("key_id", type=uuid, metavar="KEY_ID")
    summary = "issue the successor of a key, print it as issue does, and let the key expire"
    rotate = command.add_command(group, "rotate", summary, _rotate)
    rotate.add_argument("key_id", type=uuid, metavar="KEY_ID")
    help_text = "how long the key stays valid beside its successor (default 0)"
    period = command.whole_number(0, 366 * 86400)
    rotate.add_argument("--overlap", type=period, default=0, metavar="SECONDS", help=help_text)
    help_text = "expiry of the successor, by default that of the key"
    rotate.add_argument("--expires-at", type=future, help=help_text)
