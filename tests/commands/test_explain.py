"""`stackmgr explain`: every reason with its place, and the identity of a body that is accepted."""

import json

import pytest

from stackmgr.dev.explanations import key_reasons
from stackmgr.limits import LONGEST_KEY_BYTES
from tests.support.corpus import BODIES, REASONS
from tests.support.examples import ADDRESSES, allocation, configuration


@pytest.fixture
def explain(command):
    """Return a function that explains a document, or a text, given on standard input."""

    def run(document, *arguments):
        text = document if isinstance(document, str) else json.dumps(document)
        return command("explain", "-", "--json", *arguments, stdin=text)

    return run


def places(outcome) -> dict[str, str]:
    return {reason["path"]: reason["rule"] for reason in outcome.json["reasons"]}


@pytest.mark.parametrize(("title", "expected"), REASONS.items(), ids=REASONS)
def test_every_reason_is_named_with_its_place(command, tmp_path, title, expected):
    path = tmp_path / "body.json"
    path.write_bytes(BODIES[title][0])
    ran = command("explain", path, "--json")
    assert ran.status == 3
    assert (ran.json["status"], ran.json["code"]) == (400, "invalid_request")
    assert places(ran) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"name": "a"}, {"allocation": "body_missing_field", "schedule": "body_missing_field"}),
        (configuration(**{"two words": 1}), {'["two words"]': "body_unknown_field"}),
        (
            configuration(allocation=allocation((ADDRESSES[0].upper().replace("X", "x"), 9999))),
            {"allocation[0].token_address": "token_checksum", "allocation": "weights_total"},
        ),
        (
            configuration(allocation=allocation((ADDRESSES[0], True), (ADDRESSES[1], "1"))),
            {"allocation[0].weight_bps": "weight_bps_type", "allocation[1].weight_bps": "weight_bps_type"},
        ),
        (
            configuration(name="", schedule={"preset": 1}, allocation=allocation((ADDRESSES[0], 1))),
            {"name": "name_empty", "schedule.preset": "preset_type", "allocation": "weights_total"},
        ),
    ],
    ids=["missing fields", "unknown field", "checksum and total", "two weights", "every field"],
)
def test_all_reasons_of_a_body_are_named(explain, document, expected):
    assert places(explain(document)) == expected


@pytest.mark.parametrize(
    ("text", "place", "rule", "message"),
    [
        ("", "$", "not_json", "is empty"),
        ("{", "$", "not_json", "line 1 column 2"),
        ("\xff{}", "$", "not_utf8", "is not UTF-8: byte 0xff at offset 0"),
        ('{"name": "a", "name": "b"}', "name", "repeated_member", "occurs more than once"),
        (
            '{"allocation": [{"weight_bps": NaN}]}',
            "allocation[0].weight_bps",
            "not_json",
            "NaN is not a JSON number",
        ),
        (f'{{"name": {"9" * 5000}}}', "name", "not_json", "is an integer of 5000 digits"),
        ("[" * 100_000, "$", "not_json", "nested too deeply"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_not_json_is_named_with_its_place(explain, text, place, rule, message):
    ran = explain(text)
    assert ran.status == 3
    found = {reason["path"]: reason for reason in ran.json["reasons"]}
    assert found[place]["rule"] == rule
    assert message in found[place]["message"]


def test_a_body_over_the_limit_is_413(explain):
    ran = explain(" " * 262145)
    assert (ran.status, ran.json["status"], ran.json["code"]) == (3, 413, "payload_too_large")


def test_text_names_the_symbol_and_the_right_spelling(command, tmp_path):
    path = tmp_path / "stack.json"
    wrong = "0xAF3d76f1834A1d425780943C99Ea8A608f8a93f9"
    path.write_text(json.dumps(configuration(allocation=allocation((wrong, 9999)))))
    ran = command("explain", path)
    assert ran.status == 3
    assert "breaks its EIP-55 checksum; AAPL is 0xaF3D76f1834A1d425780943C99Ea8A608f8a93f9" in ran.out
    assert "weights total 9999, not 10000 (1 missing)" in ran.out


def test_letters_outside_of_ascii_stay_readable(command, tmp_path):
    path = tmp_path / "stack.json"
    path.write_text(json.dumps(configuration() | {"schedule": {"preset": "t\xe4glich"}}))
    assert '"t\xe4glich" is not one of' in command("explain", path).out


def test_an_accepted_body_is_shown_normalized_with_its_identity(explain):
    one = explain(configuration())
    assert (one.status, one.json["accepted"], one.json["reasons"]) == (0, True, [])
    addresses = [item["token_address"] for item in one.json["normalized"]["allocation"]]
    assert addresses == sorted(address.lower() for address in addresses)
    reordered = configuration(allocation=configuration()["allocation"][::-1])
    assert explain(reordered).json["identity"] == one.json["identity"]
    assert explain(configuration(name="Growth ")).json["identity"] != one.json["identity"]


def test_update_bodies_have_other_rules_and_no_identity(explain):
    assert places(explain({"name": "a"})) != {}
    ran = explain({"name": "a"}, "--update")
    assert (ran.status, ran.json["normalized"]) == (0, {"name": "a"})
    assert "identity" not in ran.json
    assert places(explain({}, "--update")) == {"$": "body_empty"}


def test_the_list_of_the_environment_counts(explain, monkeypatch, tmp_path):
    monkeypatch.setenv("STACKMGR_TOKENS", str(tmp_path / "none.json"))
    ran = explain(configuration())
    assert ran.status == 1
    assert "none.json" in ran.err


def test_a_missing_file_and_wrong_usage(command, tmp_path):
    assert command("explain", tmp_path / "none").status == 1
    assert command("explain", "-", "--update", "--idempotency-key", "k").status == 2


def test_no_control_character_of_a_body_reaches_the_terminal(command):
    body = json.dumps(configuration(name="\x1b[31mred", **{"\x1b[0m": 1}))
    ran = command("explain", "-", stdin=body)
    assert "\x1b" not in ran.out
    ran = command("explain", "-", stdin=json.dumps(configuration(name="\x1b[31mred")))
    assert ran.status == 0
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("key", "rule"),
    [("", "idempotency_key_blank"), (" \t ", "idempotency_key_blank"), ("a\x01", "header")],
)
def test_a_key_that_no_request_can_carry_is_named(explain, key, rule):
    ran = explain(configuration(), "--idempotency-key", key)
    assert ran.status == 3
    assert places(ran) == {"Idempotency-Key": rule}


@pytest.mark.parametrize("character", ["k", "\xe9"], ids=["ASCII", "Latin-1"])
def test_the_longest_key_is_the_one_that_the_service_accepts(client, character):
    """A header carries bytes, each of which takes one or two in the index."""
    width = len(character.encode("utf-8"))
    longest = character * (LONGEST_KEY_BYTES // width)
    for key, status in ((longest, 201), (longest + character, 400)):
        assert client.create(configuration(), key).status_int == status
        # As os.fsencode() returns the bytes of an argument in a UTF-8 locale.
        argument = key.encode("latin-1").decode("utf-8", "surrogateescape")
        assert [reason.rule for reason in key_reasons(argument)] == (
            [] if status == 201 else ["idempotency_key_too_long"]
        )
