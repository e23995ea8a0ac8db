"""A stack and its revisions as the commands show them: what each changed, in words and with token symbols."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stackmgr.commands.command import sql_variant
from stackmgr.commands.output import moment, percent, printable, quoted
from stackmgr.database import statements
from stackmgr.database.single_connection import Reader
from stackmgr.errors import CommandError
from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.whitelist import Whitelist

_LOCATE = statements.load("stack_locate")
_LIST = statements.load("revision_list")
_RECEIPT = statements.load("receipt_locate")

NEWEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Located:
    """The current row of a stack; `allocation` is JSON text in normalized form."""

    stack_id: str
    external_id: str
    manager_id: str
    name: str
    allocation: str
    preset: str
    revision_number: int
    revision_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Revision:
    """One row of stack_revisions, with label and last four characters of its key where it is a local one."""

    number: int
    revision_id: str
    created_at: datetime
    name: str
    allocation: str
    preset: str
    identity_id: str
    key_id: str | None
    key_label: str | None
    key_last_four: str | None
    request_id: str

    @property
    def key(self) -> str:
        """The key in a few words: the end of a local one with its label, or the id of a remote one."""
        if self.key_last_four is None:
            return printable(self.key_id or "-")
        return f"…{self.key_last_four} {printable(self.key_label or '')}".rstrip()


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of an Idempotency-Key."""

    idempotency_key: str
    input_digest: bytes
    stack_id: str
    created_at: datetime


def locate(reader: Reader, stack_id: str, manager_id: str | None = None) -> Located:
    """Return the stack, at once if its manager is known.  Raises CommandError where there is none."""
    statement = statements.load_variant(sql_variant()).get(_LOCATE.name, _LOCATE)
    rows = reader.rows(statement, {"stack_id": stack_id, "manager_id": manager_id})
    if not rows:
        raise CommandError(f"there is no stack {stack_id}")
    return Located(stack_id, *rows[0])


def revisions(
    reader: Reader,
    stack: Located,
    *,
    newest: int = NEWEST,
    not_after: datetime | None = None,
    limit: int = 1,
) -> list[Revision]:
    """Return up to *limit* revisions, newest first, up to a number and a time."""
    parameters = {
        "manager_id": stack.manager_id,
        "stack_id": stack.stack_id,
        "newest": newest,
        "not_after": not_after or "infinity",
        "row_limit": limit,
    }
    return [Revision(*row) for row in reader.rows(_LIST, parameters)]


def first(reader: Reader, stack: Located) -> Revision:
    """Return revision 1.  Raises CommandError where it is missing."""
    found = revisions(reader, stack, newest=1)
    if not found:
        raise CommandError(f"{stack.stack_id} has no revision 1: run 'stackmgr audit'")
    return found[0]


def receipt(
    reader: Reader, manager_id: str, *, idempotency_key: str | None = None, stack_id: str | None = None
) -> Receipt | None:
    """Return the receipt of a manager's key, or of a stack."""
    parameters = {"manager_id": manager_id, "idempotency_key": idempotency_key, "stack_id": stack_id}
    rows = reader.rows(_RECEIPT, parameters)
    return Receipt(*rows[0]) if rows else None


def weights(saved: Revision | Configuration) -> dict[str, int]:
    """Return the weights in basis points, by address."""
    return {item["token_address"]: item["weight_bps"] for item in json.loads(saved.allocation)}


def differences(
    before: Revision | Configuration, after: Revision | Configuration, listed: Whitelist
) -> list[tuple[str, str, str]]:
    """Return (what, before, after) for each thing that differs, as text."""
    found = []
    if before.name != after.name:
        found.append(("name", quoted(before.name), quoted(after.name)))
    if before.preset != after.preset:
        found.append(("preset", before.preset, after.preset))
    old, new = weights(before), weights(after)
    for address in sorted(old.keys() | new.keys(), key=listed.symbol):
        if old.get(address) != new.get(address):
            sides = [percent(held[address]) if address in held else "-" for held in (old, new)]
            found.append((printable(listed.symbol(address)), sides[0], sides[1]))
    return found


def summary(before: Revision | None, after: Revision, listed: Whitelist) -> str:
    """Return what a revision changed, on one line; *before* is None for the first one."""
    if before is None:
        items = sorted((listed.symbol(address), bps) for address, bps in weights(after).items())
        tokens = ", ".join(f"{printable(symbol)} {percent(bps)}" for symbol, bps in items)
        return f"created {quoted(after.name)}, {after.preset}: {tokens}"
    changed = differences(before, after, listed)
    return ", ".join(f"{what} {old} → {new}" for what, old, new in changed) or "nothing"


def document(revision: Revision) -> dict[str, Any]:
    """Return a revision for `--json`."""
    return {
        "number": revision.number,
        "revision_id": revision.revision_id,
        "created_at": moment(revision.created_at),
        "identity_id": revision.identity_id,
        "key_id": revision.key_id,
        "key_label": revision.key_label,
        "key_last_four": revision.key_last_four,
        "request_id": revision.request_id,
        "name": revision.name,
        "allocation": json.loads(revision.allocation),
        "schedule": {"preset": revision.preset},
    }
