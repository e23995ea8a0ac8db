"""The check of a database before the service starts."""

from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate import migrations, preflight
from tests.support.clusters import accepts, cluster
from tests.support.server import free_port
from tests.support.waiting import eventually


def damage(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command.encode())


LOG_PARAMETERS = ("-c pgaudit.log_parameter=on", "-c auto_explain.log_parameter_max_length=-1")
MISSING = f"migration {migrations.available()[1]} is not applied: run"
CHANGED = "UPDATE stackmgr.schema_migrations SET checksum = sha256('another') WHERE version = 2"
RIGHTS = "EXECUTE ON stackmgr.name_is_blank, INSERT ON stackmgr.stacks"
LATER_VERSION = """
INSERT INTO stackmgr.schema_migrations VALUES (8999, 'late', sha256('1')), (9000, 'later', sha256('2'));
ALTER TABLE stackmgr.stacks ADD CHECK (revision_number < 9)
"""


@pytest.mark.parametrize(("options", "command", "problem", "warning"), [
    ("", "SELECT", "", "superuser"),
    ("-c role=stackmgr_app", "SELECT", "", "superuser"),
    ("-c default_transaction_read_only=on", "SELECT", "", "accepts no writes"),
    *((options, "SELECT", "", "log gets parameters") for options in LOG_PARAMETERS),
    ("-c session_replication_role=replica", "SELECT", "foreign keys", ""),
    ("", "DELETE FROM stackmgr.schema_migrations WHERE version >= 2", MISSING, ""),
    ("", CHANGED, f"migration {migrations.available()[1]} is not the one", ""),
    ("", LATER_VERSION, "", "9000"),
], ids=["login", "role", "reads", "pgaudit", "plans", "replica", "missing", "checksum", "newer"])  # fmt: skip
def test_what_stops_a_start_is_a_problem(own_url, options, command, problem, warning):
    damage(own_url, command)
    for thorough in (False, True):
        found = preflight.examine(make_conninfo(own_url, options=options), thorough=thorough)
        assert problem in "".join(found.problems[:1])
        assert bool(found.problems) == bool(problem)
        assert any(warning in each for each in found.warnings)
    if problem == MISSING:
        assert len(found.problems) == len(migrations.available()) - 1


SERVER = ("listen_addresses=127.0.0.2,127.0.0.1", "full_page_writes=off", "fsync=off", "autovacuum=off",
    "max_connections=20", "superuser_reserved_connections=13", "reserved_connections=2")  # fmt: skip


def test_what_a_server_is_started_with_is_said():
    """Another address of this machine is another host."""
    with cluster(None, *SERVER, f"port={free_port()}") as url:
        for host, connections in (("127.0.0.2", 6), ("127.0.0.1", 5), ("", 0)):
            chosen = make_conninfo(url, **({"host": host} if host else {}))
            found = preflight.examine(chosen, connections=connections)
            said = " ".join(found.warnings)
            assert found.problems[0].startswith("fsync is off on the server: ")
            assert found.problems[1].startswith("full_page_writes is off on the server: ")
            assert "slow requests down: autovacuum = off" in said
            assert ("is not encrypted" in said, "the login may have 5:" in said) == (connections == 6,) * 2
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(b"CREATE ROLE locked LOGIN PASSWORD 'right'")
            hba = Path(admin.execute(b"SHOW hba_file").fetchone()[0])
            hba.write_text(f"host all locked all scram-sha-256\n{hba.read_text()}")
            admin.execute(b"SELECT pg_reload_conf()")
        locked = make_conninfo(url, host="127.0.0.1", user="locked")
        eventually(lambda: not accepts(locked))
        for given in ({}, {"password": "wrong"}):
            found = preflight.examine(make_conninfo(locked, **given))
            assert found.reachable
            assert found.problems[0].startswith("the database rejects the login of STACKMGR_DATABASE_URL: ")


@pytest.mark.parametrize(("seconds", "is_reported"), [(-8, True), (0, False), (6, True)])
def test_a_clock_that_differs_is_a_warning(own_url, monkeypatch, seconds, is_reported):
    clock = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=seconds))
    monkeypatch.setattr(preflight, "datetime", clock)
    limits = []
    monkeypatch.setattr(preflight, "time_limit", lambda seconds: limits.append(seconds) or nullcontext())
    for thorough in (False, True):
        warnings = preflight.examine(own_url, thorough=thorough).warnings
        assert any("more than 5 seconds" in warning for warning in warnings) == is_reported
    assert limits == [5.0, 30.0]  # a start waits for it


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


@pytest.mark.parametrize(("rights", "found"), [
    (RIGHTS, f"stackmgr_app lacks {RIGHTS}"),
    ("USAGE ON SCHEMA stackmgr", "permission denied for schema stackmgr"),
], ids=["to objects", "to the schema"])  # fmt: skip
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
CREATE TABLE stackmgr.short (a integer, b integer); GRANT SELECT (b) ON stackmgr.short TO stackmgr_app;
CREATE TABLE stackmgr.gone (a integer); GRANT SELECT ON stackmgr.gone TO stackmgr_app;
ALTER TABLE stackmgr.short DROP COLUMN b; DROP TABLE stackmgr.gone;
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


@pytest.mark.parametrize(("role", "attributes", "is_rejected"), [
    ("no right to connect", "LOGIN", True), ("no login", "NOLOGIN SUPERUSER", True),
    ("permission denied for database", "LOGIN CONNECTION LIMIT 0", False),
])  # fmt: skip
def test_a_rejected_login_is_known_by_its_sqlstate(own_url, role, attributes, is_rejected):
    """Not by the words of its message, which contain the role's name, and which a server translates."""
    damage(own_url, f'REVOKE CONNECT ON DATABASE "{conninfo_to_dict(own_url)["dbname"]}" FROM PUBLIC')
    damage(own_url, f'CREATE ROLE "{role}" {attributes}')
    try:
        found = preflight.examine(make_conninfo(own_url, user=role))
    finally:
        damage(own_url, f'DROP ROLE "{role}"')
    assert (found.reachable, bool(found.problems)) == (is_rejected, is_rejected), found
