"""The command `stackmgr` as a process: standard output, standard error, exit status."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import __version__
from stackmgr.access import api_keys
from stackmgr.settings import OPTIONS
from tests.support.client import Client

COMMAND = str(Path(sys.executable).parent / "stackmgr")
EXTERNAL_ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
NOWHERE = "postgresql://operator:hunter2@127.0.0.1:1/stackmgr"


def run(*arguments, url=None, command=(COMMAND,), stdin=None, **environ):
    """Run the command with nothing in its environment but what is given."""
    if url is not None:
        environ["STACKMGR_DATABASE_URL"] = url
    ended = subprocess.run(
        [*command, *arguments],
        env=environ,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
    )
    assert "Traceback" not in ended.stderr
    assert "hunter" not in ended.stdout + ended.stderr
    return ended


def problems(ended, status=1):
    """Return the lines of a command's complaint, after asserting that it failed and printed nothing else."""
    assert ended.returncode == status
    assert ended.stdout == ""
    return [
        json.loads(line)["message"] if line.startswith("{") else line.removeprefix("stackmgr: ")
        for line in ended.stderr.splitlines()
    ]


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
    assert problems(needed) == ["the database has no schema of this release: run 'stackmgr migrate' first"]
    assert (
        "no schema of this release: run 'stackmgr migrate' first" in run("check", url=empty_database).stderr
    )

    first = run("migrate", url=empty_database)
    assert (first.returncode, first.stderr) == (0, "")
    *applied, last = first.stdout.splitlines()
    assert applied[0].startswith("applied 0001_")
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
    assert issued.returncode == 0
    key = issued.stdout.removesuffix("\n")
    assert api_keys.is_well_formed(key)
    client = Client(app, key, external_id, statements_run)
    assert client.page().status_int == 200

    listed = run("keys", "list", url=database_url, PYTHONUTF8="1")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert key not in listed.stdout
    header, *lines = (line.split("\t") for line in listed.stdout.splitlines())
    (record,) = (dict(zip(header, line, strict=True)) for line in lines if line[1] == external_id)
    assert record["LAST_FOUR"] == key[-4:]
    assert issued.stderr == f"key id {record['KEY_ID']}\n"
    assert record["LABEL"] == "Zo\xeb & Co"
    assert record["EXPIRES_AT"] == expires_at.replace("+00:00", "Z")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["CREATED_AT"])
    assert record["REVOKED_AT"] == "-"

    revoked = run("keys", "revoke", record["KEY_ID"], url=database_url)
    assert (revoked.returncode, revoked.stderr) == (0, "")
    assert re.fullmatch(record["KEY_ID"] + r" was revoked at \S+Z\n", revoked.stdout)
    assert client.page().status_int == 401
    again = run("keys", "revoke", record["KEY_ID"], url=database_url)
    assert (again.returncode, again.stdout) == (0, revoked.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_of_the_output_takes_every_label(database_url, encoding):
    label = "Zo\xeb \u2192 \u20ac"
    arguments = ("--external-id", str(uuid4()))
    run("keys", "issue", *arguments, "--label", label, url=database_url, PYTHONUTF8="1")
    listed = subprocess.run(
        [COMMAND, "keys", "list", *arguments],
        env={"STACKMGR_DATABASE_URL": database_url, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
        timeout=60,
    )
    shown = {
        "ascii": "Zo\\xeb \\u2192 \\u20ac",
        "latin-1": "Zo\xeb \\u2192 \\u20ac",
        "utf-8": label,
    }
    assert listed.stdout.decode(encoding).endswith(f"\t{shown[encoding]}\n")


def test_a_key_id_that_was_never_issued_cannot_be_revoked(database_url):
    assert problems(run("keys", "revoke", EXTERNAL_ID, url=database_url)) == [
        f"no key has the id {EXTERNAL_ID}: see 'stackmgr keys list'"
    ]


def test_invalid_arguments_end_with_the_usage_and_status_2():
    ended = run("keys", "revoke", "1", url=NOWHERE)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("usage: stackmgr keys revoke")
    assert "must be a UUID with hyphens" in ended.stderr


@pytest.mark.parametrize("arguments", [("check",), ("migrate",), ("keys", "list")], ids=" ".join)
def test_a_database_that_does_not_respond_ends_a_command_with_a_reason(arguments):
    ended = run(*arguments, url=NOWHERE)
    assert ended.returncode == 1
    assert arguments == ("check",) or ended.stdout == ""
    assert "Connection refused" in ended.stderr


OPERATORS = [
    ("migrate",),
    ("keys", "issue", "--external-id", EXTERNAL_ID),
    ("keys", "revoke", EXTERNAL_ID),
]
READERS = [
    ("keys", "list"),
    ("managers", "list"),
    ("managers", "show", EXTERNAL_ID),
]


@pytest.mark.parametrize("arguments", OPERATORS, ids=" ".join)
def test_an_operators_command_rejects_the_login_of_the_service(arguments, database_url, service_login):
    ended = run(*arguments, url=make_conninfo(database_url, user=service_login))
    assert problems(ended) == [
        "this login may not assume stackmgr_owner: use that of the operator (operator.env)"
    ]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_a_command_that_only_reads_needs_a_login_that_may_assume_the_reader(
    arguments, database_url, service_login, reader_login
):
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)"
            " VALUES (%(id)s, %(id)s, 'of this test') ON CONFLICT DO NOTHING",
            {"id": EXTERNAL_ID},
        )
    ended = run(*arguments, url=make_conninfo(database_url, user=reader_login))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == run(*arguments, url=database_url).stdout
    ended = run(*arguments, url=make_conninfo(database_url, user=service_login))
    assert problems(ended) == [
        f"{service_login} may not read the tables: GRANT stackmgr_reader TO {service_login}"
    ]


@pytest.mark.parametrize("arguments", OPERATORS, ids=" ".join)
def test_a_login_that_may_only_read_may_not_write(arguments, database_url, reader_login):
    ended = run(*arguments, url=make_conninfo(database_url, user=reader_login))
    assert problems(ended) == [
        "this login may not assume stackmgr_owner: use that of the operator (operator.env)"
    ]


@pytest.fixture(scope="module")
def service_login(server_url, database_url):
    with login(server_url, "IN ROLE stackmgr_app") as name:
        yield name


@pytest.fixture(scope="module")
def reader_login(server_url, database_url):
    with login(server_url, "NOINHERIT IN ROLE stackmgr_reader") as name:
        yield name


@contextmanager
def login(server_url: str, attributes: str) -> Iterator[str]:
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN {attributes}".encode())
        yield name
        connection.execute(f"DROP ROLE {name}".encode())


def test_a_command_ends_though_the_database_accepts_and_says_nothing():
    commands = [*OPERATORS, *READERS, ("check",), ("verify-key",)]
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(len(commands)) as threads:
        port = silent.getsockname()[1]
        url = f"postgresql://operator:hunter2@127.0.0.1:{port}/stackmgr"
        # At once, because each waits for its time-out.
        ended = list(threads.map(lambda arguments: run(*arguments, url=url, stdin="key\n"), commands))
    assert [process.args for process in ended if process.returncode not in (1, 3)] == []


def test_an_outage_is_no_rejection_of_a_key():
    ended = run("verify-key", url=NOWHERE, stdin=f"{api_keys.generate()}\n")
    assert ended.returncode == 1
    assert ended.stdout.startswith("not verified: the verifier or the database failed, ")


def test_a_login_that_may_not_verify_is_no_outage(database_url, reader_login):
    url = make_conninfo(database_url, user=reader_login)
    ended = run("verify-key", url=url, stdin=f"{api_keys.generate()}\n")
    assert "the login may not assume stackmgr_app: run roles.sql, or GRANT stackmgr_app TO it" in problems(
        ended
    )


def test_check_names_a_login_that_may_do_more_than_the_service_needs(database_url, server_url):
    with login(server_url, "IN ROLE stackmgr_owner, stackmgr_app") as name:
        checked = run("check", url=make_conninfo(database_url, user=name))
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.endswith(
        "\nwarning: the login may assume stackmgr_owner: the service needs stackmgr_app only\nok\n"
    )


@pytest.mark.parametrize("workers", ["two", "", "0", "-1", "1.5"])
def test_check_finds_a_number_of_workers_with_which_gunicorn_does_not_serve(
    database_url, service_login, workers
):
    checked = run("check", url=make_conninfo(database_url, user=service_login), WEB_CONCURRENCY=workers)
    assert problems(checked, 3) == ["WEB_CONCURRENCY must be a whole number from 1 to 999"]


def test_check_warns_of_a_variable_that_nothing_reads(database_url):
    unread = {"STACKMGR_CONCURENCY": "7", "STACKMGR_X": "hunter2", "STACMGR_TOKENS": "x", "CONCURRENCY": "7"}
    checked = run("check", url=database_url, WEB_CONCURRENCY="2", **unread)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.splitlines()[-4:] == [
        "warning: STACKMGR_CONCURENCY is no setting and is ignored; did you mean STACKMGR_CONCURRENCY?",
        "warning: STACKMGR_X is no setting and is ignored",
        "warning: STACMGR_TOKENS is no setting and is ignored; did you mean STACKMGR_TOKENS?",
        "ok",
    ]


def test_check_reports_its_findings_to_scripts(empty_database):
    checked = run("check", "--json", url=empty_database)
    assert (checked.returncode, checked.stderr) == (3, "")
    document = json.loads(checked.stdout)
    assert document["ok"] is False
    assert "the database has no schema of this release: run 'stackmgr migrate' first" in document["problems"]
    unreachable = run("check", "--json", url=NOWHERE)
    assert (unreachable.returncode, json.loads(unreachable.stdout)["ok"]) == (1, False)


def test_check_prints_every_setting_and_no_secret():
    environ = {
        "STACKMGR_VERIFIER": "unkey",
        "STACKMGR_UNKEY_ROOT_KEY": "hunter3",
        "STACKMGR_CONCURRENCY": "7",
    }
    shown = run(
        "check", url="postgresql://operator:hunter2@127.0.0.1:1/stackmgr?sslpassword=hunter4", **environ
    )
    assert shown.returncode == 1
    assert "hunter" not in shown.stdout + shown.stderr
    rows = {name: rest for name, *rest in (line.split("\t") for line in shown.stdout.splitlines())}
    assert rows.keys() - {"VARIABLE"} == {option.variable for option in OPTIONS.values()}
    assert rows["STACKMGR_CONCURRENCY"] == ["7", "set"]
    assert rows["STACKMGR_DATABASE_TIMEOUT"] == ["5", "default"]
    assert rows["STACKMGR_UNKEY_ROOT_KEY"] == ["[redacted]", "set"]
    assert "password=[redacted]" in rows["STACKMGR_DATABASE_URL"][0]
    assert "host=127.0.0.1" in rows["STACKMGR_DATABASE_URL"][0]
    as_json = json.loads(run("check", "--json", url=NOWHERE).stdout)["settings"]
    assert {each["variable"] for each in as_json} == rows.keys() - {"VARIABLE"}


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout == f"stackmgr {__version__}\n"


def states_of_keys(database_url, external_id):
    listed = run("keys", "list", "--json", "--external-id", external_id, url=database_url)
    return {record["key_id"]: record["state"] for record in json.loads(listed.stdout)}


def test_a_key_is_not_issued_where_it_cannot_be_printed(database_url):
    external_id = str(uuid4())
    shell = ("/bin/sh", "-c", 'exec "$@" >&-', "sh", COMMAND)
    ended = run("keys", "issue", "--external-id", external_id, url=database_url, command=shell)
    assert problems(ended) == ["standard output is closed"]
    assert states_of_keys(database_url, external_id) == {}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("target", [">/dev/full", "| true"])
def test_a_key_that_could_not_be_printed_is_revoked_again(database_url, target, form):
    external_id = str(uuid4())
    shell = ("/bin/sh", "-c", f'sleep 0.2; "$@" {target}', "sh", COMMAND)
    ended = run("keys", "issue", "--external-id", external_id, *form, url=database_url, command=shell)
    ((key_id, state),) = states_of_keys(database_url, external_id).items()
    assert state == "revoked"
    assert f"the new key {key_id} could not be printed" in ended.stderr
    assert ended.stdout == ""


def test_output_that_cannot_be_written_is_an_error_with_its_reason(database_url):
    shell = ("/bin/sh", "-c", 'exec "$@" >/dev/full', "sh", COMMAND)
    ended = run("keys", "list", url=database_url, command=shell)
    assert problems(ended) == ["standard output: No space left on device"]


EVERYTHING_WRONG = {
    "url": "postgresql://operator:hunter2@hunter3@localhost/stackmgr",
    "STACKMGR_TOKENS": "/nowhere/tokens.json",
    "STACKMGR_VERIFIER": "hunter4",
    "STACKMGR_CONCURRENCY": "hunter5",
    "STACKMGR_LOG_LEVEL": "hunter6",
    "STACKMGR_LOG_FORMAT": "hunter7",
    "STACKMGR_ADMIN_BIND": "hunter8",
}
GUNICORN = (sys.executable, "-m", "gunicorn", "--check-config", "-c", "deploy/gunicorn.conf.py")


@pytest.mark.parametrize(
    ("command", "status"),
    [((COMMAND, "check"), 3), (GUNICORN, 1)],
    ids=["stackmgr check", "gunicorn"],
)
def test_everything_that_is_wrong_with_the_environment_is_named_at_once(command, status, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    found = problems(
        run(
            url=EVERYTHING_WRONG["url"],
            command=command,
            **{name: text for name, text in EVERYTHING_WRONG.items() if name != "url"},
        ),
        status,
    )
    assert {line.partition(" ")[0] for line in found} == {
        "STACKMGR_DATABASE_URL",
        "STACKMGR_VERIFIER",
        "STACKMGR_CONCURRENCY",
        "STACKMGR_LOG_LEVEL",
        "STACKMGR_LOG_FORMAT",
        "STACKMGR_ADMIN_BIND",
        "whitelist",
    }
    assert len(found) == 7


def test_the_module_is_the_command():
    module = (sys.executable, "-m", "stackmgr")
    assert run("--version", command=module).stdout == f"stackmgr {__version__}\n"
    assert run(command=module).stderr.startswith("usage: stackmgr")
