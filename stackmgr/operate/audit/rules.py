"""The rules that stored rows must keep, stated independently of the code that writes the rows.

The functions take rows as the database returns them and yield what is wrong.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from stackmgr.limits import PRESETS, TOKEN_COUNT, TOTAL_BPS
from stackmgr.stacks import configuration
from stackmgr.stacks.configuration import Configuration

_ITEM = r'\{"token_address":"(0x[0-9a-f]{40})","weight_bps":(0|[1-9][0-9]{0,4})\}'
_ITEMS = re.compile(_ITEM)
_ALLOCATION = re.compile(rf"\[{_ITEM}(?:,{_ITEM})*\]")

Fault = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """The configuration of a row of stacks or of stack_revisions."""

    revision_number: int
    revision_id: str
    name: str
    allocation: str
    preset: str


@lru_cache(maxsize=4096)
def allocation_fault(text: str) -> str | None:
    """Return what keeps *text* from being a normalized allocation, or None."""
    if not _ALLOCATION.fullmatch(text):
        return "allocation is not in normalized form"
    items = _ITEMS.findall(text)
    addresses = [address for address, _ in items]
    if len(items) > TOKEN_COUNT:
        return f"allocation has {len(items)} items"
    if addresses != sorted(set(addresses)):
        return "allocation is not ascending by address, or repeats one"
    total = sum(int(weight) for _, weight in items)
    return None if total == TOTAL_BPS else f"weights total {total}"


def row_faults(row: StoredRevision) -> Iterator[str]:
    """Yield which rules a row breaks."""
    if not row.name or list(configuration.name_violations(row.name)):
        yield "name is blank"
    if row.preset not in PRESETS:
        yield f"preset is {row.preset!a}"
    fault = allocation_fault(row.allocation)
    if fault is not None:
        yield fault


class RevisionAudit:
    """The revisions of one stack, taken one at a time in the order of their numbers."""

    def __init__(self, *, archived: bool) -> None:
        self._archived = archived
        self.first: StoredRevision | None = None
        self.last: StoredRevision | None = None

    def take(self, row: StoredRevision) -> Iterator[Fault]:
        """Yield what is wrong with the next revision."""
        expected = 1 if self.last is None else self.last.revision_number + 1
        # Archived revisions lie between the first, which the receipt needs, and those that were kept.
        is_archived = self._archived and self.last is self.first and self.last is not None
        if row.revision_number != expected and not (is_archived and row.revision_number > expected):
            yield "revision_gap", f"revision {expected} is missing: the next one is {row.revision_number}"
        for fault in row_faults(row):
            yield "revision_rule", f"revision {row.revision_number}: {fault}"
        if self.first is None:
            self.first = row
        self.last = row


def current_faults(current: StoredRevision, audit: RevisionAudit, listed: frozenset[str]) -> Iterator[Fault]:
    """Yield what is wrong with the row of `stacks`, given its revisions and the token list."""
    for fault in row_faults(current):
        yield "stack_rule", fault
    for address in sorted({address for address, _ in _ITEMS.findall(current.allocation)} - listed):
        yield "token_not_listed", f"holds {address}, which is not in the token list"
    if audit.last is None:
        yield "no_revision", "has no revision"
    elif audit.last != current:
        yield "current_row", f"differs from its last revision, {audit.last.revision_number}"


def receipt_faults(digests: Iterable[bytes], first: StoredRevision | None) -> Iterator[Fault]:
    """Yield what is wrong with a stack's receipts, given its first revision."""
    found = list(digests)
    if not found:
        yield "no_receipt", "has no creation receipt: a retry would create it again"
    if len(found) > 1:
        yield "receipts", f"has {len(found)} creation receipts"
    if first is None or first.revision_number != 1 or list(row_faults(first)):
        return
    expected = Configuration(first.name, first.allocation, first.preset).digest()
    if any(digest != expected for digest in found):
        yield "receipt_digest", "receipt and revision 1 differ: an identical retry would be 409"
