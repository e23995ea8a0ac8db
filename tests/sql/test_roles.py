"""Who may do what in the schema: the application role no more than it needs, PUBLIC nothing."""

import re

import psycopg
import pytest

from stackmgr.database import statements

# What the application role may read, insert and update.  The server's clock sets created_at.
READABLE = {
    *("schema_migrations", "managers", "stacks", "creation_receipts"),
    *("api_keys", "api_key_quota_slots", "api_key_quota_queues"),
}
INSERTABLE = {
    "managers": {"manager_id", "external_id", "identity_id"},
    "stacks": {*("manager_id", "stack_id", "revision_id", "revision_number", "name", "allocation", "preset")},
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
# The object, what may be done with it, and the column if that is one of a column.
NEEDED = sorted(
    [
        *((table, "SELECT", "") for table in READABLE),
        *((table, "INSERT", column) for table, columns in INSERTABLE.items() for column in columns),
        *((table, "UPDATE", column) for table, columns in UPDATABLE.items() for column in columns),
        *((function, "EXECUTE", "") for function in FUNCTIONS),
    ]
)


@pytest.mark.parametrize("command", ["CREATE TABLE public.another (id uuid)", "SET ROLE stackmgr_owner"])
def test_the_application_role_cannot_bypass_its_rights(admin, command):
    with admin.transaction(force_rollback=True):
        admin.execute("SET LOCAL SESSION AUTHORIZATION stackmgr_app")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(command.encode())


def test_the_service_has_exactly_the_rights_it_needs_the_reader_reads_and_public_has_none(admin):
    admin.execute("SET search_path = pg_catalog")
    found = set()
    for name, definition, _ in admin.execute(statements.load("catalog").text):
        assert "owner" not in definition or "owner stackmgr_owner" in definition
        object_name, _, role = name.partition(": privileges of ")
        assert role in ("", "stackmgr_app", "stackmgr_reader")
        assert role != "stackmgr_reader" or not re.search("INSERT|UPDATE|DELETE|TRUNC|key_digest", definition)
        if role == "stackmgr_app":
            object_name = re.sub(r"^\w+ (stackmgr\.)?|\(.*", "", object_name)
            for verb, columns in re.findall(r"([A-Z]+)(?: \(([^)]*)\))?", definition):
                found |= {(object_name, verb, column) for column in columns.split(", ")}
    assert found == {*NEEDED, ("stackmgr", "USAGE", "")}


@pytest.mark.parametrize(("name", "verb", "column"), NEEDED)
def test_the_check_of_readiness_names_each_right_that_the_application_role_lacks(admin, name, verb, column):
    privilege = f"{verb} ({column})" if column else verb
    kind = "FUNCTION" if name in FUNCTIONS else "TABLE"
    with admin.transaction(force_rollback=True):
        admin.execute(f"REVOKE {privilege} ON {kind} stackmgr.{name} FROM stackmgr_app".encode())
        [(_, _, missing)] = admin.execute(statements.load("readiness").text)
    assert missing == f"{verb} ON stackmgr.{name}"


def test_the_check_of_readiness_names_a_table_whose_row_security_hides_every_row(admin):
    policy = b"CREATE POLICY test ON stackmgr.stacks TO %s USING (true)"
    hidden = "POLICY ON stackmgr.stacks, whose row security is enabled"
    for others, missing in (
        ([], hidden),
        ([policy % b"stackmgr_reader"], hidden),
        ([policy % b"PUBLIC"], None),
    ):
        with admin.transaction(force_rollback=True):
            for statement in (b"ALTER TABLE stackmgr.stacks ENABLE ROW LEVEL SECURITY", *others):
                admin.execute(statement)
            admin.execute(b"SET LOCAL ROLE stackmgr_app")
            assert admin.execute(statements.load("readiness").text).fetchone()[-1] == missing


def test_a_function_that_somebody_else_adds_needs_no_right(admin):
    with admin.transaction(force_rollback=True):
        admin.execute(b"CREATE FUNCTION stackmgr.dba_two() RETURNS integer RETURN 2")
        admin.execute(b"REVOKE EXECUTE ON FUNCTION stackmgr.dba_two FROM PUBLIC")
        [(_, _, missing)] = admin.execute(statements.load("readiness").text)
    assert missing is None
