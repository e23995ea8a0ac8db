"""The runbook's commands for a DBA, as printed: roles, logins, dump, restore, checks."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.http.app import create_app
from stackmgr.operate import erasure, keys, migrations, preflight
from stackmgr.operate.operator import operating
from tests.deploy.dba import HERE, Shell, sql
from tests.deploy.runbook import block, lines
from tests.support.client import Client
from tests.support.clusters import cluster
from tests.support.command_line import runner
from tests.support.examples import configuration
from tests.support.processes import completed
from tests.support.recorder import opened
from tests.support.releases import ROOT
from tests.support.waiting import eventually

# What the login may do, by its own rights or another role's.
ROLES = b"""
SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER')
"""


class Dba(Shell):
    def __init__(self, url: str, binaries: Path) -> None:
        super().__init__(binaries)
        self.url = url
        self.variables["PGHOST"] = str(conninfo_to_dict(url)["host"])

    def run_printed(self, command: str) -> str:
        """Run a command of the runbook: here `db` is this host, and the active release this folder."""
        return self.run(HERE + command.replace("/opt/stackmgr/current/", ""))

    def login(self, user: str, database: str = "stackmgr") -> str:
        return make_conninfo(self.url, user=user, dbname=database)


def role_script() -> str:
    [line] = [line for line in lines("Installation") if line.endswith("roles.sql")]
    return line


@pytest.fixture(scope="module")
def dba(binaries: Path) -> Iterator[Dba]:
    """A cluster on which the roles were made, and the schema by the operator's login."""
    careless = ("log_parameter_max_length_on_error=-1", "log_error_verbosity=default", "log_statement=ddl")
    with cluster(binaries, *careless) as url, closing(Dba(url, binaries)) as dba:
        for _ in range(2):
            dba.run_printed(role_script())
        migrations.apply(dba.login("stackmgr_operator"))
        yield dba


def test_service_login_has_all_it_needs_and_nothing_else(dba):
    findings = preflight.examine(dba.login("stackmgr_service"), thorough=True)
    assert (findings.problems, findings.warnings, findings.reachable) == ([], [], True)
    roles = "pg_read_all_stats stackmgr_app stackmgr_operator stackmgr_owner stackmgr_reader"
    with psycopg.connect(dba.login("stackmgr_operator")) as connection:
        assert connection.execute(ROLES).fetchone() == (roles,)  # which see what blocks a migration
    recommended = {
        "log_parameter_max_length": "0", "log_parameter_max_length_on_error": "0",
        "log_error_verbosity": "terse", "server_encoding": "UTF8", "pgaudit.log_parameter": "off",
    }  # fmt: skip
    with psycopg.connect(dba.login("stackmgr_service")) as connection:
        run = connection.execute
        if connection.info.server_version >= 160000:
            recommended["auto_explain.log_parameter_max_length"] = "0"
        assert run(ROLES).fetchone() == ("stackmgr_app stackmgr_service",)
        found = {name: run("SELECT current_setting(%s)", [name]).fetchone()[0] for name in recommended}
        assert found == recommended
        with pytest.raises(psycopg.errors.DivisionByZero):
            run("SELECT 1 / (length(%s) - 6)", ["canary"])
    log = Path(conninfo_to_dict(dba.url)["host"], "server.log").read_text()
    assert "division by zero" in log
    assert "canary" not in log


def test_analyst_reads_all_but_digests(dba):
    script = (ROOT / "deploy/postgresql/roles.sql").read_text()
    for line in re.findall("^--     ([A-Z].*;)$", script, re.MULTILINE):
        dba.run(f'psql -X -d stackmgr -c "{line}"')
    with psycopg.connect(dba.login("analyst"), autocommit=True) as connection:
        assert connection.execute(ROLES).fetchone() == ("analyst stackmgr_reader",)
        assert connection.execute("SELECT count(*) FROM stackmgr.current_stack").fetchone() is not None
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("5min",)
        for statement in (
            "SELECT key_digest FROM stackmgr.api_keys", "DELETE FROM stackmgr.stacks",
            "SELECT lo_from_bytea(0, 'large')",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_roles_sql_names_wrong_settings(dba):
    for change in ("SET fsync = off", "SET full_page_writes = off"):
        sql(dba.url, f"ALTER SYSTEM {change}")
    sql(dba.url, "SELECT pg_reload_conf()")
    eventually(lambda: sql(dba.url, "SHOW full_page_writes") == [("off",)])
    options = "PGOPTIONS='-c synchronous_commit=off -c password_encryption=md5'"
    advice = dba.run_printed(f"export {options}; {role_script()}")
    sql(dba.url, "ALTER SYSTEM RESET ALL")
    sql(dba.url, "SELECT pg_reload_conf()")
    eventually(lambda: sql(dba.url, "SHOW full_page_writes") == [("on",)])
    names = "archive_mode fsync full_page_writes password_encryption ssl synchronous_commit"
    found = re.findall(r"^ (\w+) +\| \S+ +\| (?:on|scram-sha-256)$", advice, re.MULTILINE)
    assert [name for name in found if name != "data_checksums"] == names.split()  # on since 18
    assert "fsync" not in dba.run_printed(role_script())


def test_postgresql_image_gets_its_passwords(dba):
    for name in ("operator_password", "service_password"):
        (dba.folder / name).write_text(f'{name}\'s "secret"\n')
    script = (ROOT / "deploy/postgresql/init.sh").read_text()
    assert {"SET log_min_error_statement = 'panic';", "SET log_statement = 'none';"} <= {*script.splitlines()}
    assert script.count("ON_ERROR_STOP=1") == 1
    files, logins = r"set (\w+) .*/(\w+)_password", r"_(\w+) PASSWORD :'(\w+)'"
    assert re.findall(files, script) == re.findall(logins, script)
    script = script.replace("/run/secrets", str(dba.folder)).replace("/stackmgr/", "deploy/postgresql/")
    dba.run(script)
    with pytest.raises(AssertionError, match='role "missing" does not exist'):
        dba.run(script.replace("ROLE stackmgr_service", "ROLE missing"))
    log = Path(conninfo_to_dict(dba.url)["host"], "server.log").read_text()
    assert ("CREATE ROLE" in log, '"secret"' in log) == (True, False)
    query = "SELECT rolname FROM pg_authid WHERE starts_with(rolpassword, 'SCRAM-SHA-256$') ORDER BY rolname"
    assert sql(dba.url, query) == [("stackmgr_operator",), ("stackmgr_service",)]


def create(url: str, key: str, spellings: dict[str, str]) -> list[int]:
    with opened(url, pool_size=1) as database:
        app = create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
        client = Client(app, key, "", [])
        return [client.create(configuration(name=name), name).status_int for name in ("one", "two")]


def as_operator(dba: Dba, text: str, service: str, operator: str) -> subprocess.CompletedProcess[str]:
    for name, url in (("stackmgr", service), ("operator", operator)):
        (dba.folder / f"{name}.env").write_text(f"STACKMGR_DATABASE_URL='{url}'\n")
    journal = f"logger() {{ echo \"$*\" >> '{dba.folder}/journal'; }}"
    text = f"cd '{dba.folder}'\n{journal}\n{block('Runbook', 'stackmgr() {')}\n{text}"
    text = text.replace("/etc/stackmgr", str(dba.folder))
    text = re.sub(r"/opt/stackmgr/\S+?/bin", str(Path(sys.executable).parent), text)
    text = re.sub('(?<!")/opt/stackmgr/current', shlex.quote(str(ROOT)), text)
    text = text.replace("/opt/stackmgr/current", str(ROOT))  # in quotes
    return completed(["/bin/sh", "-c", text])


def restore(dba: Dba, database: str) -> None:
    found = sql(dba.url, "SELECT FROM pg_available_extensions WHERE name = 'amcheck'")
    _, *commands, audit = (row.replace("stackmgr_restored", database) for row in lines("Backup and restore"))
    for command in commands:
        if "/pg_amcheck" not in command or found:
            dba.run_printed(command)
    assert "(0 rows)" in dba.run_printed(audit)


def test_a_dump_that_breaks_leaves_the_one_before_and_a_cut_one_no_row(dba):
    dump, make, restoration, *_ = lines("Backup and restore")
    dba.run_printed(dump)
    whole = (dba.folder / "stackmgr.dump").read_bytes()
    with pytest.raises(AssertionError):
        dba.run_printed(dump.replace("pg_dump -Fc", "head -c 5 stackmgr.dump; false"))
    assert (dba.folder / "stackmgr.dump").read_bytes() == whole
    dba.run_printed(make)
    dba.run(f"head -c {len(whole) // 3} stackmgr.dump > cut.dump")
    with pytest.raises(AssertionError):
        dba.run_printed(restoration.replace("stackmgr.dump", "cut.dump"))
    dba.run_printed(restoration)


def test_lost_changes_are_listed_and_made_again(dba, spellings, monkeypatch, capsys):
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    old, service = dba.login("stackmgr_operator"), dba.login("stackmgr_service")
    accounts = [str(uuid4()) for _ in range(3)]
    with operating(old) as operator:
        key, *others = (keys.create(operator, account) for account in accounts)
        leaked, rotated, expired = (keys.create(operator, accounts[0]) for _ in range(3))
        for each in (key, *others):
            create(service, each.key, spellings)
        saved = "SELECT external_id::text, manager_id::text FROM stackmgr.managers"
        managers = dict(sql(dba.login("postgres"), saved))
        dba.run_printed(lines("Backup and restore")[0])
        keys.rotate(operator, leaked.key_id, overlap_seconds=3600)
        keys.revoke(operator, leaked.key_id)
        keys.rotate(operator, rotated.key_id, overlap_seconds=3600, expires_at=None)
        keys.rotate(operator, expired.key_id, overlap_seconds=0, expires_at=None)
        erasure.erase(operator, managers[accounts[1]], accounts[1], lambda *_: None)
        erasure.hold(operator, managers[accounts[2]], "it's case 17")
        erasure.release(operator, managers[accounts[2]])
        erasure.hold(operator, managers[accounts[0]], "in force")
    restore(dba, "stackmgr_second")
    restored = dba.login("stackmgr_service", "stackmgr_second")
    assert preflight.examine(restored).problems == []
    urls = (restored, dba.login("stackmgr_operator", "stackmgr_second"))
    wrong = as_operator(dba, f"stackmgr keys revoke {key.key_id}", restored, old)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "another database" in wrong.stderr
    assert f"-- keys revoke {key.key_id}\n" in (dba.folder / "journal").read_text()
    listed = block("After any restore", "lost_changes.sql")
    listed = f"OLD='{dba.login('postgres')}' NEW='{dba.login('postgres', 'stackmgr_second')}'\n{listed}"
    todo = as_operator(dba, listed, *urls).stdout.splitlines()
    assert sorted(tuple(line.split()[1:3]) for line in todo) == [
        *[("keys", "revoke")] * 2, *[("keys", "rotate")] * 3, ("managers", "erase"),
        *[("managers", "hold")] * 2, ("managers", "release"),
    ]  # fmt: skip
    run = runner(monkeypatch, capsys)
    monkeypatch.setenv("STACKMGR_DATABASE_URL", urls[1])
    monkeypatch.setenv("SERVICE_DATABASE_URL", restored)
    for line in todo:
        overlap = ("--overlap", "3600") if "rotate" in line else ()
        assert run(*shlex.split(line)[1:], *overlap).status == 0, line
    assert as_operator(dba, listed, *urls).stdout == ""
    for revoked in (leaked, expired, others[0]):
        assert create(restored, revoked.key, spellings) == [401, 401]
    for valid in (key, rotated, others[1]):
        assert create(restored, valid.key, spellings) == [200, 200]
