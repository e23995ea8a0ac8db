"""Rules that no schema can state, the normal form of an allocation, and equal inputs."""

import hashlib
import sys

import pytest

from stackmgr.errors import InvalidConfiguration
from stackmgr.stacks import configuration
from stackmgr.stacks.configuration import Changes, Configuration
from stackmgr.stacks.eip55 import eip55
from tests.support import examples
from tests.support.examples import ADDRESSES

A, B, C = ADDRESSES[:3]


def allocation(*pairs):
    return [{"token_address": address, "weight_bps": weight} for address, weight in pairs]


def reason_of(function, *arguments):
    with pytest.raises(InvalidConfiguration) as caught:
        function(*arguments)
    return caught.value.reason


def test_blank_is_what_python_counts_as_whitespace():
    blank = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(blank) == 29
    for character in blank:
        assert reason_of(configuration.check_name, character * 2) == "name_blank"
        assert configuration.check_name(f"{character}x{character}") == f"{character}x{character}"


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "\u200b",
        "\ufeff",
        "\u2060",
        "\u00ad",
        "e\u0301",
        "\u00e9",
        "\U0001f600",
        "\x7f",
        "\x01",
        "\\u0000",
        "x" * 250000,
    ],
    ids=range(12),
)
def test_a_name_is_kept_code_point_for_code_point(name):
    assert configuration.check_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (" ", "name_blank"),
        ("\t\r\n\v\f", "name_blank"),
        ("\0", "name_nul"),
        ("a\0b", "name_nul"),
        ("\ud800", "name_surrogate"),
        ("a\udfff", "name_surrogate"),
    ],
)
def test_a_name_that_cannot_be_kept_is_rejected(name, reason):
    assert reason_of(configuration.check_name, name) == reason


def test_an_allocation_becomes_lowercase_sorted_text_without_spaces(spellings):
    items = allocation((eip55(B), 0), (C, 9999), (eip55(A), 1))
    assert configuration.normalize_allocation(items, spellings) == (
        f'[{{"token_address":"{A}","weight_bps":1}},'
        f'{{"token_address":"{B}","weight_bps":0}},'
        f'{{"token_address":"{C}","weight_bps":9999}}]'
    )


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (allocation((A, 5000), (A, 5000)), "token_repeated"),
        (allocation((A, 5000), (eip55(A), 5000)), "token_repeated"),
        (allocation((A, 10000), (A, 0)), "token_repeated"),
        (allocation((A, 9999)), "weights_total"),
        (allocation((A, 10000), (B, 1)), "weights_total"),
        (allocation((A, 0)), "weights_total"),
        (allocation(("0x" + "0" * 40, 10000)), "token_not_whitelisted"),
        (allocation(("0x" + A[2:].upper(), 10000)), "token_checksum"),
        (allocation((eip55(A).swapcase().replace("X", "x"), 10000)), "token_checksum"),
        (allocation((A.replace("0x", "0X"), 10000)), "token_checksum"),
        (allocation((A + "\n", 10000)), "token_not_whitelisted"),
    ],
    ids=range(11),
)
def test_an_allocation_that_breaks_a_rule_is_rejected(spellings, items, reason):
    assert reason_of(configuration.normalize_allocation, items, spellings) == reason


def test_all_thirty_tokens_fit_an_allocation(spellings):
    items = allocation(*((address, 333) for address in ADDRESSES[:29]), (ADDRESSES[29], 10000 - 29 * 333))
    assert configuration.normalize_allocation(items, spellings).count("token_address") == 30


def test_an_update_names_only_the_fields_it_changes(spellings):
    assert configuration.parse_update({"name": "x"}, spellings) == Changes("x", None, None)
    assert configuration.parse_update({"schedule": {"preset": "daily"}}, spellings) == Changes(
        None, None, "daily"
    )
    changes = configuration.parse_update({"allocation": allocation((A, 10000))}, spellings)
    assert changes == Changes(None, f'[{{"token_address":"{A}","weight_bps":10000}}]', None)


def test_formatting_order_and_capitals_do_not_make_another_input(spellings):
    document = examples.configuration(allocation=allocation((A, 4000), (B, 6000)))
    other = examples.configuration(allocation=allocation((eip55(B), 6000), (eip55(A), 4000)))
    first, second = (configuration.parse_create(each, spellings) for each in (document, other))
    assert first == second
    assert first.digest() == second.digest()


def test_every_field_counts_for_the_identity_of_an_input():
    inputs = [
        Configuration("Growth", "[1]", "daily"),
        Configuration("Growth ", "[1]", "daily"),
        Configuration("growth", "[1]", "daily"),
        Configuration("e\u0301", "[1]", "daily"),
        Configuration("\u00e9", "[1]", "daily"),
        Configuration("Growth", "[2]", "daily"),
        Configuration("Growth", "[1]", "weekly"),
        Configuration('Growth","daily"]\n[1]', "[1]", "daily"),
        Configuration("Growth\n", "[1]", "daily"),
        Configuration("\\u00e9", "[1]", "daily"),
    ]
    assert len({each.digest() for each in inputs}) == len(inputs)


def test_the_digest_of_an_input_never_changes():
    # Receipts never expire: with another digest, a retry would be a conflict.
    known = Configuration(
        "Z\u00fcrich \U0001f600", '[{"token_address":"0x00","weight_bps":10000}]', "monthly"
    )
    text = '["Z\\u00fcrich \\ud83d\\ude00","monthly"]\n[{"token_address":"0x00","weight_bps":10000}]'
    assert known.digest() == hashlib.sha256(text.encode()).digest()
