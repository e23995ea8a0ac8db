"""The command `stackmgr`, run as an operator runs it: what it prints where, and how it ends."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import api_keys
from tests.support.client import Client

COMMAND = str(Path(sys.executable).parent / "stackmgr")
EXTERNAL_ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
NOWHERE = "postgresql://operator:hunter2@127.0.0.1:1/stackmgr"


def run(*arguments, url=None, command=(COMMAND,), **environ):
    """Run the command with nothing in its environment but what is given."""
    if url is not None:
        environ["STACKMGR_DATABASE_URL"] = url
    ended = subprocess.run(
        [*command, *arguments], env=environ, capture_output=True, timeout=60, check=False, text=True
    )
    assert "Traceback" not in ended.stderr
    assert "hunter" not in ended.stdout + ended.stderr
    return ended


def problems(ended):
    """Return the lines of a command's complaint, after asserting that it failed and printed nothing else."""
    assert ended.returncode == 1
    assert ended.stdout == ""
    return [line.removeprefix("stackmgr: ") for line in ended.stderr.splitlines()]


@pytest.fixture
def empty_database(server_url, database_url):
    """A connection string to a new database without a schema.

    Next to the run's own one, so that the roles, which belong to the server, are there in any order of tests.
    """
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0".encode())
        yield make_conninfo(server_url, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_migrate_brings_the_schema_up_to_date_once_and_then_has_nothing_to_do(empty_database):
    needed = run("keys", "list", url=empty_database)
    assert problems(needed) == ["the database has no schema for this yet: run 'stackmgr migrate' first"]
    assert (
        "there is no schema in the database: run 'stackmgr migrate'"
        in run("check", url=empty_database).stderr
    )

    first = run("migrate", url=empty_database)
    assert (first.returncode, first.stderr) == (0, "")
    *applied, last = first.stdout.splitlines()
    assert applied[0] == "applied 0001_roles_and_schema"
    assert last == "the schema is up to date"

    second = run("migrate", url=empty_database)
    assert (second.returncode, second.stdout, second.stderr) == (0, "the schema is up to date\n", "")
    checked = run("check", url=empty_database)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "ok")


def test_a_key_that_is_issued_listed_and_revoked(database_url, app, statements_run):
    external_id = str(uuid4())
    expires_at = (datetime.now(UTC) + timedelta(days=30)).isoformat(timespec="seconds")
    issued = run(
        *(
            "keys",
            "issue",
            "--external-id",
            external_id,
            "--label",
            "Zo\xeb & Co",
            "--expires-at",
            expires_at,
        ),
        url=database_url,
        PYTHONUTF8="1",
    )
    assert (issued.returncode, issued.stderr) == (0, "")
    key = issued.stdout.removesuffix("\n")
    assert api_keys.is_well_formed(key)
    client = Client(app, key, external_id, statements_run)
    assert client.page().status_int == 200

    listed = run("keys", "list", url=database_url, PYTHONUTF8="1")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert key not in listed.stdout
    header, *lines = (line.split("\t") for line in listed.stdout.splitlines())
    (record,) = (dict(zip(header, line, strict=True)) for line in lines if line[1] == external_id)
    assert record["KEY"] == f"\u2026{key[-4:]}"
    assert record["LABEL"] == "Zo\xeb & Co"
    assert record["EXPIRES"] == expires_at.replace("+00:00", "Z")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["CREATED"])
    assert record["REVOKED"] == "-"

    revoked = run("keys", "revoke", record["KEY_ID"], url=database_url)
    assert (revoked.returncode, revoked.stderr) == (0, "")
    assert re.fullmatch(record["KEY_ID"] + r" is revoked since \S+Z\n", revoked.stdout)
    assert client.page().status_int == 401
    again = run("keys", "revoke", record["KEY_ID"], url=database_url)
    assert (again.returncode, again.stdout) == (0, revoked.stdout)


def test_a_key_id_that_was_never_issued_cannot_be_revoked(database_url):
    assert problems(run("keys", "revoke", EXTERNAL_ID, url=database_url)) == [
        f"there is no key {EXTERNAL_ID}"
    ]


def test_arguments_that_make_no_sense_end_with_the_usage_and_status_2():
    ended = run("keys", "revoke", "1", url=NOWHERE)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("usage: stackmgr keys revoke")
    assert "must be a UUID in lowercase with hyphens" in ended.stderr


@pytest.mark.parametrize("arguments", [("check",), ("migrate",), ("keys", "list")], ids=" ".join)
def test_a_database_that_does_not_answer_ends_a_command_with_a_reason(arguments):
    ended = run(*arguments, url=NOWHERE)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Connection refused" in ended.stderr


EVERYTHING_WRONG = {
    "url": "postgresql://operator:hunter2@hunter3@localhost/stackmgr",
    "STACKMGR_TOKENS": "/nowhere/tokens.json",
    "STACKMGR_VERIFIER": "hunter4",
    "STACKMGR_THREADS": "hunter5",
    "STACKMGR_LOG_LEVEL": "hunter6",
    "STACKMGR_LOG_FORMAT": "hunter7",
    "STACKMGR_ADMIN_BIND": "hunter8",
}
GUNICORN = (sys.executable, "-m", "gunicorn", "--check-config", "-c", "deploy/gunicorn.conf.py")


@pytest.mark.parametrize("command", [(COMMAND, "check"), GUNICORN], ids=["stackmgr check", "gunicorn"])
def test_everything_that_is_wrong_with_the_environment_is_named_at_once(command, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    found = problems(
        run(
            url=EVERYTHING_WRONG["url"],
            command=command,
            **{name: text for name, text in EVERYTHING_WRONG.items() if name != "url"},
        )
    )
    assert {line.partition(" ")[0] for line in found} == {
        "STACKMGR_DATABASE_URL",
        "STACKMGR_VERIFIER",
        "STACKMGR_THREADS",
        "STACKMGR_LOG_LEVEL",
        "STACKMGR_LOG_FORMAT",
        "STACKMGR_ADMIN_BIND",
        "whitelist",
    }
    assert len(found) == 7


def test_the_module_is_the_command(database_url):
    module = (sys.executable, "-m", "stackmgr")
    listed = run("keys", "list", url=database_url, command=module)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.startswith("KEY_ID\t")
    assert run(command=module).stderr.startswith("usage: stackmgr")
