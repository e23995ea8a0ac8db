"""How PostgreSQL runs the statements for a manager with more stacks than others, with any statistics."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import sql

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.limits import MAX_PAGE_SIZE, PAGE_NAME_BYTES
from stackmgr.operate import migrations
from stackmgr.stacks import cursor
from stackmgr.stacks.cursor import Position
from tests.sql.fleets import CALLER, MANAGER, insert
from tests.sql.headers import SQL_FILES
from tests.support.clusters import new_database
from tests.support.examples import COLUMN_NAMES, COLUMN_VALUES, COLUMNS, STORED

# Managers, the stacks they share, and the last stack of the crowded manager.  With one stack each,
# the index of pages seems to find one stack as fast as the primary key does.
FLEETS = {
    "some stacks": (range(1, 2_001), range(10_000), 110_000),
    "single stacks": (range(1, 20_001), range(20_000), 20_500),
}
STATISTICS = ("stale", "fresh", "after churn", "none")
TABLES = (
    "managers", "api_keys", "api_key_quota_slots", "api_key_quota_queues", "stacks", "stack_revisions",
    "creation_receipts",
)  # fmt: skip
NO_AUTOVACUUM = "".join(f"ALTER TABLE stackmgr.{table} SET (autovacuum_enabled = off);" for table in TABLES)
# Of stack_list, above the index of pages.
CALLER_NODES = ["Nested Loop", "Nested Loop", "Index Scan", "Index Scan"]
ANALYZE = f"ANALYZE {', '.join(f'stackmgr.{table}' for table in TABLES)}"
CHURN = b"""
UPDATE stackmgr.stacks SET revision_number = revision_number + 1
WHERE manager_id = %(manager_id)s
    AND (created_at > now() - interval '1 hour' OR created_at < now() - interval '18 hours')
"""
BEFORE_LAST_PAGE = b"""
SELECT created_at, stack_id FROM stackmgr.stacks WHERE manager_id = %(manager_id)s
ORDER BY created_at, stack_id LIMIT 1 OFFSET 101
"""
FORGET = b"""
SET allow_system_table_mods = on;
DELETE FROM pg_statistic
WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'stackmgr'::regnamespace);
UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE relnamespace = 'stackmgr'::regnamespace;
"""
PREDECESSOR = b"""
PREPARE predecessor (uuid) AS
SELECT FROM ONLY stackmgr.api_keys AS x WHERE $1 OPERATOR(pg_catalog.=) successor_id FOR KEY SHARE OF x
"""
EXPLAIN_PREDECESSOR = b"EXPLAIN (FORMAT JSON) EXECUTE predecessor('00000000-0000-4000-8000-000000000001')"
QUEUES = b"""
INSERT INTO stackmgr.api_key_quota_queues (quota_id, slot, granted_at)
SELECT quota_id, slot, '{}' FROM stackmgr.api_key_quota_slots
"""
# Of parameters that are no column of a configuration.  No type of the schema: see stack_create.
SAMPLES: dict[str, Any] = {
    "uuid": MANAGER, "text": "text", "bytea": bytes(32), "integer": 1,
    "timestamptz": "2026-01-01T00:00:00Z",
}  # fmt: skip


@pytest.fixture(scope="module")
def seeded(server_url: str) -> Iterator[Callable[[str], str]]:
    with ExitStack() as databases:
        yield cache(lambda fleet: seed(databases.enter_context(new_database(server_url)), *FLEETS[fleet]))


def seed(url: str, managers: range, shared: range, last: int) -> str:
    migrations.apply(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(NO_AUTOVACUUM.encode())
        insert(admin, managers, shared, managers)
        admin.execute(ANALYZE.encode())
        insert(admin, range(1), range(shared.stop, last), range(1))
        admin.execute(QUEUES)
    return url


@pytest.fixture(scope="module", params=list(product(FLEETS, STATISTICS)), ids=", ".join)
def crowded_url(request: pytest.FixtureRequest, seeded: Callable[[str], str]) -> str:
    fleet, known = request.param
    url = seeded(fleet)
    with psycopg.connect(url, autocommit=True) as admin:
        if known == "fresh":
            admin.execute(ANALYZE.encode())
        if known == "after churn":
            for _ in range(5):
                admin.execute(CHURN, {"manager_id": MANAGER})
        if known == "none":
            admin.execute(FORGET)
    return url


def connected(url: str, role: str) -> DatabaseConnection:
    return DatabaseConnection.connect(completed_conninfo(url, role, SESSION_SECONDS), autocommit=True)


@pytest.fixture
def owner(crowded_url: str) -> Iterator[DatabaseConnection]:
    with connected(crowded_url, "stackmgr_owner") as connection:
        yield connection


def explain(connection: DatabaseConnection, name: str, **given: Any) -> list[dict[str, Any]]:
    """Execute a statement, undo it, and return the nodes of its plan.  What is not given is a sample."""
    statement = statements.load(name)
    others = {name: kind for name, kind in SQL_FILES[name].parameters().items() if name not in COLUMNS}
    parameters = {name: SAMPLES[kind] for name, kind in others.items()} | STORED._asdict() | given
    connection.pgconn.prepare(name.encode(), statement.text)
    arguments = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in statement.parameters)
    command = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {}({})")
    with connection.transaction(force_rollback=True):
        row: Any = connection.execute(command.format(sql.Identifier(name), arguments)).fetchone()
    return list(nodes(row[0][0]["Plan"]))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.fixture(scope="module")
def ends(crowded_url: str) -> dict[str, Position]:
    with psycopg.connect(crowded_url) as admin:
        row: Any = admin.execute(BEFORE_LAST_PAGE, {"manager_id": MANAGER}).fetchone()
    return {"first": cursor.START, "last": Position(*row)}


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize(
    ("name", "above"), [("stack_list", CALLER_NODES), ("stack_list_long_names", ["WindowAgg"])]
)
def test_page_reads_no_row_too_many(crowded_url, ends, name, above, end, limit):
    given = {**CALLER, "after_created_at": ends[end].created_at.isoformat(), "row_limit": limit + 1}
    given |= {"after_stack_id": str(ends[end].stack_id), "page_bytes": PAGE_NAME_BYTES}
    with connected(crowded_url, "stackmgr_app") as service:
        plan = explain(service, name, **given, name_bytes=PAGE_NAME_BYTES // MAX_PAGE_SIZE)
    kinds = [node["Node Type"] for node in plan if node["Node Type"] != "Subquery Scan"]
    assert kinds == [*above, "Limit", "Index Scan"]
    *caller, scan = [node for node in plan if "Relation Name" in node]
    assert [(node["Actual Rows"], node["Actual Loops"]) for node in caller] == [(1, 1)] * len(caller)
    assert (scan["Index Name"], scan["Actual Rows"], scan["Actual Loops"]) == ("stacks_page", limit + 1, 1)
    assert "Filter" not in scan


def test_keys_are_found_by_an_index(owner):
    """The list is planned with the values of its parameters; the other statement is the foreign key's."""
    owner.execute(b"SET plan_cache_mode = force_custom_plan")
    assert indexes(explain(owner, "api_key_list", key_id=None)) == {"api_keys_external_id"}
    assert indexes(explain(owner, "api_key_list", external_id=None)) == {"api_keys_key_id_key"}
    owner.execute(b"SET plan_cache_mode = force_generic_plan")
    owner.execute(PREDECESSOR)
    explained: Any = owner.execute(EXPLAIN_PREDECESSOR).fetchone()
    assert indexes(list(nodes(explained[0][0]["Plan"]))) == {"api_keys_successor_id"}


def assert_indexes_of_header(connection: DatabaseConnection, name: str) -> None:
    plan = explain(connection, name)
    found = [(index, False) for index in indexes(plan)]
    found += [(index, True) for node in plan for index in node.get("Conflict Arbiter Indexes", ())]
    named = [(entry.split(" or "), arbiter) for entry, arbiter in SQL_FILES[name].indexes()]
    assert len(found) == len(named)
    for index, arbitrates in found:
        assert any(index in entry and arbitrates == arbiter for entry, arbiter in named)


@pytest.mark.parametrize(
    "name", [name for name, file in SQL_FILES.items() if file.indexes() and name != "manager_erasure_finish"]
)
def test_indexes_are_those_of_the_header(owner, name):
    assert_indexes_of_header(owner, name)


@pytest.mark.parametrize("crowded_url", [(fleet, "fresh") for fleet in FLEETS], indirect=True, ids=str)
def test_erasure_uses_its_headers_indexes(owner):
    """Without statistics its last statement reads each slot of a quota: an operator runs it once."""
    assert_indexes_of_header(owner, "manager_erasure_finish")


TIES = f"""
WITH manager AS (
    INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)
    VALUES (%(manager)s::uuid, %(manager)s::uuid, %(manager)s::text)
)
INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, {COLUMN_NAMES})
SELECT %(manager)s::uuid, lpad(n::text, 32, '0')::uuid, gen_random_uuid(), 1, {COLUMN_VALUES}
FROM generate_series(1, 4) AS n
""".encode()
SORTED = b"SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on"


@pytest.mark.parametrize(
    ("name", "variant"), [("stack_list", ""), ("stack_list", "citus"), ("stack_list_long_names", "")]
)
def test_stacks_of_one_moment_have_an_order(admin, name, variant):
    statement = statements.load(name, variant)
    given = {**CALLER, "key_digest": None, "page_bytes": 20, "name_bytes": 10, "row_limit": 3}
    given |= {"after_created_at": cursor.START.created_at, "after_stack_id": cursor.START.stack_id}
    with admin.transaction(force_rollback=True):
        admin.execute(TIES, {"manager": MANAGER, **STORED._replace(name="10 letters")._asdict()})
        admin.execute(SORTED)
        values = [given[parameter] for parameter in statement.parameters]
        rows = psycopg.RawCursor(admin).execute(statement.text, values).fetchall()
    assert [int(row[0][-1]) for row in rows] == [4, 3, 2]
    # Of several, a later sort may keep the order of the first by chance.
    assert statement.text.count(b"ORDER BY ") == statement.text.count(b"stack_id DESC")
