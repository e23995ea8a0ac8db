"""Who may do what in the schema: the application role no more than it needs, PUBLIC nothing."""

import itertools

import psycopg
import pytest
from psycopg import sql

from stackmgr.database import statements

# What the application role may do with each table, and a column that it may not update.
TABLES: dict[str, tuple[set[str], str]] = {
    "schema_migrations": ({"SELECT"}, "version"),
    "managers": ({"SELECT", "INSERT"}, "identity_id"),
    "api_keys": ({"SELECT"}, "label"),
    "api_key_quota_slots": ({"SELECT"}, "slot"),
    "api_key_quota_queues": ({"SELECT"}, "slot"),
    "manager_rebindings": (set(), "old_external_id"),
    "manager_erasures": (set(), "external_id"),
    "manager_holds": (set(), "reason"),
    "stacks": ({"SELECT", "INSERT"}, "created_at"),
    "stack_revisions": ({"INSERT"}, "name"),
    "creation_receipts": ({"SELECT", "INSERT"}, "input_digest"),
}
# All but created_at, which the server's clock sets.
INSERTABLE = {
    "managers": {"manager_id", "external_id", "identity_id"},
    "stacks": {
        *("manager_id", "stack_id", "revision_id", "revision_number", "name", "allocation", "preset"),
    },
    "stack_revisions": {
        *("manager_id", "stack_id", "revision_number", "revision_id", "name", "allocation", "preset"),
        *("identity_id", "request_id", "key_id"),
    },
    "creation_receipts": {"manager_id", "idempotency_key", "input_digest", "stack_id"},
}
UPDATABLE = {
    "stacks": {"revision_id", "revision_number", "name", "allocation", "preset"},
    "api_keys": {"last_used_at"},
    "api_key_quota_slots": {"granted_at"},
    "api_key_quota_queues": {"granted_at"},
}
FUNCTIONS = {
    *("name_is_blank", "allocation_is_normalised", "create_stack", "update_stack"),
    *("api_key_state", "caller"),
}

ATTEMPTS = {
    "SELECT": "SELECT FROM stackmgr.{table}",
    "INSERT": "INSERT INTO stackmgr.{table} DEFAULT VALUES",
    "UPDATE": "UPDATE stackmgr.{table} SET {column} = {column}",
    "DELETE": "DELETE FROM stackmgr.{table}",
    "TRUNCATE": "TRUNCATE stackmgr.{table} CASCADE",
    "LOCK": "LOCK TABLE stackmgr.{table} IN ACCESS EXCLUSIVE MODE",
    "TRIGGER": "CREATE TRIGGER t AFTER INSERT ON stackmgr.{table} EXECUTE FUNCTION tsvector_update_trigger()",
    "INDEX": "CREATE INDEX ON stackmgr.{table} ({column})",
    "ALTER": "ALTER TABLE stackmgr.{table} ALTER COLUMN {column} DROP NOT NULL",
    "DROP": "DROP TABLE stackmgr.{table} CASCADE",
}
DENIED = [
    (table, verb) for table, verb in itertools.product(TABLES, ATTEMPTS) if verb not in TABLES[table][0]
]

# Every object of the schema, with its owner and the rights to it; a right of PUBLIC has no role.
OBJECTS = b"""
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = 'stackmgr'),
objects (name, owner, acl) AS (
    SELECT nspname::text, nspowner, coalesce(nspacl, acldefault('n', nspowner))
    FROM pg_namespace JOIN schema USING (oid)
    UNION ALL
    SELECT relname::text, relowner, coalesce(relacl, acldefault('r', relowner))
    FROM pg_class JOIN schema ON relnamespace = schema.oid
    UNION ALL
    SELECT relname || '.' || attname, relowner, attacl
    FROM pg_class JOIN schema ON relnamespace = schema.oid JOIN pg_attribute ON attrelid = pg_class.oid
    UNION ALL
    SELECT proname::text, proowner, coalesce(proacl, acldefault('f', proowner))
    FROM pg_proc JOIN schema ON pronamespace = schema.oid
    UNION ALL
    SELECT typname::text, typowner, coalesce(typacl, acldefault('T', typowner))
    FROM pg_type JOIN schema ON typnamespace = schema.oid
    WHERE typtype = 'd'
)
SELECT objects.name, owner::regrole::text, rolname::text, privilege_type
FROM objects
LEFT JOIN LATERAL aclexplode(acl) AS granted ON true
LEFT JOIN pg_roles ON pg_roles.oid = grantee
"""


@pytest.fixture
def application(admin):
    """A connection that has assumed the application role."""
    with admin.transaction(force_rollback=True):
        admin.execute("SET LOCAL ROLE stackmgr_app")
        yield admin


@pytest.mark.parametrize(("table", "verb"), DENIED, ids=[f"{verb} {table}" for table, verb in DENIED])
def test_the_application_role_is_rejected_every_verb_it_does_not_need(application, table, verb):
    command = ATTEMPTS[verb].format(table=table, column=TABLES[table][1])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.execute(command.encode())


@pytest.mark.parametrize("table", INSERTABLE)
def test_the_application_role_cannot_choose_the_time_of_a_row(application, table):
    columns = sorted({*INSERTABLE[table], "created_at"})
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier("stackmgr", table),
                sql.SQL(", ").join(map(sql.Identifier, columns)),
                sql.SQL(", ").join([sql.SQL("DEFAULT")] * len(columns)),
            )
        )


@pytest.mark.parametrize(
    "command",
    [
        "UPDATE stackmgr.stacks SET manager_id = manager_id",
        "UPDATE stackmgr.stacks SET stack_id = stack_id",
        "CREATE TABLE stackmgr.another (id uuid)",
        "CREATE TABLE public.another (id uuid)",
        "CREATE OR REPLACE FUNCTION stackmgr.name_is_blank(name text) RETURNS boolean RETURN false",
        "ALTER DOMAIN stackmgr.preset DROP CONSTRAINT preset_is_known",
        "SET ROLE stackmgr_owner",
    ],
)
def test_the_application_role_cannot_bypass_its_rights(application, command):
    application.execute("SET LOCAL SESSION AUTHORIZATION stackmgr_app")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.execute(command.encode())


def test_the_application_role_has_exactly_the_rights_it_needs(admin):
    needed = {(table, verb) for table, (verbs, _) in TABLES.items() for verb in verbs - {"INSERT"}}
    for verb, tables in {"INSERT": INSERTABLE, "UPDATE": UPDATABLE}.items():
        needed |= {(f"{table}.{column}", verb) for table, names in tables.items() for column in names}
    needed |= {(function, "EXECUTE") for function in FUNCTIONS} | {("stackmgr", "USAGE")}
    assert rights_of("stackmgr_app", admin) == needed


GRANTED = sorted(
    [
        *(
            (verb, f"TABLE stackmgr.{table}", table)
            for table, (verbs, _) in TABLES.items()
            for verb in verbs - {"INSERT"}
        ),
        *(
            (f"INSERT ({column})", f"TABLE stackmgr.{table}", table)
            for table in INSERTABLE
            for column in INSERTABLE[table]
        ),
        *(
            (f"UPDATE ({column})", f"TABLE stackmgr.{table}", table)
            for table in UPDATABLE
            for column in UPDATABLE[table]
        ),
        *(("EXECUTE", f"FUNCTION stackmgr.{function}", function) for function in FUNCTIONS),
    ]
)


@pytest.mark.parametrize(("privilege", "of", "name"), GRANTED)
def test_the_check_of_readiness_names_each_right_that_the_application_role_lacks(admin, privilege, of, name):
    with admin.transaction(force_rollback=True):
        admin.execute(f"REVOKE {privilege} ON {of} FROM stackmgr_app".encode())
        [(_, _, missing)] = admin.execute(statements.load("readiness").text)
    assert missing == f"{privilege.partition(' ')[0]} ON stackmgr.{name}"


def test_a_trigger_function_needs_no_right(admin):
    """partition.sql has two, for as long as it copies."""
    with admin.transaction(force_rollback=True):
        admin.execute(
            b"CREATE FUNCTION stackmgr.copy() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;"
            b"REVOKE EXECUTE ON FUNCTION stackmgr.copy FROM PUBLIC"
        )
        [(_, _, missing)] = admin.execute(statements.load("readiness").text)
    assert missing is None


def test_no_table_is_without_its_attempts(admin):
    found = admin.execute(b"SELECT tablename FROM pg_tables WHERE schemaname = 'stackmgr'").fetchall()
    assert {table for (table,) in found} == TABLES.keys()


def test_public_has_no_rights(admin):
    assert rights_of(None, admin) == set()


def test_everything_belongs_to_the_owner_role(admin):
    assert {owner for _, owner, _, _ in admin.execute(OBJECTS)} == {"stackmgr_owner"}


def rights_of(role: str | None, admin: psycopg.Connection) -> set[tuple[str, str]]:
    """Return the rights granted to *role*, or to PUBLIC: names of objects and what may be done with each."""
    rows = admin.execute(OBJECTS).fetchall()
    return {(name, right) for name, _, grantee, right in rows if grantee == role and right is not None}
