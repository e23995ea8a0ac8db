"""Constraints: rows that the tables reject, whoever writes."""

import re

import psycopg
import pytest

from stackmgr import paths
from tests.operate.saved import insert
from tests.support.examples import STORED

HERE, ELSEWHERE = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "01")
REVISION = {
    "manager_id": HERE, "stack_id": HERE, "revision_id": HERE, "revision_number": 1, **STORED._asdict(),
}  # fmt: skip
# In an order in which each row finds those it refers to.
GOOD = {
    "schema_migrations": {"version": 9999, "slug": "x", "checksum": bytes(32)},
    "managers": {"manager_id": HERE, "external_id": HERE, "identity_id": "one"},
    "api_keys": {"key_digest": bytes(32), "key_id": HERE, "external_id": HERE, "identity_id": "one",
        "last_four": "abcd"},
    "api_key_quota_slots": {"quota_id": HERE, "slot": 1},
    "api_key_quota_queues": {"quota_id": HERE, "slot": 1, "granted_at": []},
    "manager_rebindings": {"manager_id": HERE, "old_external_id": HERE, "old_identity_id": "one",
        "new_external_id": HERE, "new_identity_id": "two"},
    "manager_erasures": {"manager_id": HERE, "external_id": HERE, "begun_at": "2026-01-01T00:00:00Z",
        "begun_by": "operator", "stacks": 0, "revisions": 0, "receipts": 0},
    "manager_holds": {"manager_id": HERE, "held_at": "2026-01-01T00:00:00Z", "held_by": "operator",
        "reason": "case 1", "bound_manager_id": HERE},
    "stacks": REVISION,
    "stack_revisions": REVISION | {"identity_id": "one", "request_id": "r"},
    "creation_receipts": {"manager_id": HERE, "idempotency_key": "k", "input_digest": bytes(32),
        "stack_id": HERE},
}  # fmt: skip
OTHER_MANAGER = {"manager_id": ELSEWHERE, "external_id": ELSEWHERE, "identity_id": "two"}
OTHER_KEY = {"key_id": ELSEWHERE, "key_digest": bytes([1] * 32)}
UNBOUND = {"bound_manager_id": None}
BOUND_ELSEWHERE = {"manager_id": ELSEWHERE, "bound_manager_id": ELSEWHERE}
RELEASED = {"released_at": "2026-01-02T00:00:00Z", "released_by": "operator"}
OTHER_RECEIPT = {"idempotency_key": "l"}
SHA, CHECKSUM = "digest_is_sha256", "checksum_is_sha256"
QUOTA = {"quota_id": HERE, "quota_limit": 1, "quota_seconds": 1}
# The constraint that is broken, and what differs from a row (or from a second row) that would be accepted.
# Its name begins with that of the table; a domain's has none, and is tried in the stacks.
REJECTED = [
    ("schema_migrations_pkey", {}),
    *((f"schema_migrations_{CHECKSUM}", {"version": 9998, "checksum": bytes(size)}) for size in (31, 33)),
    ("managers_pkey", OTHER_MANAGER | {"manager_id": HERE}),
    ("managers_external_id_key", OTHER_MANAGER | {"external_id": HERE}),
    ("managers_identity_id_key", OTHER_MANAGER | {"identity_id": "one"}),
    ("managers_identity_id_is_not_empty", OTHER_MANAGER | {"identity_id": ""}),
    ("api_keys_pkey", {"key_id": ELSEWHERE}), ("api_keys_key_id_key", {"key_digest": bytes([1] * 32)}),
    *((f"api_keys_key_{SHA}", {"key_id": ELSEWHERE, "key_digest": text}) for text in (b"key", bytes(33))),
    ("api_keys_last_four_is_short", OTHER_KEY | {"last_four": "abcde"}),
    ("api_keys_quota_is_whole", OTHER_KEY | QUOTA | {"quota_seconds": None}),
    *(
        (f"api_keys_{name}_is_bounded", OTHER_KEY | QUOTA | {name: value})
        for name, most in (("quota_limit", 10000), ("quota_seconds", 86400))
        for value in (0, most + 1)
    ),
    *(
        (f"{table}_times_have_a_date", row | {name: time})
        for table, row, names in (
            ("api_keys", OTHER_KEY, ("created_at", "expires_at", "revoked_at", "last_used_at")),
            ("managers", OTHER_MANAGER, ("created_at",)),
            ("manager_holds", RELEASED | UNBOUND, ("held_at", "released_at")),
            ("stacks", {"stack_id": ELSEWHERE}, ("created_at",)),
        )
        for name in names
        for time in ("infinity", "-infinity", "0001-12-31 12:00 BC", "10000-01-01Z")
    ),
    ("api_keys_successor_id_fkey", OTHER_KEY | {"successor_id": ELSEWHERE.replace("1", "2")}),
    ("api_key_quota_slots_pkey", {}), ("api_key_quota_queues_pkey", {}), ("manager_rebindings_pkey", {}),
    ("manager_rebindings_manager_id_fkey", {"manager_id": ELSEWHERE}), ("manager_erasures_pkey", {}),
    ("manager_holds_pkey", RELEASED | UNBOUND),
    ("manager_holds_in_force", {"held_at": "2026-01-02T00:00:00Z"}),
    ("manager_holds_bound_manager_id_fkey", BOUND_ELSEWHERE),
    ("manager_holds_reason_is_not_blank", {"reason": " "}),
    ("manager_holds_release_is_whole", UNBOUND | {"released_by": "operator"}),
    ("manager_holds_bound_manager_is_held", RELEASED),
    ("manager_holds_bound_manager_is_held", {"manager_id": ELSEWHERE}), ("stacks_pkey", {}),
    ("stacks_revision_number_is_positive", {"stack_id": ELSEWHERE, "revision_number": 0}),
    ("stack_name_is_not_blank", {"stack_id": ELSEWHERE, "name": " \u3000\n"}),
    ("allocation_is_normalised", {"stack_id": ELSEWHERE, "allocation": "[]"}),
    ("preset_is_known", {"stack_id": ELSEWHERE, "preset": "yearly"}), ("stack_revisions_pkey", {}),
    ("stack_revisions_revision_number_is_positive", {"revision_number": 0}),
    ("stack_revisions_stack_fkey", {"stack_id": ELSEWHERE}), ("creation_receipts_pkey", {}),
    ("stack_revisions_stack_fkey", {"manager_id": ELSEWHERE}),
    ("creation_receipts_stack_fkey", OTHER_RECEIPT | {"stack_id": ELSEWHERE}),
    ("creation_receipts_stack_fkey", {"manager_id": ELSEWHERE}),
    *((f"creation_receipts_input_{SHA}", OTHER_RECEIPT | {"input_digest": bytes(size)}) for size in (0, 33)),
]  # fmt: skip
DECLARED = re.compile(r"^[^:]+: (?:constraint|index) (\w+)\t(?!CREATE INDEX)", re.MULTILINE)


@pytest.fixture
def filled(admin):
    with admin.transaction(force_rollback=True):
        for table, row in GOOD.items():
            insert(admin, table, row)
        yield admin


@pytest.mark.parametrize(
    ("constraint", "changes"), REJECTED, ids=[f"{name}-{'-'.join(changes)}" for name, changes in REJECTED]
)
def test_each_constraint_rejects_what_it_must(filled, constraint, changes):
    table = max((name for name in GOOD if constraint.startswith(f"{name}_")), key=len, default="stacks")
    with pytest.raises(psycopg.IntegrityError) as error, filled.transaction():
        insert(filled, table, GOOD[table] | changes)
    assert error.value.diag.constraint_name == constraint


def test_no_constraint_is_without_a_case():
    declared = DECLARED.findall((paths.directory("sql") / "catalog.tsv").read_text())
    assert {*declared} == {constraint for constraint, _ in REJECTED}
