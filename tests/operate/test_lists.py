"""`stackmgr tokens`, `keys list` and `managers list`, and the connection of these: its limit and settings."""

import json
import signal
import time
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr.errors import CommandError
from stackmgr.operate import keys
from stackmgr.operate.command import print_table
from stackmgr.operate.operator import operating, time_limit
from tests.operate import saved
from tests.operate.saved import MANAGER, MANAGER_ID, OTHER_MANAGER, OTHER_MANAGER_ID, PRODUCTION, SUPPORT
from tests.support.examples import TOKENS

LISTS = {"keys": (PRODUCTION, SUPPORT), "managers": (MANAGER_ID, OTHER_MANAGER_ID)}
each_list = pytest.mark.parametrize(("group", "ids"), LISTS.items(), ids=LISTS)
LATER = b"UPDATE stackmgr.%b SET created_at = created_at + interval '1 hour' WHERE %b_id = %%s"
STATE = b"SELECT current_user, current_setting('role') AS role, current_setting('search_path') AS path"


def ids_of(outcome) -> list[str]:
    return [line.split("\t")[0] for line in outcome.out.splitlines()[1:]]


@each_list
def test_a_list_is_complete_and_oldest_first(command, own_saved_url, group, ids, monkeypatch):
    monkeypatch.setattr("stackmgr.operate.operator._FETCHED_ROWS", 1)
    with psycopg.connect(own_saved_url) as admin:  # of two, the one with the greater id is older
        admin.execute(LATER % (b"api_keys", b"key"), [PRODUCTION])
        admin.execute(LATER % (b"managers", b"manager"), [MANAGER_ID])
    ran = command(group, "list")
    assert (ran.status, ids_of(ran), ran.err) == (0, [*ids][::-1], "")
    as_json = command(group, "list", "--json")
    assert [row["key_id" if group == "keys" else "manager_id"] for row in as_json.json] == [*ids][::-1]
    assert as_json.out == json.dumps(as_json.json, indent=2) + "\n"


def test_a_list_without_a_row_is_empty(on_saved):
    none = ("keys", "list", "--external-id", OTHER_MANAGER)
    assert (on_saved(*none).out, on_saved(*none, "--json").out) == ("", "[]\n")


def test_a_manager_is_named_by_either_id_unless_that_is_anothers(command, own_saved_url):
    expected = [PRODUCTION, SUPPORT]
    for any_id in (MANAGER_ID, MANAGER.upper(), MANAGER):  # the last as the one before
        assert ids_of(command("keys", "list", "--external-id", any_id)) == expected
        assert ids_of(command("managers", "show", any_id)) == [MANAGER_ID]
        expected.append(command("keys", "issue", "--json", "--external-id", any_id).json["key_id"])
    with psycopg.connect(own_saved_url, autocommit=True) as admin:
        rename = "UPDATE stackmgr.managers SET external_id = %s WHERE manager_id = %s"
        admin.execute(rename, [MANAGER_ID, OTHER_MANAGER_ID])
    ran = command("keys", "list", "--external-id", MANAGER_ID)
    message = f"{MANAGER_ID} is the manager id of one manager and the external id of another: give another id"
    assert (ran.status, ran.err) == (1, f"stackmgr: {message}\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_table_is_printed_in_blocks(is_terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    printed = []

    def rows():
        for number in range(3001):
            printed.append(capsys.readouterr().out)
            yield str(number), "x" * (number % 100)

    print_table(rows())
    text = "".join(printed)
    assert text.splitlines()[1] == ("1    x" if is_terminal else "1\tx")
    assert text.startswith("0")
    assert len(text.splitlines()) == 3000


# Of each setting what the login has, and what a transaction has all the same.
SETTINGS = {
    "statement_timeout": ("9s", "0"), "lock_timeout": ("9s", "10s"), "synchronous_commit": ("off", "on"),
    "client_min_messages": ("error", "warning"), "search_path": ("public", "pg_catalog"),
    "timezone": ("Asia/Kolkata", "UTC"), "transaction_timeout": ("9s", "0"), "jit": ("on", "off"),
}  # fmt: skip
OF_READER = {"read_only": ("off", "on"), "isolation": (r"read\ committed", "repeatable read")}
OF_OWNER = {"read_only": ("on", "off"), "isolation": ("serializable", "read committed")}


@pytest.mark.parametrize(("role", "own"), [("stackmgr_reader", OF_READER), ("stackmgr_owner", OF_OWNER)])
def test_settings_of_a_login_change_no_transaction(saved_url, role, own):
    with psycopg.connect(saved_url) as admin:
        is_recent = admin.info.server_version >= 170000
    settings = {name: SETTINGS[name] for name in SETTINGS if is_recent or "transaction" not in name}
    given = " ".join(f"-c {name}={value}" for name, (value, _) in settings.items())
    given += "".join(f" -c default_transaction_{name}={value}" for name, (value, _) in own.items())
    expected = settings | {f"transaction_{name}": each for name, each in own.items()} | {"role": (None, role)}
    with operating(make_conninfo(saved_url, options=given), role) as operator, operator.transaction():
        run = operator._connection.execute
        found = {name: run("SELECT current_setting($1)", [name]).fetchone()[0] for name in expected}
    assert found == {name: value for name, (_, value) in expected.items()}


def test_a_time_limit_ends_the_body_and_leaves_no_alarm():
    with time_limit(3600):
        assert signal.getitimer(signal.ITIMER_REAL) > (3000, 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    ended = pytest.raises(CommandError, match=r"^the database did not respond within 0\.1 s: see")
    with ended, time_limit(0.1):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nothing_of_an_operator_is_left_in_the_session_and_no_other_warning_fails(own_saved_url):
    with psycopg.connect(own_saved_url) as admin:
        admin.execute(b"DELETE FROM stackmgr.creation_receipts")
    with operating(own_saved_url) as operator:
        connection = operator._connection
        before = connection.execute(STATE).fetchone()
        issued = keys.create(operator, str(uuid4()))
        assert all(keys.find(operator, issued.key_id) for _ in range(6))  # psycopg may prepare the sixth
        assert next(operator.iterate(keys._LIST, {"external_id": None, "key_id": None})) is not None
        operator.vacuum_receipts()
        operator._warning = "a wait was cancelled"  # that of the vacuum
        with operator.transaction():
            connection.execute(b"DO $$ BEGIN RAISE WARNING 'vacuum soon'; END $$")
        assert connection.execute(STATE).fetchone() == before
        assert connection.execute(b"SELECT FROM pg_prepared_statements").fetchone() is None
        # A truncation would have locked the table.
        size = b"SELECT pg_relation_size('stackmgr.creation_receipts') > 0"
        assert connection.execute(size).fetchone() == (True,)


def test_list_prints_every_token(command):
    ran = command("tokens", "list")
    assert ran.status == 0
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == ["SYMBOL", "NAME", "ADDRESS"]
    assert rows == [[token["symbol"], token["name"], token["address"]] for token in TOKENS]
    assert command("tokens", "list", "--json").json == TOKENS


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "of the environment"])
def test_list_validates_its_file(command, tmp_path, monkeypatch, is_named):
    path = tmp_path / "tokens.json"
    given = [path] if is_named else []
    monkeypatch.setenv("STACKMGR_TOKENS", "/nowhere" if is_named else str(path))
    text = saved.whitelist_without("AMD").replace("comer", "\\u001bcomer").replace("USDG", "US\\u009bDG")
    path.write_text(text)
    as_json, as_text = (command("tokens", "list", *given, *form) for form in (["--json"], []))
    names = {each["symbol"]: each["name"] for each in as_json.json}
    assert (len(names), names["NEW"], [*names]) == (30, r"New\x1bcomer", sorted(names))
    note = rf"30 tokens of chain 4663 in {path}. The settlement asset US\x9bDG is not one of them."
    assert (as_json.err, as_text.err) == ("", f"{note}\n")
    path.write_text(saved.whitelist_without("AMD").replace("4663,", "1,"))
    ran = command("tokens", "list", *given)
    problem = f"stackmgr: whitelist {path}: chain_id must be the integer 4663\n"
    assert (ran.status, ran.out, ran.err) == (1, "", problem)
