"""Schema and statements can be routed to one shard by manager_id, for example on Citus."""

import re

import pytest

from tests.sql.headers import CITUS_FUNCTIONS, SQL_FILES, SqlFile

# What would be distributed by manager_id, colocated.
TENANT_TABLES = ("stacks", "stack_revisions", "creation_receipts")
_USE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+stackmgr\.({'|'.join(TENANT_TABLES)})\b")
_FILTER = re.compile(
    r"(?:(\w+)\.)?manager_id = (?:%\(manager_id\)s::uuid|\w+\.manager_id|\(SELECT manager_id FROM)"
)
KEYS = b"""
SELECT conname, contype, (
    SELECT attname FROM pg_attribute WHERE attrelid = conrelid AND attnum = conkey[1]
), (
    SELECT attname FROM pg_attribute WHERE attrelid = confrelid AND attnum = confkey[1]
)
FROM pg_constraint
WHERE conrelid = ANY (%s::text[]::regclass[]) AND contype IN ('p', 'u', 'f')
"""
INDEXES = b"""
SELECT indexrelid::regclass::text, (
    SELECT attname FROM pg_attribute WHERE attrelid = indrelid AND attnum = indkey[0]
)
FROM pg_index WHERE indrelid = ANY (%s::text[]::regclass[])
"""
NAMES = [f"stackmgr.{table}" for table in TENANT_TABLES]


def test_every_key_and_index_of_a_tenant_table_leads_with_the_manager(admin):
    keys = admin.execute(KEYS, [NAMES]).fetchall()
    assert {kind for _, kind, _, _ in keys} == {"p", "f"}
    assert {(column, target or "manager_id") for _, _, column, target in keys} == {
        ("manager_id", "manager_id")
    }
    columns = dict(admin.execute(INDEXES, [NAMES]).fetchall())
    # For an operator's search of all managers.
    assert columns.pop("stackmgr.stack_revisions_created_at") == "created_at"
    assert set(columns.values()) == {"manager_id"}


def uses(body: str) -> list[tuple[str, str]]:
    """Return each use of a tenant table: the verb and the table."""
    return _USE.findall(body)


def assert_filtered(body: str) -> None:
    """Fail unless every use of a tenant table but an insertion has its own filter by the manager."""
    inserts = sum(verb == "INTO" for verb, _ in uses(body))
    assert len(_FILTER.findall(body)) >= len(uses(body)) - inserts


@pytest.mark.parametrize(
    "file", [file for file in SQL_FILES.values() if uses(file.body)], ids=lambda file: file.name
)
def test_a_statement_names_one_manager_for_each_use_of_a_tenant_table(file: SqlFile):
    assert file.parameters().get("manager_id") == "uuid"
    assert_filtered(file.body)


@pytest.mark.parametrize("function", CITUS_FUNCTIONS, ids=lambda text: text.split("(")[0].split(".")[1])
def test_a_function_of_citus_uses_the_rows_of_the_manager_that_it_is_sent_by(function: str):
    name = re.match(r"CREATE FUNCTION stackmgr\.(\w+)\(\s+manager_id +uuid,", function)[1]
    # The first parameter of EXECUTE is the manager, too.
    assert re.findall(r"USING ([\w.]+)", function) in ([], [f"{name}.manager_id"])
    assert_filtered(re.sub(rf"{name}\.manager_id|\$1\b", "%(manager_id)s::uuid", function))
    inserted = re.findall(r"INSERT INTO [\w.]+ \(\s*(\w+).*?VALUES \(\s*([\w.]+)", function, re.DOTALL)
    assert {column for column, _ in inserted} == {"manager_id"}
    assert {value for _, value in inserted} <= {f"{name}.manager_id", "updated.manager_id"}
