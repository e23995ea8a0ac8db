"""Roles and logins: what each may do and no more, and the comments that explain the schema in psql."""

import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import paths
from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate import keys, migrations
from stackmgr.operate.operator import operating
from tests.support.recorder import opened
from tests.support.waiting import eventually

# The object, what stackmgr_app may do with it, and the column if that is one of a column.
CATALOG = (paths.directory("sql") / "catalog.tsv").read_text().splitlines()
NEEDED = [
    (kind, name, verb, column)
    for kind, name, rights in re.findall(
        r"^(function|relation) stackmgr\.(\w+)[^:]*: privileges of stackmgr_app\t(.*)$",
        "\n".join(CATALOG), re.MULTILINE,
    )
    for verb, columns in re.findall(r"([A-Z]+)(?: \(([^)]*)\))?", rights)
    for column in columns.split(", ")
]  # fmt: skip


def test_no_role_has_more_than_its_rights():
    assert len(NEEDED) > 40
    assert all("owner stackmgr_owner" in line for line in CATALOG if "owner" in line.split("\t")[1])
    others = [line for line in CATALOG if ": privileges of " in line and "of stackmgr_app\t" not in line]
    assert all(re.search(r"of stackmgr_reader\t(SELECT|EXECUTE|USAGE)", line) for line in others)
    [found] = [line for line in others if "relation stackmgr.api_keys:" in line]
    assert "key_digest" not in found


@pytest.mark.parametrize(("kind", "name", "verb", "column"), NEEDED)
def test_readiness_names_each_missing_right(admin, kind, name, verb, column):
    privilege = f"{verb} ({column})" if column else verb
    kind = kind.replace("relation", "TABLE")
    with admin.transaction(force_rollback=True):
        admin.execute(f"REVOKE {privilege} ON {kind} stackmgr.{name} FROM stackmgr_app".encode())
        [(_, _, missing)] = admin.execute(statements.load("readiness").text)
    assert missing == f"{verb} ON stackmgr.{name}"


ACCOUNT = "00000000-0000-4000-8000-000000000001"
OWNERS = b"""
SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = to_regnamespace('stackmgr')
"""
ROLES = "CREATE ROLE stackmgr_owner; CREATE ROLE stackmgr_app; CREATE ROLE stackmgr_reader;"
NOT_MADE = "stackmgr_owner does not exist and this login may not create it: run .*roles.sql"
DEPLOYERS = {
    "may create roles": "CREATE ROLE deployer LOGIN CREATEROLE",
    "member of the owner": f"{ROLES} CREATE ROLE deployer LOGIN IN ROLE stackmgr_owner",
    "member that inherits nothing": f"{ROLES} CREATE ROLE deployer LOGIN NOINHERIT IN ROLE stackmgr_owner",
}


def prepare(bare_database_url: str, commands: str) -> str:
    with psycopg.connect(bare_database_url, autocommit=True) as superuser:
        superuser.execute(commands.encode())
        superuser.execute(f"GRANT CREATE ON DATABASE {superuser.info.dbname} TO deployer".encode())
    return make_conninfo(bare_database_url, user="deployer")


@pytest.mark.parametrize("commands", DEPLOYERS.values(), ids=DEPLOYERS)
def test_deployer_is_no_superuser(bare_database_url, commands):
    deployer_url = prepare(bare_database_url, commands)
    assert migrations.apply(deployer_url) == migrations.available()
    assert migrations.apply(deployer_url) == []
    with opened(deployer_url, role="stackmgr_owner", pool_size=2) as database:
        issued = keys.create(database.session(), ACCOUNT)
    with operating(deployer_url) as operator:
        assert keys.find(operator, issued.key_id).external_id == ACCOUNT
    with psycopg.connect(deployer_url) as connection:
        assert connection.execute(OWNERS).fetchall() == [("stackmgr_owner",)]


def test_a_role_that_another_run_creates_is_used(bare_database_url):
    deployer_url = prepare(bare_database_url, DEPLOYERS["may create roles"])
    with ThreadPoolExecutor() as threads, psycopg.connect(deployer_url) as other:
        other.execute(b"CREATE ROLE stackmgr_owner")
        applied = threads.submit(migrations.apply, deployer_url)
        eventually(lambda: other.execute(b"SELECT FROM pg_locks WHERE NOT granted").fetchall())
        other.commit()
    assert applied.result(60) == migrations.available()


@pytest.mark.parametrize(("roles", "message"), [("", NOT_MADE), (ROLES, "must be .*stackmgr_owner")])
def test_deployer_without_roles_gets_a_message(bare_database_url, roles, message):
    with pytest.raises(CommandError, match=message):
        migrations.apply(prepare(bare_database_url, f"{roles} CREATE ROLE deployer LOGIN"))


def test_a_cluster_without_roles_has_no_schema(bare_database_url):
    for role in ("stackmgr_owner", "stackmgr_reader"):
        refused = pytest.raises(CommandError, match="no schema of this release")
        with refused, operating(bare_database_url, role) as operator:
            keys.find(operator, ACCOUNT)


UNCOMMENTED = b"""
WITH objects (kind, id, no, name) AS (
    SELECT 'pg_namespace', oid, 0, nspname FROM pg_namespace
    UNION ALL
    SELECT 'pg_class', pg_class.oid, part, relname FROM pg_class
    CROSS JOIN generate_series(0, relnatts) AS part WHERE relkind IN ('r', 'v')
    UNION ALL
    SELECT 'pg_proc', oid, 0, proname FROM pg_proc
    UNION ALL
    SELECT 'pg_type', oid, 0, typname FROM pg_type WHERE typtype = 'd'
)
SELECT name::text, no FROM objects
WHERE (pg_identify_object(kind::regclass, id, 0)).identity ~ '^stackmgr($|\\.)'
    AND NOT EXISTS (SELECT FROM pg_description WHERE (classoid, objoid, objsubid) = (kind::regclass, id, no))
"""


def test_every_object_and_every_column_has_a_comment(admin):
    assert admin.execute(UNCOMMENTED).fetchall() == []
