"""Blank names, the normal form of an allocation, and the digest of an input."""

import hashlib
import sys

import pytest

from stackmgr.errors import InvalidConfiguration
from stackmgr.stacks import configuration
from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES, allocation

A, B, C = ADDRESSES[:3]


def test_blank_is_whitespace_of_python():
    blank = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(blank) == 29
    for character in blank:
        with pytest.raises(InvalidConfiguration) as caught:
            configuration.check_name(character * 2)
        assert caught.value.reason == "name_blank"
        assert configuration.check_name(f"{character}x{character}") == f"{character}x{character}"


def test_an_allocation_is_normalized(spellings):
    items = allocation((eip55(B), 0), (C, 9999), (eip55(A), 1))
    assert configuration.normalize_allocation(items, spellings) == (
        f'[{{"token_address":"{A}","weight_bps":1}},'
        f'{{"token_address":"{B}","weight_bps":0}},'
        f'{{"token_address":"{C}","weight_bps":9999}}]'
    )


def test_the_digest_never_changes():
    # Receipts never expire: with another digest, a retry would be a conflict.
    items = '[{"token_address":"0x00","weight_bps":10000}]'
    known = Configuration("Z\u00fcrich \U0001f600", items, "monthly")
    text = f'["Z\\u00fcrich \\ud83d\\ude00","monthly"]\n{items}'
    assert known.digest() == hashlib.sha256(text.encode()).digest()
