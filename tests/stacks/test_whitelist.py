"""The whitelist file and EIP-55: the rules, and one message with every problem."""

import copy
import hashlib
import json
from functools import reduce
from operator import getitem

import pytest
from Crypto.Hash import keccak

from stackmgr import paths
from stackmgr.settings import SettingsError
from stackmgr.stacks import whitelist
from stackmgr.stacks.eip55 import eip55, keccak256

SHIPPED = json.loads(paths.DEFAULT_WHITELIST.read_bytes())


@pytest.fixture
def problems(tmp_path):
    def find(document):
        path = tmp_path / "tokens.json"
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        with pytest.raises(SettingsError) as caught:
            whitelist.load(path)
        start = f"whitelist {path}: "
        assert all(problem.startswith(start) for problem in caught.value.problems)
        return [problem.removeprefix(start) for problem in caught.value.problems]

    return find


def changed(change):
    document = copy.deepcopy(SHIPPED)
    change(document)
    return document


def test_the_shipped_tokens_in_both_spellings():
    spellings = whitelist.load(paths.DEFAULT_WHITELIST).spellings
    written = [token["address"] for token in SHIPPED["tokens"]]
    assert set(spellings.values()) == {address.lower() for address in written}
    assert set(spellings) == set(spellings.values()) | {eip55(address) for address in written}
    assert all(spelling.lower() == address for spelling, address in spellings.items())
    assert len(set(spellings.values())) == 30
    # The checksummed form of one of them (LLY) holds no capital letter.
    assert len(spellings) == 59


def test_a_whitelist_in_lowercase_is_the_same(tmp_path):
    path = tmp_path / "tokens.json"
    text = json.dumps(SHIPPED).replace("0x", "0X").lower().replace('"name"', '"note"')
    path.write_text(text, encoding="utf-8-sig")  # as some editors do
    loaded = whitelist.load(path)
    assert loaded.spellings == whitelist.load(paths.DEFAULT_WHITELIST).spellings
    assert {token.name for token in loaded.tokens.values()} == {""}


def test_an_unreadable_file_is_named(tmp_path):
    for path, reason in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingsError) as caught:
            whitelist.load(path)
        assert caught.value.problems == [f"whitelist {path}: cannot be read ({reason})"]


NOT_JSON = (b"", b"{", b"\xff", b"tokens = []", b"[" * 100000, b"9" * 5000)
NO_OBJECT = "the top level must be an object with chain_id, settlement_asset and tokens"


@pytest.mark.parametrize(("document", "problem"), [
    *((content, "is not a JSON document") for content in NOT_JSON),
    *((document, NO_OBJECT) for document in ([], None, 1, "x", [SHIPPED])),
], ids=range(11))  # fmt: skip
def test_a_file_must_be_a_json_object(problems, document, problem):
    assert problems(document) == [problem]


FIRST, SECOND = SHIPPED["tokens"][0], SHIPPED["tokens"][1]
SETTLEMENT = SHIPPED["settlement_asset"]
LOWERCASE, ZERO = FIRST["address"].lower(), "0x" + 40 * "0"
NO_ADDRESS = "has no address of the form 0x and 40 hexadecimal digits"
NO_TOKEN = "which is not an allocation token"  # noqa: S105 - no secret
EXACTLY_30 = "there must be exactly 30 tokens"
NO_CHECKSUM = "token 1: the address does not match its EIP-55 checksum"


# Each value, the place where it is put, and the problem.
WRONG = [
    *((value, ["chain_id"], "chain_id must be the integer 4663") for value in (1, "4663", 4663.0, None)),
    (None, ["settlement_asset"], "settlement_asset is not an object"),
    (None, ["settlement_asset", "symbol"], "settlement_asset has no symbol"),
    (None, ["settlement_asset", "address"], f"settlement_asset {NO_ADDRESS}"),
    (ZERO, ["settlement_asset", "address"], "settlement_asset is the zero address, which is not a token"),
    *((value, ["tokens"], "tokens must be an array") for value in (None, {})),
    *((SHIPPED["tokens"][:n], ["tokens"], f"{EXACTLY_30}, there are {n}") for n in (29, 0)),
    ([*SHIPPED["tokens"], FIRST | {"address": "0x" + 40 * "1"}], ["tokens"], f"{EXACTLY_30}, there are 31"),
    (FIRST, ["tokens", 2], "token 3 repeats an earlier address"),
    (LOWERCASE, ["tokens", 2, "address"], "token 3 repeats an earlier address"),
    (ZERO, ["tokens", 6, "address"], "token 7 is the zero address, which is not a token"),
    *((value, ["tokens", 0], "token 1 is not an object") for value in (None, FIRST["address"])),
    *((value, ["tokens", 29, "symbol"], "token 30 has no symbol") for value in ("", 7)),
    *((value, ["tokens", 5, "name"], "token 6 has a name that is not a string") for value in (None, 7)),
    *((value, ["tokens", 0, "address"], f"token 1 {NO_ADDRESS}")
      for value in (None, LOWERCASE[:-1], LOWERCASE + "\n", "0X" + LOWERCASE[2:])),
    *(("0x" + change(FIRST["address"][2:]), ["tokens", 0, "address"], NO_CHECKSUM)
      for change in (str.swapcase, str.upper)),
]  # fmt: skip


@pytest.mark.parametrize(("value", "place", "problem"), WRONG)
def test_whatever_breaks_a_rule_is_named(problems, value, place, problem):
    *parents, last = place
    assert problems(changed(lambda d: reduce(getitem, parents, d).__setitem__(last, value))) == [problem]


def test_the_settlement_asset_is_no_token_in_any_spelling(problems):
    for its, listed in ((str, str), (str.lower, str), (str, str.lower)):
        document = changed(lambda d: d["tokens"][4].update(address=listed(SETTLEMENT["address"])))  # noqa: B023
        document["settlement_asset"]["address"] = its(SETTLEMENT["address"])
        assert problems(document) == [f"token 5 is the settlement asset, {NO_TOKEN}"]


@pytest.mark.parametrize("member", ["chain_id", "tokens", "symbol", "address"])
def test_a_repeated_member_is_named(problems, member):
    text = json.dumps(SHIPPED).replace(f'"{member}":', f'"{member}": null, "{member}":', 1)
    assert problems(text.encode()) == [f"an object repeats the member '{member}'"]


def test_every_problem_is_named_at_once(problems):
    document = changed(lambda d: d["tokens"].pop())
    document["chain_id"] = 1
    document["settlement_asset"] = None
    document["tokens"][0] = {"address": "0x"}
    document["tokens"][2] = SECOND
    everything = [
        "chain_id must be the integer 4663", "settlement_asset is not an object",
        f"{EXACTLY_30}, there are 29", "token 1 has no symbol", f"token 1 {NO_ADDRESS}",
        "token 3 repeats an earlier address",
    ]  # fmt: skip
    assert problems(document) == everything
    document["tokens"] = None
    assert problems(document) == [*everything[:2], "tokens must be an array"]


def independent(data):
    return keccak.new(digest_bits=256, data=data).digest()


@pytest.mark.parametrize("length", range(136))
def test_keccak_is_that_of_pycryptodome(length):
    data = hashlib.shake_256(b"%d" % length).digest(length)
    assert keccak256(data) == independent(data)


def test_checksums_follow_keccak():
    for number in range(200):
        digits = hashlib.sha256(b"%d" % number).hexdigest()[:40]
        nibbles = independent(digits.encode()).hex()
        expected = "".join(d.upper() if n in "89abcdef" else d for d, n in zip(digits, nibbles, strict=False))
        assert eip55("0x" + digits) == "0x" + expected
