"""`stackmgr keys`: the keys of the database verifier, from issue to revocation."""

import argparse
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

from stackmgr.access.api_keys import digest, generate, identity_of
from stackmgr.database import statements
from stackmgr.database.session import Session
from stackmgr.errors import CommandError
from stackmgr.operate import command, managers
from stackmgr.operate.command import discard, document, moment, print_documents, print_json, print_note
from stackmgr.operate.operator import Operator, operating, reading

_INSERT = statements.load("api_key_insert")
_LIST = statements.load("api_key_list")
_REVOKE = statements.load("api_key_revoke")
_ROTATE = statements.load("api_key_rotate")


class Quota(NamedTuple):
    """At most `limit` requests in any span of `seconds`."""

    limit: int
    seconds: int


class IssuedKey(NamedTuple):
    """A new key, whose text is not stored, and its ids."""

    key: str
    key_id: str
    expires_at: datetime | None
    predecessor_expires_at: datetime | None = None


LARGEST_QUOTA = Quota(10000, 86400)


def create(
    operator: Operator | Session,
    external_id: str,
    *,
    label: str = "",
    expires_at: datetime | None = None,
    quota: Quota | None = None,
) -> IssuedKey:
    """Save a new key for a manager and return it."""
    issued = IssuedKey(generate(), str(uuid4()), expires_at)
    parameters = {
        "key_digest": digest(issued.key),
        "key_id": issued.key_id,
        "external_id": external_id,
        "identity_id": identity_of(external_id),
        "label": label,
        "last_four": issued.key[-4:],
        "expires_at": expires_at,
        "quota_id": quota and str(uuid4()),
        "quota_limit": quota and quota.limit,
        "quota_seconds": quota and quota.seconds,
    }
    operator.rows(_INSERT, parameters)
    return issued


def find(operator: Operator, key_id: str) -> Any:
    """Return what is stored of one key but its digest, or None when there is no such key."""
    return next(iter(operator.rows(_LIST, {"external_id": None, "key_id": key_id})), None)


def revoke(operator: Operator | Session, key_id: str) -> datetime | None:
    """Revoke a key and return its time of revocation, or None when there is no such key."""
    rows = operator.rows(_REVOKE, {"key_id": key_id})
    return rows[0][1] if rows else None


def rotate(
    operator: Operator | Session, key_id: str, *, overlap_seconds: int = 0, expires_at: datetime | None = None
) -> IssuedKey | None:
    """Issue the successor of a key and let the key itself expire after the overlap.

    The successor has the key's label and quota, and its expiry unless *expires_at* says another.
    Returns None when there is no such key, or it is revoked, expired or rotated already.
    """
    key = generate()
    parameters = {
        "key_id": key_id,
        "overlap_seconds": overlap_seconds,
        "successor_digest": digest(key),
        "successor_id": str(uuid4()),
        "last_four": key[-4:],
        "expires_at": expires_at,
    }
    rows = operator.rows(_ROTATE, parameters)
    return IssuedKey(key, *rows[0]) if rows else None


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
        return create(operator, managers.external_id(operator, arguments.external_id), **terms)

    _deliver(arguments, make)


def _list(arguments: argparse.Namespace) -> None:
    with reading(command.database_url()) as reader:
        account = arguments.external_id and managers.external_id(reader, arguments.external_id)
        rows = reader.iterate(_LIST, {"external_id": account, "key_id": None})
        print_documents(arguments, map(document, rows))


def _revoke(arguments: argparse.Namespace) -> None:
    with operating(command.database_url()) as operator:
        revoked_at = revoke(operator, arguments.key_id)
    if revoked_at is None:
        raise CommandError(_why_not(arguments.key_id, None))
    if arguments.json:
        print_json({"key_id": arguments.key_id, "revoked_at": moment(revoked_at)})
    else:
        print(f"{arguments.key_id} was revoked at {moment(revoked_at)}")


def _rotate(arguments: argparse.Namespace) -> None:
    terms = {"overlap_seconds": arguments.overlap, "expires_at": arguments.expires_at}

    def make(operator: Operator) -> IssuedKey:
        issued = rotate(operator, arguments.key_id, **terms)
        if issued is None:
            raise CommandError(_why_not(arguments.key_id, find(operator, arguments.key_id)))
        return issued

    _deliver(arguments, make)


def _why_not(key_id: str, record: Any) -> str:
    if record is None:
        return f"no key has the id {key_id}: see 'stackmgr keys list'"
    if record.successor_id is not None:
        return f"key {key_id} was rotated before: rotate its successor {record.successor_id}"
    return f"key {key_id} is {record.state}: issue another with 'stackmgr keys issue'"


def add_to(commands: command.Commands) -> None:
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
