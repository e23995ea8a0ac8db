"""What the runbook gives a DBA to run, as it is printed: roles, logins, dump, restore, checks."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.http.app import create_app
from stackmgr.operate import issued_keys, migrations, preflight
from stackmgr.operate.connection import operating
from tests.deploy.runbook import RUNBOOK, blocks
from tests.support.client import Client
from tests.support.clusters import cluster
from tests.support.examples import configuration
from tests.support.programs import require

ROOT = paths.directory("deploy").parent


@dataclass(frozen=True)
class Dba:
    """A superuser at a shell, in a folder with a copy of nothing but the way to deploy/."""

    url: str
    binaries: Path
    folder: Path

    def run(self, command: str) -> str:
        """Run a line of the runbook as it is printed and return what it prints."""
        host = conninfo_to_dict(self.url)["host"]
        ended = subprocess.run(
            ["/bin/sh", "-euc", command],
            cwd=self.folder,
            env={"PATH": f"{self.binaries}:{os.environ['PATH']}", "PGHOST": host, "PGUSER": "postgres"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def login(self, user: str, database: str = "stackmgr") -> str:
        return make_conninfo(self.url, user=user, dbname=database)


def printed(section: str) -> list[str]:
    """Return the lines of the commands in a section of the runbook."""
    return [line for block in blocks(section) for line in block.splitlines()]


def role_script() -> str:
    [line] = [line for line in printed("Installation") if line.endswith("roles.sql")]
    return line


@pytest.fixture(scope="module")
def dba(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dba]:
    """A cluster on which the roles were made, and the schema by the operator's login."""
    folder = tmp_path_factory.mktemp("dba")
    (folder / "deploy").symlink_to(ROOT / "deploy")
    with cluster(binaries) as url:
        dba = Dba(url, binaries, folder)
        make_roles = role_script()
        dba.run(make_roles)
        dba.run(make_roles)
        migrations.apply(dba.login("stackmgr_operator"))
        yield dba


def test_the_services_login_finds_all_it_needs_and_the_recommended_settings(dba):
    findings = preflight.examine(dba.login("stackmgr_service"))
    assert (findings.problems, findings.warnings, findings.reachable) == ([], [], True)
    recommended = {
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_error_verbosity": "terse",
        "server_encoding": "UTF8",
    }
    with psycopg.connect(dba.login("stackmgr_service")) as connection:
        run = connection.execute
        found = {name: run("SELECT current_setting(%s)", [name]).fetchone()[0] for name in recommended}
    assert found == recommended


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE stackmgr_owner",
        "SET ROLE stackmgr_operator",
        "SET ROLE stackmgr_reader",
        "CREATE SCHEMA other",
        "CREATE TABLE public.other ()",
        "CREATE TEMPORARY TABLE other ()",
        "CREATE ROLE other",
    ],
)
def test_the_services_login_has_no_right_beside_its_role(dba, statement):
    with (
        psycopg.connect(dba.login("stackmgr_service"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_an_analyst_made_by_roles_sql_reads_all_but_the_digests_of_keys(dba):
    [create] = re.findall("CREATE ROLE analyst .*", (ROOT / "deploy/postgresql/roles.sql").read_text())
    dba.run(f'psql -X -d postgres -c "{create}"')
    with psycopg.connect(dba.login("analyst"), autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM stackmgr.current_stack").fetchone() is not None
        for statement in ("SELECT key_digest FROM stackmgr.api_keys", "DELETE FROM stackmgr.stacks"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_no_other_login_may_connect(dba):
    with psycopg.connect(dba.url, autocommit=True) as superuser:
        superuser.execute(b"CREATE ROLE somebody LOGIN")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(dba.login("somebody"))


def test_roles_sql_names_the_settings_of_the_server_that_fall_short(dba):
    advice = dba.run(role_script())
    assert re.search(r"archive_mode +\| off +\| on", advice)
    assert "fsync" not in advice


def test_the_image_of_postgresql_gets_roles_and_passwords_from_its_secrets(dba, tmp_path):
    for name in ("operator_password", "service_password"):
        (tmp_path / name).write_text(f'{name}\'s "secret"\n')
    script = (ROOT / "deploy/postgresql/init.sh").read_text()
    script = script.replace("/run/secrets", str(tmp_path)).replace("/stackmgr/", f"{ROOT}/deploy/postgresql/")
    dba.run(script)
    with psycopg.connect(dba.url) as connection:
        saved = connection.execute(
            "SELECT rolname FROM pg_authid WHERE rolpassword LIKE 'SCRAM-SHA-256$%' ORDER BY rolname"
        ).fetchall()
    assert saved == [("stackmgr_operator",), ("stackmgr_service",)]


def create(url: str, key: str, spellings: dict[str, str]) -> list[tuple[int, Any]]:
    """Create two stacks, always with the same keys, and return statuses and bodies."""
    database = Database(url, pool_size=1)
    database.open()
    try:
        app = create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
        client = Client(app, key, "", [])
        responses = [client.create(configuration(name=name), name) for name in ("one", "two")]
        return [(response.status_int, response.json) for response in responses]
    finally:
        database.close()


def test_a_restored_dump_passes_its_checks_and_returns_the_same_stacks_to_retries(dba, spellings):
    with operating(dba.login("stackmgr_operator")) as operator:
        key = issued_keys.create(operator, str(uuid4())).key
    created = create(dba.login("stackmgr_service"), key, spellings)
    with psycopg.connect(dba.url) as connection:  # the server of the wheel has no amcheck
        found = connection.execute("SELECT FROM pg_available_extensions WHERE name = 'amcheck'").fetchall()
    *commands, audit = printed("Backup and restore")
    for command in commands:
        if not command.startswith("pg_amcheck ") or found:
            dba.run(command)
    assert "(0 rows)" in dba.run(audit)
    url = dba.login("stackmgr_service", "stackmgr_restored")
    assert preflight.examine(url).problems == []
    assert [status for status, _ in created] == [201, 201]
    assert create(url, key, spellings) == [(200, stack) for _, stack in created]


def test_pg_amcheck_runs_by_the_path_that_the_runbook_gives_for_debian():
    """The wheel has no amcheck, so that the restored dump above is not always checked."""
    debian = Path("/usr/lib/postgresql/15/bin")
    require("there" if (debian / "initdb").exists() else None, "postgresql-15")
    [path] = re.findall(r"`(export PATH=\S+[^`]+)`", RUNBOOK.read_text())
    [command] = [line for line in printed("Backup and restore") if line.startswith("pg_amcheck ")]
    with cluster(debian) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE stackmgr_restored ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0")
        dba = Dba(url, Path("/nonexistent"), Path.cwd())
        migrations.apply(dba.login("postgres", "stackmgr_restored"))
        dba.run(f"{path}; {command}")
