"""`stackmgr stacks`: the history of a stack, and the searches, on a database of known content."""

import json
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tests.commands import saved
from tests.commands.saved import (
    ADDRESS,
    MANAGER,
    MANAGER_ID,
    OTHER_MANAGER,
    OTHERS_STACK,
    PRODUCTION,
    QUIET_STACK,
    STACK,
)
from tests.support.examples import configuration


def table(outcome) -> list[list[str]]:
    assert outcome.status == 0, outcome.err
    return [line.split("\t") for line in outcome.out.splitlines()]


def test_history_says_who_changed_what_and_when(on_saved):
    head, *rows = table(on_saved("stacks", "history", STACK))
    assert head == ["#", "WHEN (UTC)", "KEY", "REQUEST_ID", "CHANGED"]
    assert rows == [
        ["4", "2026-11-21 22:10:55", "…dZFx production", "2c4e3df8", "AAPL 100 % → 60 %, AMD - → 40 %"],
        ["3", "2026-11-21 22:10:54", "…Qq07 support desk", "support-daily", "preset monthly → daily"],
        ["2", "2026-11-21 08:02:11", "…dZFx production", "7d0f", "preset weekly → monthly"],
        ["1", "2026-11-20 09:15:00", "-", "import-17", 'created "Growth", weekly: AAPL 100 %'],
    ]


def test_the_times_of_a_history_are_in_utc_whatever_the_time_zone_of_the_session(
    on_saved, saved_url, monkeypatch
):
    expected = on_saved("stacks", "history", STACK).out
    away = make_conninfo(saved_url, options="-c TimeZone=Asia/Tokyo")
    monkeypatch.setenv("STACKMGR_DATABASE_URL", away)
    assert on_saved("stacks", "history", STACK).out == expected
    assert "2026-11-21T22:10:54Z" in on_saved("request", "support-daily").out


def test_history_names_what_has_left_and_a_new_name(on_saved):
    _, second, _ = table(on_saved("stacks", "history", OTHERS_STACK))
    assert second[-1] == 'name "AMD only" → "Chips", AMD 100 % → 0.01 %, NVDA - → 99.99 %'


def test_a_limited_history_says_that_there_is_more_and_knows_what_its_oldest_line_changed(on_saved):
    ran = on_saved("stacks", "history", STACK, "--limit", "2")
    assert [row[0] for row in table(ran)[1:]] == ["4", "3"]
    assert "preset monthly → daily" in ran.out
    assert "Older revisions: 2; --limit 4 shows more." in ran.err


def test_history_as_json_has_the_complete_configurations(on_saved):
    last = on_saved("stacks", "history", STACK, "--json").json["items"][0]
    assert last["key_id"] == PRODUCTION
    assert last["revision_id"] == saved.SAVED[0].revision_id(4)
    assert last["allocation"][0] == {
        "token_address": min(ADDRESS["AAPL"], ADDRESS["AMD"]),
        "weight_bps": 4000,
    }
    assert last["changed"] == "AAPL 100 % → 60 %, AMD - → 40 %"


def test_show_prints_the_current_configuration_and_the_key_id(on_saved):
    rows = table(on_saved("stacks", "show", STACK))
    assert ["external_id", MANAGER] in rows
    assert ["manager_id", MANAGER_ID] in rows
    assert ["revision", "4 of 4"] in rows
    assert ["key_id", PRODUCTION] in rows
    assert ["AAPL", "60 %", ADDRESS["AAPL"]] in rows
    document = on_saved("stacks", "show", STACK, "--json").json
    assert (document["stack_id"], document["external_id"], document["number"]) == (STACK, MANAGER, 4)
    assert (document["stack_created_at"], document["created_at"]) == (
        "2026-11-20T09:15:00Z",
        "2026-11-21T22:10:55Z",
    )


@pytest.mark.parametrize(
    ("time", "number"),
    [
        ("2026-11-20T09:15:00Z", 1),
        ("2026-11-21T08:02:10Z", 1),
        ("2026-11-21T09:02:11+01:00", 2),
        ("2026-11-21T22:10:54Z", 3),
        ("2030-01-01T00:00:00Z", 4),
    ],
)
def test_at_shows_the_revision_that_was_current_at_a_time(on_saved, time, number):
    assert on_saved("stacks", "at", STACK, time, "--json").json["number"] == number


def test_at_a_time_before_the_creation_there_is_no_stack(on_saved):
    ran = on_saved("stacks", "at", STACK, "2026-11-20T09:14:59Z")
    assert (ran.status, ran.err) == (1, "stackmgr: the stack was created later, at 2026-11-20T09:15:00Z\n")


def test_diff_compares_two_revisions_and_by_default_the_last_change(on_saved):
    ran = on_saved("stacks", "diff", STACK)
    assert ran.status == 3
    assert ran.out == "WHAT\tREVISION 3\tREVISION 4\nAAPL\t100 %\t60 %\nAMD\t-\t40 %\n"
    ran = on_saved("stacks", "diff", STACK, "1", "3", "--json")
    assert (ran.status, ran.json) == (3, [{"what": "preset", "before": "weekly", "after": "daily"}])


def test_diff_of_equal_revisions_finds_nothing(on_saved):
    assert on_saved("stacks", "diff", STACK, "2", "2").status == 0


@pytest.mark.parametrize(("stack_id", "numbers"), [(STACK, ("1", "5")), (QUIET_STACK, ())])
def test_diff_with_a_revision_that_is_not_there(on_saved, stack_id, numbers):
    ran = on_saved("stacks", "diff", stack_id, *numbers)
    assert ran.status == 1
    assert "there is no revision" in ran.err


@pytest.mark.parametrize("verb", ["show", "history", "diff"])
def test_an_unknown_stack_is_said_to_be_none(on_saved, verb):
    unknown = str(uuid4())
    ran = on_saved("stacks", verb, unknown)
    assert (ran.status, ran.err) == (1, f"stackmgr: there is no stack {unknown}\n")


@pytest.mark.parametrize("token", ["AMD", "amd", ADDRESS["AMD"], ADDRESS["AMD"].upper()])
def test_find_by_token_names_the_stacks_that_hold_it_with_their_weights(on_saved, token):
    head, *rows = table(on_saved("stacks", "find", "--token", token))
    assert head == ["EXTERNAL_ID", "STACK_ID", "WEIGHT", "NAME"]
    assert rows == [[MANAGER, STACK, "40 %", "Growth"], [OTHER_MANAGER, OTHERS_STACK, "0.01 %", "Chips"]]


def test_find_by_a_token_that_is_none(on_saved):
    ran = on_saved("stacks", "find", "--token", "DOGE")
    assert ran.status == 1
    assert "DOGE is no symbol of" in ran.err
    assert table(on_saved("stacks", "find", "--token", "0x" + "00" * 20))[1:] == []


def test_find_by_revision_and_name(on_saved):
    revision_id = saved.SAVED[0].revision_id(3)
    expected = [MANAGER, MANAGER_ID, STACK, "3", revision_id, "2026-11-21T22:10:54Z", "support-daily"]
    assert table(on_saved("stacks", "find", "--revision", revision_id))[1:] == [expected]
    assert table(on_saved("stacks", "find", "--name", "GROW"))[1:] == [[MANAGER, STACK, "Growth"]]
    assert on_saved("stacks", "find", "--name", "o", "--json").json == {
        "items": [
            {"external_id": MANAGER, "stack_id": STACK, "name": "Growth"},
            {"external_id": MANAGER, "stack_id": QUIET_STACK, "name": "Income"},
        ],
        "has_more": False,
    }


def test_find_by_manager_lists_its_stacks_newest_first(on_saved):
    for any_id in (MANAGER, MANAGER_ID):
        head, *rows = table(on_saved("stacks", "find", "--external-id", any_id))
        assert head == ["EXTERNAL_ID", "STACK_ID", "WHEN", "NAME"]
        assert rows == [
            [MANAGER, QUIET_STACK, "2026-11-21T10:00:00Z", "Income"],
            [MANAGER, STACK, "2026-11-20T09:15:00Z", "Growth"],
        ]


def test_a_search_is_limited_to_a_manager(on_saved):
    of_one = ("stacks", "find", "--external-id", OTHER_MANAGER)
    assert [row[1] for row in table(on_saved(*of_one, "--token", "AMD"))[1:]] == [OTHERS_STACK]
    assert table(on_saved(*of_one, "--name", "Growth")) == []
    assert table(on_saved(*of_one, "--revision", saved.SAVED[0].revision_id(3))) == []


def test_an_id_of_no_manager_is_an_error(on_saved):
    unknown = str(uuid4())
    ran = on_saved("stacks", "find", "--external-id", unknown)
    assert ran.err == f"stackmgr: no manager has the external id or manager id {unknown}\n"
    assert ran.status == 1


BODY = """{"schedule": {"preset": "weekly"}, "name": "%s", "allocation": [
    {"weight_bps": 10000, "token_address": "%s"}]}"""


@pytest.mark.parametrize(
    ("given", "differences"),
    [
        (("Growth", "AAPL"), []),
        (("Grown", "AAPL"), [("name", '"Growth"', '"Grown"')]),
        (("Growth", "AMD"), [("AAPL", "100 %", "-"), ("AMD", "-", "100 %")]),
    ],
)
def test_a_body_is_compared_with_the_input_of_an_idempotency_key(on_saved, tmp_path, given, differences):
    name, symbol = given
    status = 3 if differences else 0
    file = tmp_path / "body.json"
    file.write_text(BODY % (name, ADDRESS[symbol]))
    of_key = ("stacks", "find", "--external-id", MANAGER, "--idempotency-key", "growth-2026")
    ran = on_saved(*of_key, "--body", file)
    lines = [line.split("\t") for line in ran.out.splitlines()]
    created = [MANAGER, STACK, "2026-11-20T09:15:00Z", "import-17", "Growth"]
    assert lines[1] == [*created, "different" if differences else "same"]
    assert [tuple(line) for line in lines[4:]] == differences
    assert ran.status == status
    assert ran.err == f"A create with this key and body returns {409 if differences else 200}.\n"
    as_json = on_saved(*of_key, "--body", file, "--json")
    assert as_json.status == status
    [item] = as_json.json["items"]
    assert [tuple(each.values()) for each in item["differences"]] == differences


def test_the_service_returns_what_the_comparison_says(on_saved, client, database_url, monkeypatch, tmp_path):
    body = configuration()
    client.create(body, key="compared")
    monkeypatch.setenv("STACKMGR_DATABASE_URL", database_url)
    file = tmp_path / "body.json"
    for document, expected in ((body, 200), (body | {"name": "Another"}, 409)):
        file.write_text(json.dumps(document))
        of_key = ("stacks", "find", "--external-id", client.external_id, "--idempotency-key", "compared")
        ran = on_saved(*of_key, "--body", file)
        assert f"returns {expected}." in ran.err
        assert client.create(document, key="compared").status_int == expected


def test_an_unused_idempotency_key_is_said_to_be_one_and_belongs_to_one_manager(on_saved):
    ran = on_saved("stacks", "find", "--external-id", OTHER_MANAGER, "--idempotency-key", "growth-2026")
    assert (ran.status, ran.out) == (0, "")
    assert ran.err == "The key is not used: a create with it returns 201.\n"


def test_a_body_that_the_service_rejects_is_not_compared(on_saved, tmp_path):
    file = tmp_path / "body.json"
    file.write_text("{}")
    of_key = ("stacks", "find", "--external-id", MANAGER, "--idempotency-key", "growth-2026")
    ran = on_saved(*of_key, "--body", file)
    assert (ran.status, ran.out) == (1, "")
    assert f"'stackmgr explain {file}' says why" in ran.err


def fields(text: str) -> dict[str, str]:
    return dict(line.split("\t") for line in text.splitlines())


def test_request_shows_the_revision_its_place_and_its_log_line(on_saved):
    for arguments in ((), ("--external-id", MANAGER_ID)):
        ran = on_saved("request", "support-daily", *arguments)
        shown = fields(ran.out)
        assert (shown["external_id"], shown["manager_id"], shown["stack_id"]) == (MANAGER, MANAGER_ID, STACK)
        assert (shown["revision"], shown["changed"]) == ("3 of 4", "preset monthly → daily")
        assert shown["key"] == "…Qq07 support desk"
        assert shown["idempotency_key"] == "-"
        assert shown["log"] == (
            "journalctl -u stackmgr --since '2026-11-21 22:09:54 UTC' --until '2026-11-21 22:11:54 UTC'"
            """ | grep -F '"request_id": "support-daily"'"""
        )


def test_request_shows_the_receipt_of_a_creation(on_saved):
    shown = fields(on_saved("request", "import-17").out)
    assert (shown["revision"], shown["idempotency_key"]) == ("1 of 4", '"growth-2026"')
    assert on_saved("request", "import-17", "--json").json["items"][0]["idempotency_key"] == "growth-2026"


def test_a_request_that_made_no_revision_is_looked_for_in_the_log(on_saved):
    for arguments in (("x' OR 1=1 --",), ("import-17", "--external-id", OTHER_MANAGER)):
        ran = on_saved("request", *arguments)
        assert (ran.status, ran.out) == (1, "")
        assert "no revision has this request id" in ran.err
        assert '| grep -F \'"request_id": "' in ran.err


def test_the_text_to_look_for_is_that_of_the_json_log(on_saved, client, database_url, monkeypatch):
    client.create(configuration(), headers={"X-Request-Id": "Zo\xeb 1"})
    monkeypatch.setenv("STACKMGR_DATABASE_URL", database_url)
    ran = on_saved("request", "Zo\xeb 1", "--external-id", client.external_id)
    assert '"request_id": "Zo\\u00eb 1"' in fields(ran.out)["log"]


def test_a_limited_search_says_that_there_is_more(on_saved):
    ran = on_saved("stacks", "find", "--name", "o", "--limit", "1")
    assert len(table(ran)) == 2
    assert "There are more: --limit 10 shows them." in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "x"),
        ("find",),
        ("find", "--name", "a", "--token", "AMD"),
        ("find", "--revision", "x"),
        ("find", "--body", "x"),
        ("find", "--idempotency-key", "x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(on_saved, arguments):
    assert on_saved("stacks", *arguments).status == 2


def test_a_key_of_a_remote_verifier_is_named_by_its_id(on_saved, client, database_url, admin, monkeypatch):
    stack_id = client.create(configuration()).json["id"]
    admin.execute("UPDATE stackmgr.stack_revisions SET key_id = 'key_7x' WHERE stack_id = %s", [stack_id])
    monkeypatch.setenv("STACKMGR_DATABASE_URL", database_url)
    assert table(on_saved("stacks", "history", stack_id))[1][2] == "key_7x"
