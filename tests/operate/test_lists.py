"""`keys list` and `managers list`: page after page, and a few rows at a time."""

import json
from argparse import Namespace
from uuid import uuid4

import psycopg
import pytest

from stackmgr.operate import connection, output
from tests.operate.saved import MANAGER, MANAGER_ID, OTHER_MANAGER, OTHER_MANAGER_ID, PRODUCTION, SUPPORT

LISTS = {"keys": (PRODUCTION, SUPPORT), "managers": (MANAGER_ID, OTHER_MANAGER_ID)}
each_list = pytest.mark.parametrize(("group", "ids"), LISTS.items(), ids=LISTS)


def ids_of(outcome) -> list[str]:
    return [line.split("\t")[0] for line in outcome.out.splitlines()[1:]]


@each_list
def test_a_list_is_complete_without_a_limit(on_saved, group, ids, monkeypatch):
    monkeypatch.setattr(connection, "_FETCHED_ROWS", 1)
    ran = on_saved(group, "list")
    assert (ran.status, ids_of(ran), ran.err) == (0, [*ids], "")


@each_list
def test_a_page_says_how_to_continue_and_the_last_one_does_not(on_saved, group, ids):
    first = on_saved(group, "list", "--limit", "1")
    assert (first.status, ids_of(first)) == (0, [ids[0]])
    assert first.err == f"There are more: --after {ids[0]} continues.\n"
    last = on_saved(group, "list", "--limit", "1", "--after", ids[0])
    assert (last.status, ids_of(last), last.err) == (0, [ids[1]], "")
    end = on_saved(group, "list", "--after", ids[1])
    assert (end.status, ids_of(end), end.err) == (0, [], "")


@pytest.mark.parametrize("first", [None, "a"])
def test_a_page_says_that_there_are_more_wherever_it_begins(first, capsys):
    def read(first, limit):
        return iter("abc"["abc".index(first or "a") :][:limit])

    arguments = Namespace(after=first, limit=1, json=False)
    output.print_page(arguments, read, lambda row: {"id": row})
    last = "b" if first else "a"
    assert capsys.readouterr() == (f"ID\n{last}\n", f"There are more: --after {last} continues.\n")


@each_list
def test_json_has_the_same_rows_and_whether_there_are_more(on_saved, group, ids):
    name = "key_id" if group == "keys" else "manager_id"
    ran = on_saved(group, "list", "--json")
    assert [row[name] for row in ran.json["items"]] == [*ids]
    assert ran.json["has_more"] is False
    assert ran.out == json.dumps(ran.json, indent=2) + "\n"
    first = on_saved(group, "list", "--json", "--limit", "1").json
    assert ([row[name] for row in first["items"]], first["has_more"]) == ([ids[0]], True)
    end = on_saved(group, "list", "--json", "--after", ids[1])
    assert end.json == {"items": [], "has_more": False}
    assert end.out == json.dumps(end.json, indent=2) + "\n"


@each_list
def test_an_id_that_the_list_does_not_have_is_an_error(on_saved, group, ids):
    unknown = str(uuid4())
    ran = on_saved(group, "list", "--after", unknown)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == f"stackmgr: the list has no {unknown}\n"


def test_a_manager_is_named_by_either_id(on_saved):
    for any_id in (MANAGER, MANAGER_ID):
        assert ids_of(on_saved("keys", "list", "--external-id", any_id)) == [PRODUCTION, SUPPORT]
        assert ids_of(on_saved("managers", "show", "--external-id", any_id)) == [MANAGER_ID]
        assert ids_of(on_saved("managers", "list", "--after", any_id)) == [OTHER_MANAGER_ID]


def test_an_id_that_names_two_managers_is_an_error(command, own_url):
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(
            "UPDATE stackmgr.managers SET external_id = %s WHERE manager_id = %s",
            [MANAGER_ID, OTHER_MANAGER_ID],
        )
    ran = command("keys", "list", "--external-id", MANAGER_ID)
    message = f"{MANAGER_ID} is the manager id of one manager and the external id of another"
    assert (ran.status, ran.err) == (1, f"stackmgr: {message}\n")


def test_an_id_is_accepted_in_uppercase_as_the_api_does(on_saved):
    ran = on_saved("keys", "list", "--external-id", MANAGER.upper(), "--after", PRODUCTION.upper())
    assert (ran.status, ids_of(ran)) == (0, [SUPPORT])


def test_the_keys_of_an_account_have_pages_too(on_saved):
    ran = on_saved("keys", "list", "--external-id", MANAGER, "--after", PRODUCTION)
    assert ids_of(ran) == [SUPPORT]
    assert on_saved("keys", "list", "--external-id", OTHER_MANAGER, "--after", PRODUCTION).status == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_table_is_printed_before_its_last_row_is_read(is_terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    printed = []

    def rows():
        for number in range(3001):
            printed.append(capsys.readouterr().out)
            yield str(number), "x" * (number % 100)

    output.print_table(rows())
    text = "".join(printed)
    assert text.startswith("0")
    assert len(text.splitlines()) == 3000
