"""A stack and its revisions as the commands show them: what each changed, in words and with token symbols."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stackmgr.commands.output import moment, percent, printable, quoted
from stackmgr.database import statements
from stackmgr.database.single_connection import Reader
from stackmgr.errors import CommandError
from stackmgr.stacks.whitelist import Whitelist

_LOCATE = statements.load("stack_locate")
_LIST = statements.load("revision_list")

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
    def weights(self) -> dict[str, int]:
        """The weights in basis points, by address."""
        return {item["token_address"]: item["weight_bps"] for item in json.loads(self.allocation)}

    @property
    def key(self) -> str:
        """The key in a few words: the end of a local one with its label, or the id of a remote one."""
        if self.key_last_four is None:
            return printable(self.key_id or "-")
        return f"…{self.key_last_four} {printable(self.key_label or '')}".rstrip()


def locate(reader: Reader, stack_id: str) -> Located:
    """Return the stack.  Raises CommandError where there is none."""
    rows = reader.rows(_LOCATE, {"stack_id": stack_id})
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


def differences(before: Revision, after: Revision, listed: Whitelist) -> list[tuple[str, str, str]]:
    """Return (what, before, after) for each thing that differs, as text."""
    found = []
    if before.name != after.name:
        found.append(("name", quoted(before.name), quoted(after.name)))
    if before.preset != after.preset:
        found.append(("preset", before.preset, after.preset))
    old, new = before.weights, after.weights
    for address in sorted(old.keys() | new.keys(), key=listed.symbol):
        if old.get(address) != new.get(address):
            weights = [percent(held[address]) if address in held else "-" for held in (old, new)]
            found.append((printable(listed.symbol(address)), weights[0], weights[1]))
    return found


def summary(before: Revision | None, after: Revision, listed: Whitelist) -> str:
    """Return what a revision changed, on one line; *before* is None for the first one."""
    if before is None:
        weights = sorted((listed.symbol(address), bps) for address, bps in after.weights.items())
        tokens = ", ".join(f"{printable(symbol)} {percent(bps)}" for symbol, bps in weights)
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
