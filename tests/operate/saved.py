"""A database with a few stacks whose ids, times and keys are always the same, as the page of commands shows.

Written with SQL and not through the service, which chooses ids and times itself.
"""

import json
from typing import Any

import psycopg

from stackmgr import paths
from stackmgr.stacks.configuration import Configuration
from tests.support.examples import COLUMNS, STORED, TOKENS, allocation_text

ADDRESS = {token["symbol"]: token["address"].lower() for token in TOKENS}
TOKENS_FILE = paths.DEFAULT_WHITELIST
MANAGER = "3b241101-e2bb-4255-8caf-4136c566a962"
OTHER_MANAGER = "5f0c8d0e-3c3c-4c59-9a55-0d6a8b1f2e77"
# The manager id of each external id.
MANAGER_ID = "1d9f6c02-7a4e-4b0d-9c55-2f3e8a6b7d10"
OTHER_MANAGER_ID = "6e2b8f47-1c3d-4f5a-8b9e-0a7d5c4f3e20"
MANAGER_IDS = {MANAGER: MANAGER_ID, OTHER_MANAGER: OTHER_MANAGER_ID}
PRODUCTION = "0b6e7a54-0f0f-4a34-9a4e-7a1f3c0d9e11"
SUPPORT = "c2f1d2ce-91b3-4f0a-8a52-8f6b0d4e5a22"
STACK = "ac2ff8ab-6f3e-4c55-9a40-1f0d2f5b7c01"
QUIET_STACK = "d4b0c9d2-55aa-4c1e-8f27-6a2b9a0e4d02"
OTHERS_STACK = "e8a1b7f3-0c44-4d9b-b1f6-2c7d5e9f3a03"
# The stacks, and of each revision the time, the key, the request, the name, weights by symbol and the preset.
SAVED = (
    (MANAGER, STACK, "growth-2026",
        ("2026-11-20 09:15:00+00", None, "import-17", "Growth", {"AAPL": 10000}, "weekly"),
        ("2026-11-21 08:02:11+00", PRODUCTION, "7d0f", "Growth", {"AAPL": 10000}, "monthly"),
        ("2026-11-21 22:10:54+00", SUPPORT, "support-daily", "Growth", {"AAPL": 10000}, "daily"),
        ("2026-11-21 22:10:55+00", PRODUCTION, "2c4e3df8", "Growth", {"AAPL": 6000, "AMD": 4000}, "daily")),
    (MANAGER, QUIET_STACK, "income-1",
        ("2026-11-21 10:00:00+00", PRODUCTION, "8e11", "Income", {"MSFT": 5000, "NVDA": 5000}, "monthly")),
    (OTHER_MANAGER, OTHERS_STACK, "first",
        ("2026-11-19 12:00:00+00", None, "9f42", "AMD only", {"AMD": 10000}, "hourly"),
        ("2026-11-19 12:30:00+00", None, "9f43", "Chips", {"AMD": 1, "NVDA": 9999}, "hourly")),
)  # fmt: skip


def insert(connection: psycopg.Connection[Any], table: str, row: dict[str, object]) -> None:
    names = ", ".join(row)
    values = ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO stackmgr.{table} ({names}) VALUES ({values})".encode(), row)


def save(connection: psycopg.Connection[Any]) -> None:
    for external_id, manager_id in MANAGER_IDS.items():
        manager = {"manager_id": manager_id, "external_id": external_id, "identity_id": f"id:{external_id}"}
        insert(connection, "managers", manager)
    for key_id, label, last_four, revoked in (
        (PRODUCTION, "production", "dZFx", None),
        (SUPPORT, "support desk", "Qq07", "2026-11-22 07:30:00+00"),
    ):
        owner = {"external_id": MANAGER, "identity_id": f"id:{MANAGER}"}
        digest = bytes.fromhex(key_id.replace("-", "")) * 2
        key = {"key_digest": digest, "key_id": key_id, "label": label, "last_four": last_four}
        times = {"created_at": "2026-11-20 09:00:00+00", "revoked_at": revoked}
        insert(connection, "api_keys", key | owner | times)
    for external_id, stack_id, idempotency_key, *revisions in SAVED:
        _save_stack(connection, external_id, stack_id, idempotency_key, revisions)


def _save_stack(
    connection: psycopg.Connection[Any], external_id: str, stack_id: str, key: str, revisions: list[Any]
) -> None:
    ids = {"manager_id": MANAGER_IDS[external_id], "stack_id": stack_id}
    rows = [
        STORED._replace(name=name, allocation=_allocation(weights), preset=preset)._asdict()
        | {
            "revision_id": f"{stack_id[:-4]}{number:04d}", "revision_number": number,
            "identity_id": f"id:{external_id}", "request_id": request_id, "key_id": key_id,
            "created_at": at,
        }
        for number, (at, key_id, request_id, name, weights, preset) in enumerate(revisions, start=1)
    ]  # fmt: skip
    first, last = rows[0], rows[-1]
    not_of_stacks = ("identity_id", "request_id", "key_id")
    current = {name: value for name, value in last.items() if name not in not_of_stacks}
    insert(connection, "stacks", ids | current | {"created_at": first["created_at"]})
    for row in rows:
        insert(connection, "stack_revisions", ids | row)
    digest = Configuration(**{column: first[column] for column in COLUMNS}).digest()
    receipt = {"idempotency_key": key, "input_digest": digest, "created_at": first["created_at"]}
    insert(connection, "creation_receipts", ids | receipt)


def _allocation(weights: dict[str, int]) -> str:
    return allocation_text(*sorted((ADDRESS[symbol], bps) for symbol, bps in weights.items()))


def whitelist_without(symbol: str) -> str:
    document = json.loads(TOKENS_FILE.read_bytes())
    for token in document["tokens"]:
        if token["symbol"] == symbol:
            token |= {"symbol": "NEW", "name": "Newcomer", "address": "0x" + "00" * 19 + "01"}
    return json.dumps(document, indent=2)


REBIND = """
INSERT INTO stackmgr.manager_rebindings (
    manager_id, old_external_id, old_identity_id, new_external_id, new_identity_id
)
SELECT manager_id, external_id, 'before', external_id, identity_id
FROM stackmgr.managers WHERE external_id = %s
"""
HERE = f"stack_id = '{STACK}'"
# Nothing but a broken disk, a restored table or a superuser brings such rows about.
UNGUARDED = b"""
ALTER DOMAIN stackmgr.stack_name DROP CONSTRAINT IF EXISTS stack_name_is_not_blank;
ALTER DOMAIN stackmgr.allocation DROP CONSTRAINT IF EXISTS allocation_is_normalised;
ALTER DOMAIN stackmgr.preset DROP CONSTRAINT IF EXISTS preset_is_known;
ALTER TABLE stackmgr.managers DROP CONSTRAINT IF EXISTS managers_identity_id_is_not_empty;
ALTER TABLE stackmgr.stacks
    ALTER name DROP NOT NULL, ALTER preset DROP NOT NULL, ALTER allocation DROP NOT NULL;
ALTER TABLE stackmgr.stack_revisions
    ALTER name DROP NOT NULL, ALTER preset DROP NOT NULL, ALTER allocation DROP NOT NULL;
"""


def update(table: str, change: str, where: str = HERE) -> str:
    return f"UPDATE stackmgr.{table} SET {change} WHERE {where};"


def delete(table: str, where: str = HERE) -> str:
    return f"DELETE FROM stackmgr.{table} WHERE {where};"


def plant(url: str, statements: str) -> None:
    with psycopg.connect(url) as admin:
        admin.execute(b"SET LOCAL session_replication_role = replica")
        admin.execute(UNGUARDED)
        admin.execute(statements.encode())
