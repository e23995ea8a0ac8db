"""Schema and statements stay inside what routes to one shard by manager_id, on Citus for example."""

import re

import pytest

from tests.sql.headers import SQL_FILES, SqlFile

# What would be distributed by manager_id, colocated.
TENANT_TABLES = ("stacks", "stack_revisions", "creation_receipts")
_USE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+stackmgr\.({'|'.join(TENANT_TABLES)})\b")
_FILTER = re.compile(
    r"(?:(\w+)\.)?manager_id = (?:%\(manager_id\)s::uuid|\w+\.manager_id|\(SELECT manager_id FROM)"
)
# The others are run by operators, over all managers.
OF_ONE_MANAGER = ("stacks.create", "stacks.get", "stacks.list_page", "stacks.update", "erasure.erase")

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
    assert {column for _, column in admin.execute(INDEXES, [NAMES])} == {"manager_id"}


@pytest.mark.parametrize(
    "file",
    [
        file
        for file in SQL_FILES.values()
        if _USE.search(file.body) and set(file.listed("called by")) & set(OF_ONE_MANAGER)
    ],
    ids=lambda file: file.name,
)
def test_a_statement_names_one_manager_for_each_use_of_a_tenant_table(file: SqlFile):
    assert file.parameters().get("manager_id") == "uuid"
    uses = _USE.findall(file.body)
    inserts = sum(verb == "INTO" for verb, _ in uses)
    assert len(_FILTER.findall(file.body)) >= len(uses) - inserts
