"""`stackmgr keys`: its output, for operators and for scripts."""

import re
from uuid import uuid4

import pytest

KEY = re.compile(r"stackmgr_[0-9A-Za-z]{38}\n")
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture
def issued(command):
    """A new key as `issue` prints it for scripts."""
    return command("keys", "issue", "--json", "--external-id", str(uuid4())).json


def test_issue_and_rotate_print_the_key_alone(command, holder, issued):
    first = command("keys", "issue", "--external-id", str(uuid4()))
    successor = command("keys", "rotate", issued["key_id"])
    for printed in (first, successor):
        assert printed.status == 0
        assert KEY.fullmatch(printed.out)
        assert re.fullmatch(rf"key id {UUID}\n", printed.err)
        assert holder(printed.out).page().status_int == 200
    assert holder(issued["key"]).page().status_int == 401


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("2999-01-31T00:00:00+02:00", "2999-01-30T22:00:00Z"),
        ("2999-01-31", "2999-01-31T00:00:00Z"),
        ("2999-01-31Z", "2999-01-31T00:00:00Z"),
    ],
)
def test_issue_for_scripts_prints_one_document(command, given, printed):
    issued = command("keys", "issue", "--json", "--external-id", str(uuid4()), "--expires-at", given)
    assert issued.err == ""
    assert issued.json.keys() == {"key", "key_id", "expires_at"}
    assert issued.json["expires_at"] == printed


def test_list_shows_everything_except_the_key(command):
    external_id = str(uuid4())
    options = ("--quota", "100/10", "--label", "robot äöü")
    key = command("keys", "issue", "--external-id", external_id, *options).out.strip()
    (record,) = command("keys", "list", "--json", "--external-id", external_id).json
    assert record.pop("key_id")
    assert record.pop("created_at")
    assert record == {
        **dict.fromkeys(("expires_at", "revoked_at", "last_used_hour", "successor_id")),
        "external_id": external_id,
        "state": "valid",
        "last_four": key[-4:],
        "label": "robot äöü",
        "quota": "100/10",
    }
    listed = command("keys", "list")
    assert key not in listed.out
    (line,) = (line for line in listed.out.splitlines() if external_id in line)
    assert line.split("\t")[2:4] == ["valid", key[-4:]]
    assert line.split("\t")[-3:] == ["100/10", "-", "robot äöü"]


def test_a_key_is_issued_by_the_manager_id_to_the_account_of_the_manager(command, client):
    client.page()
    [manager] = command("managers", "show", "--json", client.external_id).json
    issued = command("keys", "issue", "--json", "--external-id", manager["manager_id"]).json
    listed = command("keys", "list", "--json", "--external-id", client.external_id).json
    assert issued["key_id"] in [record["key_id"] for record in listed]


def test_rotate_with_an_overlap_leaves_both_valid(command, holder, issued):
    new = command("keys", "rotate", issued["key_id"], "--overlap", "600", "--json").json
    assert [holder(each["key"]).page().status_int for each in (issued, new)] == [200, 200]


def test_an_error_is_reported_in_one_line(command, issued):
    key_id, unknown = issued["key_id"], str(uuid4())
    successor = command("keys", "rotate", key_id, "--json").json["key_id"]
    command("keys", "revoke", successor)
    for arguments, message in {
        ("revoke", unknown): f"no key has the id {unknown}: see 'stackmgr keys list'",
        ("rotate", unknown): f"no key has the id {unknown}: see 'stackmgr keys list'",
        ("rotate", key_id): f"key {key_id} was rotated before: rotate its successor {successor}",
        ("rotate", successor): f"key {successor} is revoked: issue another with 'stackmgr keys issue'",
    }.items():
        result = command("keys", *arguments)
        assert (result.status, result.out, result.err) == (1, "", f"stackmgr: {message}\n")
