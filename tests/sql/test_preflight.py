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


LOG_PARAMETERS = ("-c pgaudit.log_parameter=on", "-c auto_explain.log_parameter_max_length=-1")
MISSING = f"migration {migrations.available()[1]} is not applied: run"
CHANGED = "UPDATE stackmgr.schema_migrations SET checksum = sha256('another') WHERE version = 2"
LATER_VERSION = "INSERT INTO stackmgr.schema_migrations VALUES (9000, 'later', sha256('later'))"


@pytest.mark.parametrize(
    ("options", "command", "problem", "warning"),
    [
        ("", "SELECT", "", "superuser"),
        ("-c default_transaction_read_only=on", "SELECT", "", "accepts no writes"),
        *((options, "SELECT", "", "log gets parameters") for options in LOG_PARAMETERS),
        ("-c session_replication_role=replica", "SELECT", "foreign keys", ""),
        ("", "DELETE FROM stackmgr.schema_migrations WHERE version >= 2", MISSING, ""),
        ("", CHANGED, f"migration {migrations.available()[1]} is not the one", ""),
        ("", LATER_VERSION, "", "9000"),
    ],
    ids=["superuser", "reads", "pgaudit", "auto_explain", "replica", "missing", "checksum", "newer"],
)
def test_what_stops_a_start_is_a_problem(own_url, options, command, problem, warning):
    damage(own_url, command)
    found = preflight.examine(make_conninfo(own_url, options=options))
    assert problem in "".join(found.problems[:1])
    assert bool(found.problems) == bool(problem)
    assert any(warning in each for each in found.warnings)
    if problem == MISSING:
        assert len(found.problems) == len(migrations.available()) - 1


def test_unencrypted_connection_is_a_warning():
    """Another address of this machine is one."""
    with cluster(None, "listen_addresses=127.0.0.2,127.0.0.1", f"port={free_port()}") as url:
        for host, is_named in (("127.0.0.2", True), ("127.0.0.1", False), (None, False)):
            findings = preflight.examine(make_conninfo(url, **({"host": host} if host else {})))
            assert findings.reachable
            assert any("not encrypted" in warning for warning in findings.warnings) == is_named


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


@pytest.mark.parametrize(
    ("role", "attributes", "is_rejected"),
    [
        ("no right to connect", "LOGIN", True),
        ("no login", "NOLOGIN SUPERUSER", True),
        ("permission denied for database", "LOGIN CONNECTION LIMIT 0", False),
    ],
)
def test_a_rejected_login_is_known_by_its_sqlstate(own_url, role, attributes, is_rejected):
    """Not by the words of its message, which contain the role's name, and which a server translates."""
    damage(own_url, f'REVOKE CONNECT ON DATABASE "{conninfo_to_dict(own_url)["dbname"]}" FROM PUBLIC')
    damage(own_url, f'CREATE ROLE "{role}" {attributes}')
    try:
        found = preflight.examine(make_conninfo(own_url, user=role))
    finally:
        damage(own_url, f'DROP ROLE "{role}"')
    assert (found.reachable, bool(found.problems)) == (is_rejected, is_rejected), found
