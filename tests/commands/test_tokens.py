"""`stackmgr tokens`: the list in force, files checked and compared, and what a change would affect."""

import json

import pytest

from tests.commands import saved
from tests.support.examples import TOKENS


@pytest.fixture
def without(tmp_path):
    """Return a function that writes a whitelist in which a token gave its place to another."""

    def write(symbol: str):
        path = tmp_path / f"without-{symbol}.json"
        path.write_text(saved.whitelist_without(symbol))
        return path

    return write


def test_list_prints_every_token_with_its_checksummed_address(command):
    ran = command("tokens", "list")
    assert ran.status == 0
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == ["SYMBOL", "NAME", "ADDRESS"]
    assert rows == [[token["symbol"], token["name"], token["address"]] for token in TOKENS]
    assert "settlement asset USDG is not one of them" in ran.err
    assert command("tokens", "list", "--json").json == TOKENS


def test_list_prints_the_list_of_the_environment(command, without, monkeypatch):
    monkeypatch.setenv("STACKMGR_TOKENS", str(without("AMD")))
    assert {token["symbol"] for token in command("tokens", "list", "--json").json} >= {"NEW", "AAPL"}
    monkeypatch.setenv("STACKMGR_TOKENS", "/nowhere/tokens.json")
    ran = command("tokens", "list")
    assert (ran.status, ran.err.startswith("stackmgr: whitelist /nowhere/tokens.json: cannot be")) == (
        1,
        True,
    )


def test_check_accepts_the_shipped_list_without_a_database(command):
    ran = command("tokens", "check", saved.TOKENS_FILE)
    assert ran.status == 0
    assert ran.out.endswith("30 tokens of chain 4663, EIP-55 checksums correct, settlement asset absent\n")


def test_check_names_every_problem_and_exits_with_3(command, tmp_path):
    document = json.loads(saved.TOKENS_FILE.read_bytes())
    document["tokens"][0]["address"] = document["tokens"][0]["address"].swapcase().replace("X", "x")
    document["tokens"][1]["address"] = document["settlement_asset"]["address"]
    document["tokens"].pop()
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(document).replace("4663,", '4663, "chain_id": 4663.0,'))
    ran = command("tokens", "check", path)
    assert ran.status == 3
    for problem in (
        "an object repeats the member 'chain_id'",
        "chain_id must be the integer 4663",
        "breaks the EIP-55 checksum",
        "is the settlement asset",
        "exactly 30 tokens, there are 29",
    ):
        assert problem in ran.out
    assert len(command("tokens", "check", path, "--json").json["problems"]) == 5


def test_check_of_a_file_that_cannot_be_read_exits_with_1(command, tmp_path):
    ran = command("tokens", "check", tmp_path / "none.json")
    assert (ran.status, ran.out) == (1, "")
    assert "none.json cannot be read: No such file" in ran.err


def test_diff_names_what_leaves_enters_and_is_renamed(command, without, tmp_path):
    assert command("tokens", "diff", saved.TOKENS_FILE, saved.TOKENS_FILE).status == 0
    renamed = tmp_path / "renamed.json"
    renamed.write_text(without("AMD").read_text().replace('"AAPL"', '"APPLE"'))
    ran = command("tokens", "diff", saved.TOKENS_FILE, renamed)
    assert ran.status == 3
    rows = {tuple(line.split("\t")[:2]) for line in ran.out.splitlines()[1:]}
    assert rows == {("removed", "AMD"), ("added", "NEW"), ("renamed", "AAPL → APPLE")}
    assert len(command("tokens", "diff", saved.TOKENS_FILE, renamed, "--json").json) == 3


def test_impact_names_the_stacks_that_hold_a_leaving_token_and_counts_the_retries(on_saved, without):
    ran = on_saved("tokens", "impact", without("AMD"), "--json")
    assert ran.status == 3
    document = ran.json
    assert document["compared_with"] == str(saved.TOKENS_FILE)
    (leaving,) = document["leaving"]
    assert (leaving["symbol"], leaving["stacks"], leaving["managers"]) == ("AMD", 2, 2)
    assert [token["symbol"] for token in document["entering"]] == ["NEW"]
    held = {stack["stack_id"]: (stack["external_id"], stack["weights_bps"]) for stack in document["stacks"]}
    assert held == {
        saved.STACK: (saved.MANAGER, {"AMD": 4000}),
        saved.OTHERS_STACK: (saved.OTHER_MANAGER, {"AMD": 1}),
    }
    # Of the two, one was created with the token.
    assert document["retries_from_200_to_400"] == 1


def test_impact_prints_tables_and_says_that_there_are_more(on_saved, without):
    ran = on_saved("tokens", "impact", without("AMD"), "--limit", "1")
    assert ran.status == 3
    assert "AMD\t0x86923f96303D656E4aa86D9d42D1e57ad2023fdC\t2\t2\n" in ran.out
    assert f"{saved.MANAGER}\t{saved.STACK}\tAMD 40 %\tGrowth\n" in ran.out
    assert saved.OTHERS_STACK not in ran.out
    assert "--limit 2 shows more" in ran.err


def test_impact_counts_a_creation_whose_token_has_been_removed_by_an_update(on_saved, without):
    document = on_saved("tokens", "impact", without("TSLA"), "--json").json
    assert (document["stacks"], document["retries_from_200_to_400"]) == ([], 0)
    assert on_saved("tokens", "impact", without("TSLA")).status == 0
    assert on_saved("tokens", "impact", without("MSFT"), "--json").json["retries_from_200_to_400"] == 1


def test_impact_of_the_same_list_finds_nothing(on_saved):
    ran = on_saved("tokens", "impact", saved.TOKENS_FILE)
    assert (ran.status, ran.out) == (0, "")
    assert "No token leaves the list" in ran.err
