"""The statements of sql/citus and their functions, on an ordinary PostgreSQL."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row

from stackmgr import paths
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers import Identity
from stackmgr.admission import UNLIMITED
from stackmgr.database import statements
from stackmgr.errors import ServiceError
from stackmgr.limits import MAX_PAGE_SIZE, PAGE_NAME_BYTES
from stackmgr.operate import migrations, preflight
from stackmgr.stacks import cursor, repository
from stackmgr.stacks.configuration import Configuration
from tests.support.clusters import new_database
from tests.support.examples import CHANGED, CONFIGURED, STORED, stored
from tests.support.fixed_verifier import FixedVerifier
from tests.support.psql import run_psql
from tests.support.recorder import opened

# In place of Citus' functions.
STUBS = b"""
    CREATE TABLE distributed (what text, key text, beside text);
    CREATE FUNCTION create_distributed_table(text, text, colocate_with text DEFAULT NULL) RETURNS void
        LANGUAGE sql AS 'INSERT INTO distributed VALUES ($1, $2, $3)';
    CREATE FUNCTION create_distributed_function(regprocedure, text, colocate_with text) RETURNS void
        LANGUAGE sql AS 'INSERT INTO distributed VALUES ($1::regproc, $2, $3)';
"""
EXTENSION = b"""
    INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
    VALUES (9999, 'citus', 10, 'pg_catalog'::regnamespace, false, '14.0')
"""
# Every column but the ids and times, which differ: also one that is added later, and forgotten in a function.
WRITTEN = b"""
    SELECT to_jsonb(revisions) - differing, to_jsonb(stacks) - differing, to_jsonb(receipts) - differing
    FROM stackmgr.stack_revisions AS revisions JOIN stackmgr.stacks USING (manager_id, stack_id)
    JOIN stackmgr.creation_receipts AS receipts USING (manager_id, stack_id)
    CROSS JOIN (VALUES (ARRAY['manager_id', 'stack_id', 'revision_id', 'created_at'])) AS ids (differing)
    WHERE manager_id = %s::text::uuid ORDER BY stacks.created_at, revisions.revision_number
"""
NOT_DEFERRED = (
    b"ALTER TABLE stackmgr.creation_receipts ALTER CONSTRAINT creation_receipts_stack_fkey NOT DEFERRABLE"
)
POSITIONS = (cursor.START, cursor.START, cursor.Position(datetime(2000, 1, 1, tzinfo=UTC), UUID(int=0)))


@pytest.fixture(scope="module")
def url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(STUBS)
            ran = run_psql(url, "-f", paths.directory("deploy") / "citus.sql")
            assert ran.returncode == 0, ran.stderr
            owner.execute(EXTENSION)
        yield url


def test_tables_and_functions_are_distributed_alike(url: str):
    tables = [f"stackmgr.{name}" for name in ("stacks", "stack_revisions", "creation_receipts")]
    functions = [f"stackmgr.{name}" for name in ("create_stack", "update_stack")]
    with psycopg.connect(url) as admin:
        assert {*admin.execute(b"SELECT * FROM distributed")} == {
            (name, "manager_id", None if name == tables[0] else tables[0]) for name in (*tables, *functions)
        }
        may_insert = "SELECT has_table_privilege('stackmgr_app', unnest(%s::text[]), 'INSERT')"
        assert admin.execute(may_insert, [tables]).fetchall() == [(True,)] * 3
        foreign = "SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
        assert {row[0] for row in admin.execute(foreign)} >= {*tables[1:]}


def test_check_reports_what_citus_rejects(url: str, database_url: str):
    auto = {"options": "-c plan_cache_mode=auto"}
    assert preflight.examine(make_conninfo(url, **auto), variant="citus", thorough=True).problems == []
    assert preflight.examine(url, variant="citus").problems == [
        "STACKMGR_SQL_VARIANT=citus needs options=-c plan_cache_mode=auto in STACKMGR_DATABASE_URL"
    ]
    assert preflight.examine(url).problems == [
        "the tables are distributed: set STACKMGR_SQL_VARIANT=citus, as Citus rejects the others"
    ]
    for changed in (b"DELETE FROM pg_extension WHERE extname = 'citus'", NOT_DEFERRED):
        with psycopg.connect(url) as admin, admin.transaction(force_rollback=True):
            admin.execute(changed)
            [facts] = admin.cursor(row_factory=namedtuple_row).execute(statements.load("server_facts").text)
            assert facts.is_distributed is False
    assert preflight.examine(make_conninfo(database_url, **auto), variant="citus").problems == [
        "STACKMGR_SQL_VARIANT is citus, but the tables are not distributed: run deploy/citus.sql"
    ]


def test_the_page_names_what_fails_and_exists():
    deploy = paths.directory("deploy")
    table = re.findall(r"^\| (`.*?) \|", (deploy / "CITUS.md").read_text(), re.MULTILINE)
    named = re.findall(r"`(\w+\.(?:sql|sh))`", "".join(table))
    assert "recover_manager.sql" in named
    assert "revision_diff" not in "".join(table)
    assert [name for name in named if not [*deploy.glob(f"*/{name}")]] == []


def outcomes(url: str, variant: str) -> list[Any]:
    found: list[Any] = []
    identity = Identity(external_id=str(uuid4()), identity_id=str(uuid4()), key_id="key")
    with opened(url, pool_size=1, variant=variant) as database:
        session = database.session()
        credential = Credential("key", session, FixedVerifier(identity), UNLIMITED, None)
        credential.begin()

        def create(key: str, wanted: Configuration) -> tuple[repository.Stack, bool]:
            return repository.create(credential.rows, repository.create_operation(key, wanted, "r" * 300))

        def update(stack_id: str, changes: dict[str, str]) -> repository.Stack:
            operation = repository.update_operation(stack_id, changes, "r" * 300)
            return repository.get_or_update(credential.rows, operation)

        def walk(position: cursor.Position | None, limit: int) -> Iterator[Any]:
            while position:
                operation = repository.list_operation(position, limit)
                page, position = repository.list_page(credential.rows, operation)
                yield [stack[CONFIGURED] for stack in page]

        made, _ = create("one", STORED)
        assert made == repository.get_or_update(credential.rows, repository.get_operation(made.stack_id))
        calls = [
            lambda: create("one", STORED), lambda: create("one", stored(CHANGED)),
            lambda: create("k" * 4000, STORED), lambda: create("two", STORED),
            *(partial(update, made.stack_id, dict([change])) for change in stored(CHANGED)._asdict().items()),
            lambda: update(str(uuid4()), {"name": "Nobody's"}),
            lambda: update(made.stack_id, {"name": "n" * (PAGE_NAME_BYTES // MAX_PAGE_SIZE)}),
            lambda: repository.get_or_update(credential.rows, repository.get_operation(made.stack_id)),
            lambda: repository.get_or_update(credential.rows, repository.get_operation(str(uuid4()))),
        ]  # fmt: skip
        for call in calls:
            try:
                result: Any = call()
            except ServiceError as ex:
                found.append((type(ex), ex.reason))
            else:
                stack, *created = result if isinstance(result[0], tuple) else (result,)
                found.append((stack[CONFIGURED], stack.stack_id == made.stack_id, created))
        for position, limit in zip(POSITIONS, (1, 2, 1), strict=True):
            found += walk(position, limit)
    with psycopg.connect(url) as connection:
        written = connection.execute(WRITTEN, [credential.identity.manager_id]).fetchall()
    for revision, *_ in written:
        assert revision.pop("identity_id") == identity.identity_id
    return [*found, *written, database.names]


def test_functions_do_what_statements_do(url: str):
    found = outcomes(url, "citus")
    assert found == outcomes(url, "plain")
    assert statements.load_variant("citus").keys() <= set(found[-1])
