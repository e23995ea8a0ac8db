"""The form of a key: known by sight, and by its checksum."""

import hashlib
import re
import string
import zlib

import pytest

from stackmgr.access import api_keys

BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase


def with_checksum(random_part):
    """Return the key with the given random characters, its checksum computed another way."""
    number = zlib.crc32(random_part.encode())
    places = [number // 62**power % 62 for power in (5, 4, 3, 2, 1, 0)]
    return "stackmgr_" + random_part + "".join(BASE62[place] for place in places)


def test_new_keys_differ_have_the_published_form_and_use_every_character_of_the_alphabet():
    keys = {api_keys.generate() for _ in range(500)}
    assert len({key[9:41] for key in keys}) == 500
    assert {character for key in keys for character in key[9:41]} == set(BASE62)
    for key in keys:
        assert re.fullmatch(r"stackmgr_[0-9A-Za-z]{38}", key)
        assert re.fullmatch(api_keys.PATTERN, key)
        assert key == with_checksum(key[9:41])
        assert api_keys.is_well_formed(key)


@pytest.mark.parametrize("random_part", ["0" * 32, "z" * 32, "0123456789ABCDEFGHIJKLMNOPQRSTUV"])
def test_a_key_is_well_formed_exactly_with_the_checksum_of_its_random_characters(random_part):
    key = with_checksum(random_part)
    assert api_keys.is_well_formed(key)
    assert not api_keys.is_well_formed(key[:-6] + "000000")


GOOD = with_checksum("0123456789ABCDEFGHIJKLMNOPQRSTUV")


def test_every_single_wrong_character_is_noticed():
    for place in range(len(GOOD)):
        for character in BASE62 + "_-":
            wrong = GOOD[:place] + character + GOOD[place + 1 :]
            assert api_keys.is_well_formed(wrong) == (wrong == GOOD)


@pytest.mark.parametrize(
    "text",
    [
        *("", "stackmgr_", GOOD[:-1], GOOD + "0", GOOD + "\n", " " + GOOD, GOOD * 2, GOOD[9:], GOOD.upper()),
        GOOD.replace("stackmgr_", "stackmgr-"),
        *(GOOD.replace(*other) for other in (("1", "\u0661"), ("A", "\uff21"), ("0", "\0"))),
    ],
)
def test_another_text_is_no_key(text):
    assert not api_keys.is_well_formed(text)


def test_what_is_stored_of_a_key_is_its_sha256():
    assert api_keys.digest(GOOD) == hashlib.sha256(GOOD.encode()).digest()
