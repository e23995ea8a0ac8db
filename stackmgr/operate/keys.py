"""`stackmgr keys`: the keys of the database verifier, from issue to revocation."""

import argparse
import re
import sys
from typing import Any

from stackmgr.access import api_keys
from stackmgr.access.api_keys import IssuedKey, KeyRecord, Quota
from stackmgr.database.session import Session
from stackmgr.errors import CommandError
from stackmgr.operate import managers, paging
from stackmgr.operate.arguments import canonical_uuid, future, label, whole_number
from stackmgr.operate.command import DATABASE, NEEDS_READER, Command, argument, database_url
from stackmgr.operate.connection import operator_session, reading
from stackmgr.operate.output import (
    discard,
    moment,
    print_json,
    print_json_page,
    print_note,
    print_table,
)
from stackmgr.operate.paging import Page

LARGEST_QUOTA = Quota(10000, 86400)
LONGEST_OVERLAP = 366 * 86400

_COLUMNS = (
    "KEY_ID", "EXTERNAL_ID", "KEY", "STATE", "CREATED", "EXPIRES", "REVOKED", "LAST_USED_HOUR", "QUOTA",
    "LABEL",
)  # fmt: skip
_QUOTA = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


def _quota(text: str) -> Quota:
    match = _QUOTA.fullmatch(text)
    quota = Quota(int(match[1]), int(match[2])) if match else Quota(0, 0)
    if not (1 <= quota.limit <= LARGEST_QUOTA.limit and 1 <= quota.seconds <= LARGEST_QUOTA.seconds):
        raise argparse.ArgumentTypeError(
            "must be N/SECONDS, such as 100/10 for a hundred requests in any ten seconds; "
            f"at most {LARGEST_QUOTA.limit} requests and {LARGEST_QUOTA.seconds} seconds"
        )
    return quota


def _state(record: KeyRecord) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if record.is_expired() else "active"


def _last_used(record: KeyRecord) -> str | None:
    """Return the hour of the last use; in the hour of its creation, the time of the creation."""
    return moment(record.last_used_at and max(record.last_used_at, record.created_at))


def _document(record: KeyRecord) -> dict[str, Any]:
    return {
        "key_id": record.key_id,
        "external_id": record.external_id,
        "state": _state(record),
        "label": record.label,
        "last_four": record.last_four,
        "created_at": moment(record.created_at),
        "expires_at": moment(record.expires_at),
        "revoked_at": moment(record.revoked_at),
        "last_used_hour": _last_used(record),
        "quota": None if record.quota is None else str(record.quota),
        "successor_id": record.successor_id,
    }


def _row(record: KeyRecord) -> tuple[str | None, ...]:
    return (
        record.key_id,
        record.external_id,
        f"…{record.last_four}",
        _state(record),
        moment(record.created_at),
        moment(record.expires_at),
        moment(record.revoked_at),
        _last_used(record),
        None if record.quota is None else str(record.quota),
        record.label,
    )


def _deliver(session: Session, arguments: argparse.Namespace, issued: IssuedKey) -> None:
    """Print a new key, or revoke it if that fails: its text is not stored."""
    if not arguments.json:
        print_note(f"key id {issued.key_id}")
    try:
        _print_issued(arguments, issued)
        sys.stdout.flush()
    except OSError as ex:
        discard()
        api_keys.revoke(session, issued.key_id)
        raise CommandError(
            f"the new key could not be printed ({ex.strerror}); {issued.key_id} is revoked again"
        ) from ex


def _print_issued(arguments: argparse.Namespace, issued: IssuedKey) -> None:
    """Print the key alone, or one document with everything about it."""
    if not arguments.json:
        print(issued.key)
        return
    document = {"key": issued.key, "key_id": issued.key_id, "expires_at": moment(issued.expires_at)}
    if issued.predecessor_expires_at is not None:
        document["predecessor_expires_at"] = moment(issued.predecessor_expires_at)
    print_json(document)


def _issue(arguments: argparse.Namespace) -> None:
    with operator_session(database_url()) as session:
        issued = api_keys.create(
            session,
            managers.external_id(session, arguments.external_id),
            label=arguments.label,
            expires_at=arguments.expires_at,
            quota=arguments.quota,
        )
        _deliver(session, arguments, issued)


def _list(arguments: argparse.Namespace) -> None:
    with reading(database_url()) as reader:
        account = arguments.external_id and managers.external_id(reader, arguments.external_id)
        page = Page(
            lambda first, limit: api_keys.list_all(reader, account, first=first, limit=limit),
            lambda record: record.key_id,
            arguments.after,
            arguments.limit,
        )
        if arguments.json:
            print_json_page(map(_document, page), page.has_more)
        else:
            print_table(_COLUMNS, map(_row, page))
    page.print_rest()


def _revoke(arguments: argparse.Namespace) -> None:
    with operator_session(database_url()) as session:
        revoked_at = api_keys.revoke(session, arguments.key_id)
    if revoked_at is None:
        raise CommandError(f"there is no key {arguments.key_id}")
    if arguments.json:
        print_json({"key_id": arguments.key_id, "revoked_at": moment(revoked_at)})
    else:
        print(f"{arguments.key_id} was revoked at {moment(revoked_at)}")


def _rotate(arguments: argparse.Namespace) -> None:
    with operator_session(database_url()) as session:
        issued = api_keys.rotate(
            session, arguments.key_id, overlap_seconds=arguments.overlap, expires_at=arguments.expires_at
        )
        if issued is None:
            raise CommandError(_why_not(arguments.key_id, api_keys.find(session, arguments.key_id)))
        _deliver(session, arguments, issued)


def _why_not(key_id: str, record: KeyRecord | None) -> str:
    if record is None:
        return f"there is no key {key_id}"
    if record.successor_id is not None:
        return f"key {key_id} was rotated before: its successor is {record.successor_id}"
    return f"key {key_id} is {_state(record)}: issue a new one instead"


_KEY_ID = argument("key_id", type=canonical_uuid, metavar="KEY_ID")

COMMAND = Command(
    name="keys",
    summary="API keys of the database verifier",
    reads=DATABASE,
    commands=[
        Command(
            name="issue",
            summary="issue a key and print it on standard output, alone and only once",
            run=_issue,
            arguments=[
                argument(
                    "--external-id",
                    type=canonical_uuid,
                    required=True,
                    metavar="UUID",
                    help="the manager's account; the manager id of an existing one is taken as well",
                ),
                argument("--label", type=label, default="", help="a note, shown in lists"),
                argument("--expires-at", type=future, help="expiry: an ISO 8601 time with an offset"),
                argument(
                    "--quota",
                    type=_quota,
                    metavar="N/SECONDS",
                    help="at most N requests in any period of SECONDS",
                ),
            ],
        ),
        Command(
            name="list",
            summary="list every key by its id, never the key itself",
            description=NEEDS_READER,
            run=_list,
            arguments=[
                managers.MANAGER,
                *paging.arguments("KEY_ID"),
            ],
        ),
        Command(name="revoke", summary="revoke a key at once", run=_revoke, arguments=[_KEY_ID]),
        Command(
            name="rotate",
            summary="issue the successor of a key, print it as issue does, and let the key expire",
            run=_rotate,
            arguments=[
                _KEY_ID,
                argument(
                    "--overlap",
                    type=whole_number(0, LONGEST_OVERLAP),
                    default=0,
                    metavar="SECONDS",
                    help="how long the key stays valid beside its successor (default 0)",
                ),
                argument(
                    "--expires-at", type=future, help="expiry of the successor, by default that of the key"
                ),
            ],
        ),
    ],
)
