"""What `stackmgr check` finds in a database, as the service's login: on a copy of its own, damaged first."""

import time
from collections.abc import Iterator
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr.operate import migrations, preflight
from tests.support.clusters import new_database
from tests.support.waiting import eventually

LOGIN, OTHER = "checked_login", "other_login"
LOGINS = f"CREATE ROLE {LOGIN} LOGIN NOINHERIT IN ROLE stackmgr_app; CREATE ROLE {OTHER} LOGIN"
# Roles belong to the cluster.
RESET = f"""
ALTER ROLE stackmgr_owner NOLOGIN NOSUPERUSER; ALTER ROLE stackmgr_app NOCREATEDB;
REVOKE pg_write_all_data, pg_execute_server_program FROM stackmgr_app, stackmgr_owner, {LOGIN};
DROP ROLE {LOGIN}, {OTHER}
"""


@pytest.fixture(scope="module")
def template(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(b"REVOKE ALL ON DATABASE %s FROM PUBLIC" % conninfo_to_dict(url)["dbname"].encode())
        yield conninfo_to_dict(url)["dbname"]


@pytest.fixture
def check(server_url: str, template: str) -> Iterator:
    with new_database(server_url, template=template) as url, psycopg.connect(url, autocommit=True) as admin:
        name = conninfo_to_dict(url)["dbname"]

        def check(command: str, user: str | None = LOGIN) -> preflight.Findings:
            admin.execute(b"SET search_path = stackmgr, pg_catalog")
            admin.execute(command.replace("DATABASE this", f"DATABASE {name}").encode())
            chosen = make_conninfo(url, **({"user": user} if user else {}))
            return preflight.examine(chosen, connections=8, thorough=True)

        admin.execute(LOGINS.encode())
        admin.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC".encode())
        admin.execute(f"GRANT CONNECT ON DATABASE {name} TO {LOGIN}".encode())
        try:
            yield check
        finally:
            admin.execute(f"DROP OWNED BY {LOGIN}, {OTHER}".encode())
            admin.execute(RESET.encode())


def refuse(table, time="BEFORE INSERT", kind="TRIGGER", body="RAISE 'refused'") -> str:
    deferred = "DEFERRABLE INITIALLY DEFERRED" if "CONSTRAINT" in kind else ""
    return f"""
    CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$;
    CREATE {kind} theirs {time} ON {table} {deferred} FOR EACH ROW EXECUTE FUNCTION public.theirs()
    """


def revoked(function: str) -> str:
    return f"REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC"


# Its parameters depend on the release.
NO_MESSAGES = """
DO $$ DECLARE found regprocedure; BEGIN
    FOR found IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found);
    END LOOP;
END $$
"""
FOREIGN_PARENT = """
CREATE TABLE public.parent (LIKE stacks) PARTITION BY RANGE (revision_number);
ALTER TABLE public.parent ATTACH PARTITION stacks FOR VALUES FROM (5) TO (9);
"""
NO_NEXT = "CREATE SEQUENCE public.next; ALTER TABLE stacks ADD COLUMN n bigint DEFAULT nextval('public.next')"
CONDITION = "GENERATED ALWAYS AS (1 / (octet_length(name) - 60000)) STORED"
# The sentence that each write is rejected, or has another result.
WRITES = {
    "CREATE PUBLICATION theirs FOR TABLE stacks WHERE (revision_number > 0)": "in stack_update (42P10)",
    "CREATE PUBLICATION theirs FOR TABLE api_keys (key_id)": "in api_key_use_record (42P10)",
    "CREATE PUBLICATION theirs FOR TABLE stacks (manager_id, name)": "in stack_update (42P10)",
    "ALTER TABLE stacks ALTER revision_number ADD GENERATED ALWAYS AS IDENTITY": "in stack_create (428C9)",
    refuse("stacks"): "in stack_create (P0001): refused", refuse("managers"): "in manager_insert (P0001)",
    refuse("stacks", "AFTER UPDATE"): "in stack_update (P0001)",
    refuse("stacks", "AFTER INSERT", "CONSTRAINT TRIGGER"): "in the commit of a write (P0001)",
    refuse("stacks", body="RETURN NULL"): "in stack_create (23503)",
    FOREIGN_PARENT: "in stack_create (23514)",
    revoked("now()"): "in api_key_verify (42501)", revoked("octet_length(text)"): "in stack_list (42501)",
    revoked("btrim(text,text)"): "in stack_create (42501): permission denied for function",
    NO_MESSAGES: "in receipt_find (42501)",
    NO_NEXT: "in stack_create (42501): permission denied for sequence next",
    "CREATE INDEX ON stacks (name)": "in stack_create (54000)",
    "CREATE INDEX ON creation_receipts (manager_id, idempotency_key, stack_id)": "in stack_create (54000)",
    "CREATE INDEX ON stacks ((1 / (octet_length(name) - 60000)))": "in stack_create (22012)",
    f"ALTER TABLE stacks ADD COLUMN note integer {CONDITION}": "in stack_create (22012)",
    "ALTER TABLE stack_revisions ADD COLUMN note text NOT NULL": "in stack_create (23502)",
    "ALTER TABLE stacks ADD EXCLUDE (preset WITH =)": "constraint stacks_preset_excl: EXCLUDE",
    "REVOKE USAGE ON SCHEMA stackmgr FROM stackmgr_app": "permission denied for schema stackmgr",
}  # fmt: skip
KEY_STATE = "api_key_state(revoked_at timestamptz, expires_at timestamptz) RETURNS text STABLE RETURN 'valid'"
NO_NAME_IS_BLANK = "name_is_blank(name text) RETURNS boolean IMMUTABLE RETURN false"
SECURED = "ALTER TABLE stacks ENABLE ROW LEVEL SECURITY"
POLICIES_OF_OTHERS = """
CREATE TABLE public.stacks (); CREATE POLICY every ON public.stacks; CREATE POLICY every ON managers
"""
REVISIONS, STACKS = "relation stackmgr.stack_revisions", "relation stackmgr.stacks"
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
# Objects in another form or missing, then those that the release does not have; what each problem says.
OBJECTS = {
    "ALTER TABLE creation_receipts DROP CONSTRAINT creation_receipts_pkey": "creation_receipts_pkey: missing",
    SECURED: "lacks POLICY ON stackmgr.stacks, whose row security is enabled",
    f"{SECURED}; CREATE POLICY every ON stacks TO stackmgr_reader USING (true)": "lacks POLICY ON",
    f"{SECURED}; CREATE POLICY every ON stacks AS RESTRICTIVE USING (true)": "lacks POLICY ON",
    f"{SECURED}; {POLICIES_OF_OTHERS}": "lacks POLICY ON stackmgr.stacks, whose row security",
    f"{SECURED}; CREATE POLICY every ON stacks TO PUBLIC USING (true)": "stackmgr_owner, row security",
    f"{SECURED}; CREATE POLICY every ON stacks TO stackmgr_app USING (true)": "_owner, row security",
    "DROP TABLE manager_rebindings": "relation stackmgr.manager_rebindings: missing",
    "ALTER DOMAIN preset DROP CONSTRAINT preset_is_known": "constraint preset_is_known: missing",
    "ALTER DOMAIN preset SET NOT NULL": "type stackmgr.preset: owner stackmgr_owner, text NOT NULL",
    "ALTER TABLE stacks OWNER TO postgres": f"{STACKS}: owner postgres",
    "ALTER TABLE stacks DISABLE TRIGGER ALL": "disabled triggers",
    "UPDATE pg_trigger SET tgenabled = 'R' WHERE tgrelid = 'stacks'::regclass": "disabled triggers",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'stacks_page'::regclass": "(invalid)",
    "DROP INDEX stacks_page": "index stacks_page: missing",
    f"CREATE OR REPLACE FUNCTION {KEY_STATE}": "function stackmgr.api_key_state(",
    f"CREATE OR REPLACE FUNCTION {NO_NAME_IS_BLANK}": "function stackmgr.name_is_blank(text): ",
    "ALTER FUNCTION allocation_is_normalised RESET search_path": "function stackmgr.allocation_is_normalised",
    "ALTER FUNCTION caller SECURITY DEFINER": "function stackmgr.caller(",
    OTHER_AGE: "relation stackmgr.receipt_age: owner stackmgr_owner, view ",
    "ALTER TABLE creation_receipts SET UNLOGGED": "creation_receipts: owner stackmgr_owner, unlogged",
    "ALTER TABLE stacks ALTER name SET STORAGE PLAIN": "STORAGE p",
    "ALTER TABLE stacks REPLICA IDENTITY NOTHING": "no replica identity",
    "CREATE TABLE public.more () INHERITS (stacks)": f"{STACKS}: owner stackmgr_owner, inherited",
    refuse("stack_revisions", body="RETURN NULL"): f"{REVISIONS}: trigger theirs: CREATE TRIGGER",
    "CREATE RULE lost AS ON INSERT TO stack_revisions DO INSTEAD NOTHING": f"{REVISIONS}: rule lost: CREATE",
    "CREATE UNIQUE INDEX ON stacks (manager_id, name)": f"{STACKS}: index stacks_manager_id_name_idx: CREATE",
    "ALTER TABLE stacks ADD CONSTRAINT short CHECK (length(name) < 9)": f"{STACKS}: constraint short: CHECK",
    CHECK_OF_A_PARTITION: f"{REVISIONS}: constraint of_half: CHECK",
    "CREATE TABLE public.notes (a uuid, b uuid, FOREIGN KEY (a, b) REFERENCES stacks)": "reference by notes",
}
BY_DEFAULT = "ALTER DEFAULT PRIVILEGES FOR ROLE stackmgr_owner"
FUNCTIONS = "default privileges of stackmgr_owner: EXECUTE on functions to PUBLIC;"
PRIVILEGES = {
    **{
        f"{BY_DEFAULT} {place} GRANT ALL ON {kind} TO {OTHER}": f" on {kind.lower()} to {OTHER};"
        for kind in ("TABLES", "SEQUENCES", "FUNCTIONS", "TYPES")
        for place in ("", "IN SCHEMA stackmgr")
    },
    f"{BY_DEFAULT} GRANT EXECUTE ON FUNCTIONS TO PUBLIC": FUNCTIONS,
    f"GRANT SELECT ON ALL TABLES IN SCHEMA stackmgr TO {OTHER}": f"api_keys: privileges of {OTHER}: SELECT;",
    f"GRANT SELECT (key_digest) ON api_keys TO {OTHER}": f"privileges of {OTHER}: SELECT (key_digest);",
    "GRANT SELECT (key_digest) ON api_keys TO stackmgr_reader": "reader: SELECT (created_at, expires_at, ",
    "GRANT SELECT ON stacks TO stackmgr_app WITH GRANT OPTION": "SELECT WITH GRANT OPTION, UPDATE (",
    "GRANT DELETE ON stacks TO PUBLIC": f"{STACKS}: privileges of PUBLIC: DELETE",
    "GRANT DELETE ON stacks TO stackmgr_app": f"{STACKS}: privileges of stackmgr_app: DELETE, INSERT (",
    "GRANT EXECUTE ON FUNCTION caller TO PUBLIC": "text,bytea): privileges of PUBLIC: EXECUTE;",
    "GRANT USAGE ON TYPE preset TO PUBLIC": "type stackmgr.preset: privileges of PUBLIC: USAGE;",
    f"GRANT USAGE ON SCHEMA stackmgr TO {OTHER}": f"schema stackmgr: privileges of {OTHER}: USAGE;",
    "GRANT CREATE ON SCHEMA stackmgr TO stackmgr_app": "stackmgr: privileges of stackmgr_app: CREATE, USAGE;",
    "GRANT TEMP ON DATABASE this TO PUBLIC": "privileges of PUBLIC on the database: TEMPORARY;",
    "GRANT CONNECT ON DATABASE this TO PUBLIC": "privileges of PUBLIC on the database: CONNECT;",
    f"GRANT CREATE ON DATABASE this TO {LOGIN}": f"privileges of {LOGIN} on the database: CREATE;",
    "REVOKE SELECT ON stacks FROM stackmgr_reader": "privileges of stackmgr_reader: missing",
    "REVOKE UPDATE ON stacks FROM stackmgr_owner": f"{STACKS}: privileges that its owner lacks: UPDATE;",
    "GRANT pg_write_all_data TO stackmgr_app": "membership of stackmgr_app in pg_write_all_data: granted",
    f"GRANT pg_execute_server_program TO {LOGIN}": "in pg_execute_server_program: granted",
    f"ALTER ROLE {LOGIN} INHERIT; GRANT pg_write_all_data TO {LOGIN}": "in pg_write_all_data: granted",
    f"ALTER ROLE {LOGIN} CREATEROLE": f"role {LOGIN}: CREATEROLE;",
    f"ALTER ROLE {LOGIN} REPLICATION": f"role {LOGIN}: REPLICATION;",
    f"ALTER ROLE {LOGIN} BYPASSRLS": f"role {LOGIN}: BYPASSRLS;",
    f"ALTER ROLE {OTHER} CREATEROLE; GRANT {OTHER} TO {LOGIN}": f"membership of {LOGIN} in {OTHER}: granted;",
    "ALTER ROLE stackmgr_owner SUPERUSER": "role stackmgr_owner: NOLOGIN, SUPERUSER; the release: NOLOGIN",
    "ALTER ROLE stackmgr_owner LOGIN": "role stackmgr_owner: LOGIN; the release: NOLOGIN",
    "ALTER ROLE stackmgr_app CREATEDB": "role stackmgr_app: NOLOGIN, CREATEDB; the release: NOLOGIN",
}
SETTINGS = {
    "ALTER DATABASE this SET zero_damaged_pages = on": "zero_damaged_pages or ignore_checksum_failure",
    "ALTER DATABASE this SET ignore_checksum_failure = on": "zero_damaged_pages or ignore_checksum_failure",
}
PROBLEMS = WRITES | OBJECTS | PRIVILEGES | SETTINGS


@pytest.mark.parametrize(("command", "expected"), PROBLEMS.items(), ids=PROBLEMS.values())
def test_what_changes_an_outcome_or_a_privilege_is_a_problem(check, command, expected):
    found = check(command)
    assert any(expected in problem for problem in found.problems), found


DBA_TWO = "CREATE FUNCTION dba_two() RETURNS integer RETURN 2"
SEQUENCE = "CREATE SEQUENCE next; GRANT USAGE ON next TO stackmgr_app"
OF_AN_EXTENSION = """
INSERT INTO pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
SELECT 'pg_proc'::regclass, 'dba_two'::regproc, 0, 'pg_extension'::regclass, oid, 0, 'e' FROM pg_extension
"""
UNRESTRICTED = "UPDATE pg_database SET datacl = NULL WHERE datname = current_database()"
HARMLESS = ("pg_monitor", "pg_read_all_settings", "pg_read_all_stats", "pg_stat_scan_tables")
SLOW = ("enable_indexonlyscan", "enable_indexscan", "track_counts")
LOGGED = ("log_statement = 'all'", "log_statement = 'mod'", "log_min_duration_statement = 0",
    "log_min_duration_sample = 0", "log_parameter_max_length_on_error = 9")  # fmt: skip
# What each warning says, or None if there is nothing to say.
SAID = {
    "CREATE INDEX ON stacks (preset) WHERE preset = 'daily'": f"{STACKS}: index stacks_preset_idx",
    "CREATE INDEX ON stack_revisions (request_id)": f"{REVISIONS}: index stack_revisions_request_id_idx",
    "CREATE INDEX ON stacks USING hash (name)": f"{STACKS}: index stacks_name_idx",
    "CREATE INDEX ON stacks (lower(left(name, 20)))": f"{STACKS}: index stacks_lower_idx",
    "ALTER INDEX stacks_page SET (fillfactor = 70)": "stacks_page.fillfactor=70",
    "ALTER TABLE stacks ALTER manager_id SET (n_distinct = -0.5)": "manager_id.n_distinct=-0.5",
    "ALTER TABLE stacks ALTER manager_id RESET (n_distinct)": f"{STACKS}: settings",
    "ALTER TABLE stacks SET (fillfactor = 70)": f"{STACKS}: settings: fillfactor=70",
    "ALTER TABLE stacks ADD COLUMN note text DEFAULT 'none'": f"{STACKS}: column note",
    "CREATE TABLE notes (id integer PRIMARY KEY CHECK (id > 0))": "relation stackmgr.notes",
    f"{DBA_TWO}; REVOKE EXECUTE ON FUNCTION dba_two FROM PUBLIC": "function stackmgr.dba_two()",
    "CREATE AGGREGATE total(integer) (sfunc = int4pl, stype = integer)": "function stackmgr.total(integer)",
    f"GRANT stackmgr_owner TO {LOGIN}": "the login may assume stackmgr_owner",
    f"GRANT {OTHER} TO {LOGIN}": f"membership of {LOGIN} in {OTHER}",
    "ALTER DATABASE this SET commit_delay = 10000": "slow requests down: commit_delay = 10000",
    **{f"ALTER DATABASE this SET {each} = off": f"slow requests down: {each} = off" for each in SLOW},
    **{f"ALTER DATABASE this SET {each}": "the server's log gets parameters" for each in LOGGED},
    "ALTER DATABASE this SET log_statement = 'ddl'": None,
    f"ALTER ROLE {LOGIN} SET log_statement = mod; ALTER ROLE {LOGIN} SET log_parameter_max_length = 0": None,
    f"ALTER ROLE {LOGIN} CONNECTION LIMIT 3": "the login may have 3:",
    "ALTER DATABASE this CONNECTION LIMIT 4": "the login may have 4:",
    "CREATE PUBLICATION every FOR ALL TABLES": None,
    "CREATE STATISTICS public.both ON preset, revision_number FROM stacks": None,
    "ALTER TABLE stacks ALTER name SET STATISTICS 500": None,
    f"GRANT stackmgr_reader TO {OTHER}": None,
    f"{BY_DEFAULT} GRANT SELECT ON TABLES TO stackmgr_owner": None,
    f"{SEQUENCE}; ALTER TABLE stacks ADD COLUMN note bigint DEFAULT nextval('next')": "column note",
    **{f"GRANT {role} TO {LOGIN}": f"membership of {LOGIN} in {role}" for role in HARMLESS},
    f"{DBA_TWO}; {OF_AN_EXTENSION}": None,
    "CREATE AGGREGATE theirs (integer) (SFUNC = int4pl, STYPE = integer)": "stackmgr.theirs(integer)",
    f"REVOKE ALL ON DATABASE this FROM {LOGIN}; {UNRESTRICTED}": "on the database: CONNECT, TEMPORARY;",
}


@pytest.mark.parametrize(("command", "expected"), SAID.items(), ids=map(str, SAID))
def test_what_changes_neither_is_said_and_no_problem(check, command, expected):
    found = check(command)
    assert (found.problems, found.reachable) == ([], True)
    said = " | ".join(found.warnings)
    assert expected in said if expected else not said


def test_a_commit_that_no_standby_confirms_is_a_problem(bare_cluster_url):
    with new_database(bare_cluster_url) as url, psycopg.connect(url, autocommit=True) as admin:
        migrations.apply(url)
        assert preflight.examine(url, 1.0, thorough=True).problems == []
        try:
            admin.execute(b"ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            admin.execute(b"SELECT pg_reload_conf()")
            [problem] = preflight.examine(url, 1.0, thorough=True).problems
            waiting = b"SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            eventually(lambda: not admin.execute(waiting).fetchall())
        finally:
            admin.execute(b"ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute(b"SELECT pg_reload_conf()")
    assert problem.startswith("no commit is confirmed within 1 s (deadline): see synchronous_standby")


def test_a_session_that_ends_says_nothing_of_requests(check, monkeypatch):
    load = preflight.statements.load
    monkeypatch.setattr(preflight.statements, "load", lambda name: time.sleep(0.1) or load(name))
    found = check("ALTER DATABASE this SET idle_in_transaction_session_timeout = '20ms'")
    assert (found.problems, found.reachable) == ([], False)
    assert found.warnings[-1].startswith("the database could not be checked: ")


def test_nothing_of_the_check_is_left_and_a_session_without_its_settings_is_a_problem(check, monkeypatch):
    assert vars(check("SELECT")) == {"problems": [], "warnings": [], "reachable": True}
    counts = "SELECT count(*) FROM stacks UNION ALL SELECT count(*) FROM managers"
    assert vars(check(f"DO $$ BEGIN ASSERT 0 = ALL (ARRAY({counts})); END $$"))["problems"] == []
    lost = preflight.conninfo.SessionSettingsError("lost")
    monkeypatch.setattr(preflight.conninfo, "verify_settings", Mock(side_effect=lost))
    assert vars(check("SELECT")) == {"problems": ["lost"], "warnings": [], "reachable": True}
