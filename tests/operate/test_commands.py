"""The command `stackmgr`, as a process where standard output, encodings or signals matter: output, status."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from stackmgr.access import api_keys
from stackmgr.operate import check, erasure, migrations, preflight
from stackmgr.operate.operator import NO_SCHEMA
from stackmgr.settings import OPTIONS
from tests.operate.saved import MANAGER, MANAGER_ID
from tests.support.client import Client
from tests.support.clusters import limit_sessions, login, new_database
from tests.support.command_line import Outcome
from tests.support.processes import completed

COMMAND = str(Path(sys.executable).parent / "stackmgr")
EXTERNAL_ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
GUNICORN = (sys.executable, "-m", "gunicorn", "--check-config", "-c", "deploy/gunicorn.conf.py")
NOWHERE = "postgresql://operator:hunter2@127.0.0.1:1/stackmgr"
OPERATORS = (("migrate",), ("keys", "issue", "--external-id", EXTERNAL_ID), ("keys", "revoke", EXTERNAL_ID))
UNKEY = {"STACKMGR_VERIFIER": "unkey", "STACKMGR_UNKEY_ROOT_KEY": "hunter3"}
READERS = (("keys", "list"), ("managers", "list"), ("managers", "show", EXTERNAL_ID))


def process(*arguments: str, url: str = NOWHERE, command=(COMMAND,), stdin: str = "", **environ) -> Outcome:
    environ |= {"STACKMGR_DATABASE_URL": url}
    ended = completed([*command, *arguments], env=environ, input=stdin, timeout=60)
    assert "Traceback" not in ended.stderr
    assert "hunter" not in ended.stdout + ended.stderr
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def run(command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Return a function that does the same in this process."""

    def run(*arguments: str, url: str = NOWHERE, stdin: str = "", **environ: str) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", environ | {"STACKMGR_DATABASE_URL": url})
            ran = command(*arguments, stdin=stdin)
        assert "hunter" not in ran.out + ran.err
        return ran

    return run


def problems(ended: Outcome, status: int = 1) -> list[str]:
    """Return the lines of a command's complaint, after asserting that it failed and printed nothing else."""
    assert (ended.status, ended.out) == (status, "")
    return [
        json.loads(line)["message"] if line.startswith("{") else line.removeprefix("stackmgr: ")
        for line in ended.err.splitlines()
    ]


@pytest.fixture(scope="module")
def service_login(server_url: str, database_url: str) -> Iterator[str]:
    with login(server_url, "IN ROLE stackmgr_app") as name:
        yield name


@pytest.fixture(scope="module")
def reader_login(server_url: str, database_url: str) -> Iterator[str]:
    """A login that may do nothing but assume the reader's role, with settings that suit no command."""
    with login(server_url, "NOINHERIT IN ROLE stackmgr_reader") as name:
        with psycopg.connect(database_url) as admin:
            for setting in ("DateStyle = 'German'", "search_path = 'nowhere'"):
                admin.execute(f"ALTER ROLE {name} SET {setting}".encode())
            row = "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)"
            admin.execute(f"{row} VALUES ('{EXTERNAL_ID}', '{EXTERNAL_ID}', 'reader')".encode())
        yield name


def test_migrate_brings_the_schema_up_to_date(run, server_url, monkeypatch):
    with new_database(server_url) as url:
        assert problems(run("keys", "list", url=url)) == [NO_SCHEMA]
        found = run("check", "--json", url=url)
        assert (found.status, found.err, found.json["ok"]) == (3, "", False)
        assert NO_SCHEMA in found.json["problems"]
        assert NO_SCHEMA in run("check", url=url).err
        [refused] = problems(run("migrate", url=NOWHERE.replace(":1/", ":1,127.0.0.1:2/")))
        assert "Connection refused" in refused
        first = run("migrate", url=url)
        assert (first.status, first.err) == (0, "")
        *applied, last = first.out.splitlines()
        assert applied[0].startswith("applied 0001_")
        assert last == "the schema is up to date"
        assert run("migrate", url=url) == Outcome(0, "the schema is up to date\n", "")
        checked = run("check", url=url)
        assert (checked.status, checked.out.splitlines()[-1]) == (0, "ok")
        for older in (
            "ALTER TABLE stackmgr.api_keys DROP label CASCADE",
            "REVOKE ALL ON SCHEMA stackmgr FROM %s",
        ):
            with psycopg.connect(url) as admin:
                admin.execute(older.replace("%s", "stackmgr_reader").encode())
            assert problems(run("keys", "list", url=url)) == [NO_SCHEMA]
    monkeypatch.setattr(migrations, "apply", lambda *_, wait_seconds, report: report(f"{wait_seconds}") or [])
    assert run("migrate", "--wait", "0").err == "stackmgr: 0\n"


def test_a_key_that_is_issued_listed_and_revoked(database_url, app, statements_run):
    """The fields of the list are in access/test_keys.py."""
    external_id, given = str(uuid4()), {"url": database_url, "PYTHONUTF8": "1"}
    issued = process("keys", "issue", "--external-id", external_id, "--label", "Zo\xeb & Co", **given)
    assert (issued.status, api_keys.is_well_formed(issued.out.strip())) == (0, True)
    client = Client(app, issued.out.strip(), external_id, statements_run)
    assert client.page().status_int == 200
    key_id = issued.err.removeprefix("key id ").strip()
    listed = process("keys", "list", **given)
    assert (listed.status, listed.err) == (0, "")
    assert client.key not in listed.out
    [line] = [line for line in listed.out.splitlines() if external_id in line]
    assert (line.split("\t")[0], line.split("\t")[-1]) == (key_id, "Zo\xeb & Co")
    assert "\tZo\\xeb & Co\n" in process("keys", "list", url=database_url, PYTHONIOENCODING="ascii").out
    revoked = process("keys", "revoke", key_id, url=database_url)
    assert (revoked.status, revoked.err) == (0, "")
    assert re.fullmatch(key_id + r" was revoked at \S+Z\n", revoked.out)
    assert client.page().status_int == 401
    assert process("keys", "revoke", key_id, url=database_url) == revoked


@pytest.mark.parametrize("arguments", OPERATORS, ids=" ".join)
def test_operators_command_rejects_any_other_login(run, arguments, database_url, service_login, reader_login):
    for user in (service_login, reader_login):
        assert problems(run(*arguments, url=make_conninfo(database_url, user=user))) == [
            "this login may not assume stackmgr_owner: use that of the operator (operator.env)"
        ]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_reading_command_needs_the_reader(run, arguments, database_url, service_login, reader_login):
    ended = run(*arguments, url=make_conninfo(database_url, user=reader_login))
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == run(*arguments, url=database_url).out
    ended = run(*arguments, url=make_conninfo(database_url, user=service_login))
    grant = f"GRANT stackmgr_reader TO {service_login}"
    assert problems(ended) == [f"{service_login} may not read the tables: {grant}"]


def test_commands_end_on_a_silent_database():
    commands = [*OPERATORS, *READERS, ("check",), ("verify-key",)]
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(len(commands)) as threads:
        url = f"postgresql://operator:hunter2@127.0.0.1:{silent.getsockname()[1]}/stackmgr"
        # At once, because each waits for its timeout.
        ended = list(threads.map(lambda arguments: process(*arguments, url=url, stdin="key\n"), commands))
    assert [each for each in zip(commands, ended, strict=True) if each[1].status not in (1, 3)] == []
    slow = ": an address has 2 s; for a slow login, add connect_timeout=10 to the URL"
    assert [each.err.rstrip().endswith(slow) for each in ended] == [True] * 7 + [False]


def test_outage_is_no_rejection_of_a_key(run, database_url, reader_login):
    key = f"{api_keys.generate()}\n"
    ended = run("verify-key", stdin=key)
    assert ended.status == 1
    assert ended.out.startswith("not verified: the verifier or the database failed, ")
    ended = run("verify-key", url=make_conninfo(database_url, user=reader_login), stdin=key)
    found = "the login may not assume stackmgr_app: run roles.sql, or GRANT stackmgr_app TO it"
    assert found in problems(ended)


def test_check_finds_a_wrong_number_of_workers(run, server_url, service_login):
    for workers in ("two", "", "0", "-1", "1.5", "1000"):
        checked = run("check", url=make_conninfo(server_url, user=service_login), WEB_CONCURRENCY=workers)
        # The database is examined all the same.
        assert problems(checked, 3) == ["WEB_CONCURRENCY must be a whole number from 1 to 999", NO_SCHEMA]


def test_check_warns_of_needless_rights(run, database_url, server_url):
    opened = "this host opens up to 16 connections, and the login may have 15"
    of_public = "privileges of PUBLIC on the database: CONNECT, TEMPORARY"
    unread = {"STACKMGR_CONCURENCY": "7", "STACKMGR_X": "hunter2", "STACMGR_TOKENS": "x", "CONCURRENCY": "7"}
    unread["STACKMGR_TOKENS_FILE"] = "/of/tokens"
    with login(server_url, "CONNECTION LIMIT 15 IN ROLE stackmgr_owner, stackmgr_app") as name:
        url = make_conninfo(database_url, user=name)
        assert "this host opens" not in run("check", url=url).out
        read = {"WEB_CONCURRENCY": "2", "PGSSLMODE": "prefer", "STACKMGR_UNKEY_ROOT_KEY_FILE": "/of/unkey"}
        checked = run("check", url=url, **read, **unread)
    assert (checked.status, checked.err) == (0, "")
    assert checked.out.splitlines()[-10:] == [
        "warning: the login may assume stackmgr_owner: the service needs stackmgr_app only",
        f"warning: {opened}: lower STACKMGR_DATABASE_CONNECTIONS",
        f"warning: the schema differs from the release's: {of_public}; the release: has none",
        "warning: PGSSLMODE completes STACKMGR_DATABASE_URL",
        "warning: CONCURRENCY is no setting and is ignored; did you mean WEB_CONCURRENCY?",
        "warning: STACKMGR_CONCURENCY is no setting and is ignored; did you mean STACKMGR_CONCURRENCY?",
        "warning: STACKMGR_TOKENS_FILE is no setting and is ignored; did you mean STACKMGR_TOKENS?",
        "warning: STACKMGR_X is no setting and is ignored",
        "warning: STACMGR_TOKENS is no setting and is ignored; did you mean STACKMGR_TOKENS?",
        "ok",
    ]


def test_check_examines_what_a_worker_will_use(run, monkeypatch):
    examine = Mock(side_effect=lambda *_, **__: preflight.Findings(warnings=["one"]))
    monkeypatch.setattr(preflight, "examine", examine)
    given = {"DATABASE_TIMEOUT": "7", "SQL_VARIANT": "citus", "DATABASE_CONNECTIONS": "4",
        "ADMIN_BIND": "127.0.0.1:1", "UNKEY_URL": "https://unkey.invalid", "METRICS_DIR": "/dev/null/metrics",
    }  # fmt: skip
    chosen = {f"STACKMGR_{name}": value for name, value in given.items()}
    for workers, connections in (({}, 4), ({"WEB_CONCURRENCY": "3"}, 12)):
        ended = run("check", **workers, **UNKEY, **chosen)
        examine.assert_called_with(NOWHERE, 7, variant="citus", connections=connections, thorough=True)
    assert (ended.status, "STACKMGR_METRICS_DIR: " in ended.err) == (3, True)
    assert ended.out.endswith("warning: one\nwarning: Unkey verifies no key now: verifier_dns\n")


def test_check_prints_every_setting_and_no_secret(run, monkeypatch):
    shown = run("check", url=f"{NOWHERE}?sslpassword=hunter4", STACKMGR_CONCURRENCY="7", **UNKEY)
    assert (shown.status, "Connection refused" in shown.err) == (1, True)
    rows = {name: rest for name, *rest in (line.split("\t") for line in shown.out.splitlines())}
    assert rows.keys() - {"VARIABLE"} == {option.variable for option in OPTIONS.values()}
    assert rows["STACKMGR_CONCURRENCY"] == ["7", "set"]
    assert rows["STACKMGR_DATABASE_TIMEOUT"] == ["5", "default"]
    assert rows["STACKMGR_UNKEY_ROOT_KEY"] == ["[redacted]", "set"]
    assert "password=[redacted]" in rows["STACKMGR_DATABASE_URL"][0]
    assert "host=127.0.0.1" in rows["STACKMGR_DATABASE_URL"][0]
    document = run("check", "--json")
    assert (document.status, document.json["ok"]) == (1, False)
    assert "cannot be reached" in document.json["warnings"][0]
    assert {each["variable"] for each in document.json["settings"]} == rows.keys() - {"VARIABLE"}
    monkeypatch.setattr("stackmgr.startup.create_app", lambda **_: {}["what a worker cannot build"])
    with pytest.raises(KeyError):
        run("check")
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 1)
    with pytest.raises(SystemExit, match="only gunicorn's master runs this module"):
        check.check_start()


def test_ctrl_c_during_the_imports_prints_nothing():
    finder = 'type("", (), {"find_spec": lambda *_: signal.raise_signal(signal.SIGINT)})()'
    script = f"import signal, sys; from stackmgr.__main__ import main; sys.meta_path[:0] = [{finder}]; main()"
    assert process(command=(sys.executable, "-c", script)) == Outcome(-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("ends", "said"), [("} | true", []), ("} >/dev/full", ["standard output: No space left on device"])]
)
def test_output_that_cannot_be_written_is_an_error(run, database_url, ends, said):
    run("keys", "issue", "--external-id", str(uuid4()), url=database_url)
    shell = ("/bin/sh", "-c", f'{{ "$@"; echo "stackmgr: $?" >&2; {ends}', "sh", COMMAND)
    assert problems(process("keys", "list", url=database_url, command=shell), 0) == [*said, "1"]


@pytest.mark.parametrize(("target", "form"), [(">/dev/full", ["--json"]), ("| true", []), (">&-", [])])
def test_what_cannot_be_printed_has_not_happened(run, database_url, target, form):
    given = ("--external-id", str(uuid4()))
    run("keys", "issue", *given, url=database_url)
    before = run("keys", "list", "--json", *given, url=database_url).json
    rotate = ("rotate", before[0]["key_id"])
    for arguments in (("issue", *given), rotate, (*rotate, "--overlap", "9")):
        shell = ("/bin/sh", "-c", f'sleep 0.2; "$@" {target}', "sh", COMMAND)
        ended = process("keys", *arguments, *form, url=database_url, command=shell)
        message = r"the new key could not be printed .*: nothing was changed|standard output is closed"
        assert re.fullmatch(f"stackmgr: ({message})\n", ended.err)
        assert run("keys", "list", "--json", *given, url=database_url).json == before
    assert run("keys", *rotate, url=database_url).status == 0


def refuse(url: str, trigger: str) -> None:
    body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$"
    with psycopg.connect(url) as admin:
        admin.execute(f"CREATE FUNCTION public.refuse() RETURNS trigger {body}".encode())
        admin.execute(f"CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION public.refuse()".encode())


def test_a_key_whose_commit_fails_is_named(run, own_saved_url):
    refuse(own_saved_url, "CONSTRAINT TRIGGER never AFTER INSERT ON stackmgr.api_keys INITIALLY DEFERRED")
    ended = run("keys", "issue", "--external-id", EXTERNAL_ID, url=own_saved_url)
    assert (ended.status, api_keys.is_well_formed(ended.out.strip())) == (1, True)
    assert re.search(r"\(P0001\).*; 'stackmgr keys list' shows whether key \S+ was saved", ended.err)


def test_an_erasure_outlives_the_limits_of_sessions(run, own_saved_url, monkeypatch):
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 1.5)
    limit_sessions(own_saved_url)
    ended = run("managers", "erase", MANAGER_ID, "--confirm", MANAGER, url=own_saved_url)
    counts = "2 stacks, 5 revisions, 2 receipts, 2 keys"
    assert (ended.status, ended.out) == (0, f"{MANAGER_ID} is erased: {counts}\n")
    again = run("managers", "erase", MANAGER_ID, "--confirm", MANAGER, url=own_saved_url)
    assert again.out == ended.out


def test_an_erasure_that_fails_says_how_to_go_on(run, own_saved_url, monkeypatch):
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    refuse(own_saved_url, "TRIGGER never BEFORE DELETE ON stackmgr.stacks")
    given = ("managers", "erase", MANAGER_ID, "--confirm", MANAGER)
    [*_, problem] = run(*given, url=own_saved_url).err.splitlines()
    assert problem.endswith(f"(P0001): run 'stackmgr check': continue with stackmgr {' '.join(given)}")


def test_addresses_that_do_not_respond_are_passed_over(run, database_url):
    good = conninfo_to_dict(database_url)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:

        def run(command: str, number: int) -> int:
            hosts = ",".join(["127.0.0.1"] * number + [str(good["host"])])
            ports = ",".join(map(str, [silent.getsockname()[1]] * number + [good.get("port", 5432)]))
            return process(*command.split(), url=make_conninfo(database_url, host=hosts, port=ports)).status

        assert [*threads.map(run, ("keys list", "check"), (3, 2))] == [0, 0]  # `check` connects twice


@pytest.mark.parametrize(("command", "status"), [((COMMAND, "check"), 3), (GUNICORN, 1)], ids=range(2))
def test_every_wrong_setting_and_warning_is_named(command, status, monkeypatch, database_url):
    monkeypatch.chdir(paths.directory("deploy").parent)
    started = process(url=database_url, command=command)
    assert (started.status, "the login is a superuser" in started.out + started.err) == (0, True)
    choices = ("VERIFIER", "CONCURRENCY", "LOG_LEVEL", "LOG_FORMAT", "ADMIN_BIND")
    wrong = {f"STACKMGR_{name}": f"hunter-{name}" for name in choices}
    url = "postgresql://operator:hunter2@hunter3@localhost/stackmgr"
    ended = process(url=url, command=command, STACKMGR_TOKENS="/nowhere/tokens.json", **wrong)
    found = [line.partition(" ")[0] for line in problems(ended, status)]
    assert sorted(found) == sorted([*wrong, "STACKMGR_DATABASE_URL", "whitelist"])
