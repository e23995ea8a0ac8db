"""The tables of the simulated PostgreSQL, and what the service's statements do with them."""

import json
from collections import Counter
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from stackmgr.database import statements
from stackmgr.database.statements import Statement
from tests.support.examples import COLUMNS

SHOWN = slice(1, 2 + len(COLUMNS))  # of a stack: the revision id and the configuration
_NOTHING = (None,) * (2 + len(COLUMNS))
Parameters = Mapping[str, Any]
Row = tuple[Any, ...]
_WRITTEN = "stacks", "receipts", "revisions"  # by which name
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@cache
def statement_of(text: bytes) -> Statement:
    return statements.load(text.partition(b"/* ")[2].partition(b" */")[0].decode("ascii"))


class Tables:
    """Committed rows, and in a copy those of a transaction."""

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[str, str, str, str]] = {}  # external, identity, key and manager id
        self.stacks: dict[str, list[Any]] = {}  # by id: manager, revision, configuration, created
        self.receipts: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.revisions: dict[str, list[Row]] = {}  # by stack
        self.applied: Counter[tuple[str, str]] = Counter()  # by statement and request
        self.unconfirmed: set[str] = set()  # requests whose commit no standby has confirmed
        self.used: set[bytes] = set()  # keys whose use in this hour is recorded
        self.moved_keys = 0

    def move_key(self) -> None:
        self.moved_keys += 1
        digests = list(self.keys)
        moved, other = (digests[(self.moved_keys + place) % len(digests)] for place in (0, 1))
        self.keys[moved] = (*self.keys[moved][:3], self.keys[other][3])

    def copy(self) -> "Tables":
        seen = copy(self)
        vars(seen).update({name: dict(getattr(self, name)) for name in _WRITTEN}, used=set(self.used))
        return seen

    def commit(self, seen: "Tables", before: "Tables") -> None:
        self.used |= seen.used
        for name in _WRITTEN:
            now, then = getattr(seen, name), getattr(before, name)
            getattr(self, name).update({key: now[key] for key in now if now[key] is not then.get(key)})

    def lock(self, name: str, given: Parameters) -> Row | None:
        """Return what a statement locks until its transaction ends, or None."""
        if name == "stack_create" and self._caller(given):
            receipt = given["manager_id"], given["idempotency_key"]
            return None if receipt in self.receipts else receipt
        if name == "stack_update" and self._caller(given):
            shown = self._shown(given["manager_id"], given["stack_id"])
            return (given["stack_id"],) if shown else None
        return None

    def run(self, name: str, given: Parameters) -> list[Row]:
        rows: list[Row] = getattr(self, f"_{name}")(given)
        return rows

    def _session_settings(self, given: Parameters) -> list[Row]:
        return [(name, value, value) for name, value in json.loads(given["settings"]).items()]

    def _batch_begin(self, given: Parameters) -> list[Row]:
        return [("20ms",)]

    def _api_key_verify(self, given: Parameters) -> list[Row]:
        key = self.keys.get(given["key_digest"])
        is_used = given["key_digest"] in self.used
        return [] if key is None else [("valid", *key, None, None, is_used)]

    def _api_key_use_record(self, given: Parameters) -> list[Row]:
        digest = given["key_digest"]
        rows = [] if digest in self.used else [(digest,)]
        self.used.add(digest)
        return rows

    def _caller(self, given: Parameters) -> list[bool]:
        """Return, in one item, whether this hour's use of the key is recorded; no item if it is not valid."""
        digest = given["key_digest"]
        external, identity, _, manager = self.keys[digest]
        named = tuple(given[name] for name in ("external_id", "identity_id", "manager_id"))
        return [digest in self.used] if named == (external, identity, manager) else []

    def _stack_get(self, given: Parameters) -> list[Row]:
        found = self._shown(given["manager_id"], given["stack_id"]) or [_NOTHING]
        return [(*found[0], is_used) for is_used in self._caller(given)]

    def _shown(self, manager_id: str, stack_id: str) -> list[Row]:
        stack = self.stacks.get(stack_id)
        return [] if stack is None or stack[0] != manager_id else [(stack_id, *stack[SHOWN])]

    def _stack_list(self, given: Parameters) -> list[Row]:
        page = self._page(given) or [(*_NOTHING, None)]
        return [(*row[:-1], is_used, row[-1]) for is_used in self._caller(given) for row in page]

    def _page(self, given: Parameters) -> list[Row]:
        after = (datetime.fromisoformat(given["after_created_at"]), UUID(given["after_stack_id"]))
        found = sorted(
            ((stack[-1], UUID(stack_id)) for stack_id, stack in self.stacks.items()
             if stack[0] == given["manager_id"]),
            reverse=True,
        )  # fmt: skip
        page = [str(stack_id) for place in found if place < after for stack_id in place[1:]]
        longest = int(given["name_bytes"])
        return [
            (stack_id, revision_id, name if len(name.encode()) <= longest else None, *others)
            for stack_id in page[: int(given["row_limit"])]
            for _, revision_id, name, *others in [self.stacks[stack_id]]
        ]

    def _stack_list_long_names(self, given: Parameters) -> list[Row]:
        """Return the page with all of its names: those of a simulation are not long enough to end it."""
        page = self._page({**given, "name_bytes": given["page_bytes"]})
        return [(*row[:-1], True, row[-1]) for row in page]

    def _stack_create(self, given: Parameters) -> list[Row]:
        receipt = (given["manager_id"], given["idempotency_key"])
        caller = self._caller(given)
        if receipt in self.receipts or not caller:
            return [(None, is_used) for is_used in caller]
        stack_id = given["stack_id"]
        self.receipts[receipt] = (given["input_digest"], stack_id)
        shown = [given[name] for name in ("revision_id", *COLUMNS)]
        created = _EPOCH + timedelta(seconds=len(self.stacks))
        self.stacks[stack_id] = [given["manager_id"], *shown, created]
        self.revisions[stack_id] = [(given["request_id"], *shown)]
        return [(stack_id, *caller)]

    def _receipt_find(self, given: Parameters) -> list[Row]:
        receipt = self.receipts.get((given["manager_id"], given["idempotency_key"]))
        if receipt is None:
            return []
        digest, stack_id = receipt
        return [(digest, "0/0", stack_id, *self.stacks[stack_id][SHOWN])]

    def _stack_update(self, given: Parameters) -> list[Row]:
        stack_id = given["stack_id"]
        if not self._shown(given["manager_id"], stack_id) or not self._caller(given):
            return self._stack_get(given)
        stack = self.stacks[stack_id] = list(self.stacks[stack_id])
        stack[1] = given["revision_id"]
        for place, name in enumerate(COLUMNS, 2):
            if given[name] is not None:
                stack[place] = given[name]
        self.revisions[stack_id] = [*self.revisions[stack_id], (given["request_id"], *stack[SHOWN])]
        return self._stack_get(given)
