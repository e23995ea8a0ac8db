"""The check of a database before the service starts."""

from datetime import datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate import migrations, preflight
from tests.support.clusters import cluster, new_database
from tests.support.server import free_port


def damage(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command.encode())


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ("", "superuser"),
        ("-c default_transaction_read_only=on", "accepts no writes"),
        ("-c pgaudit.log_parameter=on", "logs parameters"),
        ("-c auto_explain.log_parameter_max_length=-1", "logs parameters"),
    ],
    ids=["a superuser", "a server that takes no writes", "pgaudit", "auto_explain"],
)
def test_what_the_service_can_do_without_is_a_warning(own_url, options, warning):
    findings = preflight.examine(make_conninfo(own_url, options=options))
    assert any(warning in found for found in findings.warnings)


def test_unencrypted_connection_is_a_warning():
    """Another address of this machine is one."""
    with cluster(None, "listen_addresses=127.0.0.2,127.0.0.1", f"port={free_port()}") as url:
        for host, is_named in (("127.0.0.2", True), ("127.0.0.1", False), (None, False)):
            findings = preflight.examine(make_conninfo(url, **({"host": host} if host else {})))
            assert findings.reachable
            assert any("not encrypted" in warning for warning in findings.warnings) == is_named


def test_unreachable_database_is_a_warning():
    findings = preflight.examine("postgresql://somebody:hush@127.0.0.1:1/x")
    assert (findings.problems, findings.reachable) == ([], False)
    assert "hush" not in str(findings.warnings)


def test_each_migration_that_is_missing_is_named(own_url):
    damage(own_url, "DELETE FROM stackmgr.schema_migrations WHERE version >= 2")
    problems = preflight.examine(own_url).problems
    assert len(problems) == len(migrations.available()) - 1
    assert str(migrations.available()[1]) in problems[0]


def test_other_checksum_is_named(own_url):
    damage(own_url, "UPDATE stackmgr.schema_migrations SET checksum = sha256('another') WHERE version = 2")
    [problem] = preflight.examine(own_url).problems
    assert f"{migrations.available()[1]} differs" in problem


def test_newer_schema_is_a_warning(own_url):
    later = """
    INSERT INTO stackmgr.schema_migrations (version, slug, checksum)
    VALUES (9000, 'later', sha256('later'))
    """
    damage(own_url, later)
    findings = preflight.examine(own_url)
    assert findings.problems == []
    assert any("9000" in warning for warning in findings.warnings)


def test_skipped_foreign_keys_are_a_problem(own_url):
    replica = make_conninfo(own_url, options="-c session_replication_role=replica")
    assert any("foreign keys" in problem for problem in preflight.examine(replica).problems)


@pytest.mark.parametrize(("encoding", "expected"), [("UTF8", "stackmgr migrate"), ("SQL_ASCII", "UTF8")])
def test_empty_database_is_a_problem(server_url, encoding, expected):
    with new_database(server_url, encoding=encoding) as url:
        assert any(expected in problem for problem in preflight.examine(url).problems)


@pytest.mark.parametrize(("seconds", "is_reported"), [(-8, True), (0, False), (6, True)])
def test_a_clock_that_differs_is_a_warning(own_url, monkeypatch, seconds, is_reported):
    clock = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=seconds))
    monkeypatch.setattr(preflight, "datetime", clock)
    warnings = preflight.examine(own_url).warnings
    assert any("more than 5 seconds" in warning for warning in warnings) == is_reported


def test_catalog_is_that_of_the_migrations(own_url):
    """Otherwise write it again, in the schema of a new database.

    PGOPTIONS='-c search_path=pg_catalog -c TimeZone=UTC' \\
        psql -XAtq -F "$(printf '\\t')" -f sql/catalog.sql | cut -f -2 >sql/catalog.tsv
    """
    options = "-c search_path=pg_catalog -c TimeZone=UTC"
    with psycopg.connect(own_url, options=options) as connection:
        rows = connection.execute(statements.load("catalog").text).fetchall()
    saved = (paths.directory("sql") / "catalog.tsv").read_text(encoding="utf-8")
    assert "".join(f"{name}\t{definition}\n" for name, definition, _ in rows) == saved


# Its parameters depend on the release.
FORBID_MESSAGES = """
DO $$ DECLARE found regprocedure; BEGIN
    FOR found IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found);
    END LOOP;
END $$
"""
DROP_REVISIONS = """
CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER careless BEFORE INSERT ON stack_revisions FOR EACH ROW EXECUTE FUNCTION public.nothing();
"""
OTHER_AGE = """
CREATE OR REPLACE VIEW receipt_age AS SELECT manager_id AS external_id, manager_id, stack_id, created_at,
    now() - now() AS age, 0 AS idempotency_key_bytes FROM stacks
"""
CHECK_OF_A_PARTITION = """
ALTER TABLE stack_revisions RENAME TO whole;
CREATE TABLE stack_revisions (LIKE whole INCLUDING ALL) PARTITION BY HASH (manager_id);
GRANT INSERT ON stack_revisions TO stackmgr_app;
CREATE TABLE half PARTITION OF stack_revisions FOR VALUES WITH (MODULUS 2, REMAINDER 0);
ALTER TABLE half ADD CONSTRAINT of_half CHECK (length(name) < 9);
"""
KEY_STATE = "api_key_state(revoked_at timestamptz, expires_at timestamptz) RETURNS text STABLE RETURN 'valid'"
NO_NAME_IS_BLANK = "name_is_blank(name text) RETURNS boolean IMMUTABLE RETURN false"
SECURED = "ALTER TABLE stacks ENABLE ROW LEVEL SECURITY"
REVISIONS, STACKS = "relation stackmgr.stack_revisions", "relation stackmgr.stacks"
# Objects in another form or missing, then those that the release does not have; what each problem says.
DAMAGES = {
    "ALTER TABLE creation_receipts DROP CONSTRAINT creation_receipts_pkey": "creation_receipts_pkey: missing",
    SECURED: "lacks POLICY ON stackmgr.stacks, whose row security is enabled",
    f"{SECURED}; CREATE POLICY every ON stacks USING (true)": f"{STACKS}: owner stackmgr_owner, row security",
    "DROP TABLE manager_rebindings": "relation stackmgr.manager_rebindings: missing",
    "ALTER DOMAIN preset DROP CONSTRAINT preset_is_known": "constraint preset_is_known: missing",
    "ALTER DOMAIN preset SET NOT NULL": "type stackmgr.preset: owner stackmgr_owner, text NOT NULL",
    "ALTER TABLE stacks OWNER TO postgres": f"{STACKS}: owner postgres",
    "ALTER TABLE stacks DISABLE TRIGGER ALL": "disabled triggers",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'stacks_page'::regclass": "(invalid)",
    FORBID_MESSAGES: "stackmgr_app may not execute it",
    f"CREATE OR REPLACE FUNCTION {KEY_STATE}": "function stackmgr.api_key_state(",
    f"CREATE OR REPLACE FUNCTION {NO_NAME_IS_BLANK}": "function stackmgr.name_is_blank(text): ",
    "ALTER FUNCTION allocation_is_normalised RESET search_path": "function stackmgr.allocation_is_normalised",
    "ALTER FUNCTION caller SECURITY DEFINER": "function stackmgr.caller(",
    OTHER_AGE: "relation stackmgr.receipt_age: owner stackmgr_owner, view ",
    "ALTER TABLE creation_receipts SET UNLOGGED": "creation_receipts: owner stackmgr_owner, unlogged",
    "ALTER TABLE stacks ALTER manager_id RESET (n_distinct)": "column manager_id: uuid NOT NULL; the ",
    "ALTER TABLE stacks ALTER name SET STORAGE PLAIN": "STORAGE p",
    "ALTER TABLE stacks REPLICA IDENTITY NOTHING": "no replica identity",
    "GRANT DELETE ON stacks TO PUBLIC": f"{STACKS}: privileges of public: DELETE",
    "GRANT DELETE ON stacks TO stackmgr_app": f"{STACKS}: privileges of stackmgr_app: DELETE, INSERT (",
    "GRANT pg_write_all_data TO stackmgr_app": f"{STACKS}: privileges of stackmgr_app: DELETE, INSERT, S",
    "REVOKE SELECT ON stacks FROM stackmgr_reader": "privileges of stackmgr_reader: missing",
    "CREATE TABLE public.more () INHERITS (stacks)": f"{STACKS}: owner stackmgr_owner, inherited",
    DROP_REVISIONS: f"{REVISIONS}: trigger careless: CREATE TRIGGER",
    "CREATE RULE lost AS ON INSERT TO stack_revisions DO INSTEAD NOTHING": f"{REVISIONS}: rule lost: CREATE",
    "CREATE UNIQUE INDEX ON stacks (manager_id, name)": f"{STACKS}: index stacks_manager_id_name_idx: CREATE",
    "CREATE INDEX ON stacks (name)": f"{STACKS}: index stacks_name_idx: CREATE",
    "ALTER TABLE stacks ADD CONSTRAINT short CHECK (length(name) < 9)": f"{STACKS}: constraint short: CHECK",
    CHECK_OF_A_PARTITION: f"{REVISIONS}: constraint of_half: CHECK",
    "ALTER TABLE stacks ADD COLUMN note text NOT NULL": f"{STACKS}: column note: text NOT NULL",
    "CREATE TABLE public.notes (a uuid, b uuid, FOREIGN KEY (a, b) REFERENCES stacks)": "reference by notes",
}


@pytest.mark.parametrize(("command", "expected"), DAMAGES.items(), ids=DAMAGES.values())
def test_what_may_change_or_reject_a_write_is_a_problem(own_url, command, expected):
    assert preflight.examine(own_url, compares_catalog=True).problems == []
    damage(own_url, f"SET search_path = stackmgr, pg_catalog; {command}")
    try:
        problems = preflight.examine(own_url, compares_catalog=True).problems
    finally:
        damage(own_url, "REVOKE pg_write_all_data FROM stackmgr_app")  # which is the cluster's
    assert any(expected in problem for problem in problems), problems


def test_what_a_dba_adds_or_sets_is_a_warning(own_url):
    additions = """
    ALTER TABLE stackmgr.stacks SET (fillfactor = 70), ADD COLUMN note text;
    CREATE INDEX ON stackmgr.stack_revisions (request_id);
    CREATE TABLE stackmgr.notes (id integer PRIMARY KEY CHECK (id > 0));
    CREATE FUNCTION stackmgr.dba_two() RETURNS integer RETURN 2;
    CREATE AGGREGATE stackmgr.total(integer) (sfunc = int4pl, stype = integer);
    CREATE FUNCTION stackmgr.of_an_extension() RETURNS integer RETURN 3;
    ALTER EXTENSION plpgsql ADD FUNCTION stackmgr.of_an_extension();
    """
    damage(own_url, additions)
    findings = preflight.examine(own_url, compares_catalog=True)
    assert findings.problems == []
    differences = [warning for warning in findings.warnings if "differs from the release's" in warning]
    assert [": ".join(warning.split(": ")[1:-2]) for warning in differences] == [
        "function stackmgr.dba_two()",
        "function stackmgr.total(integer)",
        "relation stackmgr.notes",
        f"{REVISIONS}: index stack_revisions_request_id_idx",
        "relation stackmgr.stacks: column note",
        "relation stackmgr.stacks: settings",
    ]


RIGHTS = "EXECUTE ON stackmgr.name_is_blank, INSERT ON stackmgr.stacks"


@pytest.mark.parametrize(
    ("rights", "found"),
    [
        (RIGHTS, f"stackmgr_app lacks {RIGHTS}"),
        ("USAGE ON SCHEMA stackmgr", "permission denied for schema stackmgr"),
    ],
    ids=["to objects", "to the schema"],
)
def test_lost_right_is_named_and_restored(own_url, rights, found):
    for right in rights.replace("EXECUTE ON", "EXECUTE ON FUNCTION").split(", "):
        damage(own_url, f"REVOKE {right} FROM stackmgr_app")
    assert preflight.examine(own_url).problems == [f"{found}: run 'stackmgr migrate'"]
    reported: list[str] = []
    assert migrations.apply(own_url, report=reported.append) == []
    assert reported == [f"stackmgr_app lacked {rights}: it is granted again"]
    assert preflight.examine(own_url).problems == []


OVERLOADS = """
DO $$ DECLARE found name; BEGIN
    FOR found IN SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'stackmgr'::regnamespace LOOP
        EXECUTE format('CREATE FUNCTION stackmgr.%I(text, text, text) RETURNS text RETURN 1', found);
    END LOOP;
END $$
"""
LATER = """
SET LOCAL ROLE stackmgr_owner;
DROP FUNCTION stackmgr.update_stack(uuid, uuid, uuid, text, text, text, text, text, text);
GRANT SELECT ON stackmgr.manager_holds TO stackmgr_app;
REVOKE SELECT ON stackmgr.manager_holds FROM stackmgr_app;
"""


def test_later_release_keeps_its_own_rights(own_url, add):
    damage(own_url, OVERLOADS)
    add(later=LATER)
    migrations.apply(own_url)
    damage(own_url, "REVOKE ALL ON ALL TABLES IN SCHEMA stackmgr FROM stackmgr_app")
    migrations.apply(own_url)
    assert preflight.examine(own_url).problems == []
    with psycopg.connect(own_url) as connection:
        query = b"SELECT has_table_privilege('stackmgr_app', 'stackmgr.manager_holds', 'SELECT')"
        assert connection.execute(query).fetchone() == (False,)


def test_a_right_that_cannot_be_restored_is_an_error(own_url):
    damage(own_url, "ALTER TABLE stackmgr.managers OWNER TO postgres")
    damage(own_url, "GRANT SELECT ON stackmgr.managers TO stackmgr_owner WITH GRANT OPTION")
    damage(own_url, "REVOKE INSERT ON stackmgr.managers FROM stackmgr_app")
    reported: list[str] = []
    with pytest.raises(CommandError, match=r"still lacks INSERT ON stackmgr\.managers"):
        migrations.apply(own_url, report=reported.append)
    assert reported == []


def test_login_may_have_no_right_to_connect(own_url):
    name = conninfo_to_dict(own_url)["dbname"]
    damage(own_url, f'REVOKE CONNECT ON DATABASE "{name}" FROM PUBLIC')
    damage(own_url, 'CREATE ROLE "without connect" LOGIN')
    try:
        [problem] = preflight.examine(make_conninfo(own_url, user="without connect")).problems
    finally:
        damage(own_url, 'DROP ROLE "without connect"')
    assert "permission denied for database" in problem
