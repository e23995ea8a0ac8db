"""`stackmgr tokens`: the list in force, and files checked."""

import json

import pytest

from tests.operate import saved
from tests.support.examples import TOKENS


def test_list_prints_every_token(command):
    ran = command("tokens", "list")
    assert ran.status == 0
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == ["SYMBOL", "NAME", "ADDRESS"]
    assert rows == [[token["symbol"], token["name"], token["address"]] for token in TOKENS]
    assert "settlement asset USDG is not one of them" in ran.err
    assert command("tokens", "list", "--json").json == TOKENS


def test_list_prints_the_list_of_the_environment(command, tmp_path, monkeypatch):
    monkeypatch.setenv("STACKMGR_TOKENS", str(tmp_path / "tokens.json"))
    (tmp_path / "tokens.json").write_text(saved.whitelist_without("AMD"))
    assert {token["symbol"] for token in command("tokens", "list", "--json").json} >= {"NEW", "AAPL"}
    (tmp_path / "tokens.json").unlink()
    ran = command("tokens", "list")
    assert ran.status == 1
    assert ran.err.startswith(f"stackmgr: whitelist {tmp_path}/tokens.json: cannot be")


@pytest.mark.parametrize(("change", "checked"), [(str, 30), (str.lower, 29)])
def test_check_counts_the_checksums(command, tmp_path, change, checked):
    document = json.loads(saved.TOKENS_FILE.read_bytes())
    document["tokens"][0]["address"] = change(document["tokens"][0]["address"])
    (tmp_path / "tokens.json").write_text(json.dumps(document))
    ran = command("tokens", "check", tmp_path / "tokens.json")
    assert ran.status == 0
    assert f"30 tokens of chain 4663, {checked} with a correct EIP-55 checksum, settlement" in ran.out


def test_check_names_every_problem_and_exits_with_3(command, tmp_path):
    document = json.loads(saved.TOKENS_FILE.read_bytes())
    first, second, *_ = document["tokens"]
    first["address"] = first["address"].swapcase().replace("X", "x")
    second["address"] = document["settlement_asset"]["address"]
    document["tokens"].pop()
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(document).replace("4663,", '4663, "chain_id": 4663.0,'))
    ran = command("tokens", "check", path)
    assert ran.status == 3
    for problem in (
        "an object repeats the member 'chain_id'",
        "chain_id must be the integer 4663",
        "does not match its EIP-55 checksum",
        "is the settlement asset",
        "exactly 30 tokens, there are 29",
    ):
        assert problem in ran.out
    assert len(command("tokens", "check", path, "--json").json["problems"]) == 5


def test_check_of_an_unreadable_file_exits_1(command, tmp_path):
    ran = command("tokens", "check", tmp_path / "none.json")
    assert (ran.status, ran.out) == (1, "")
    assert "none.json cannot be read: No such file" in ran.err
