"""Configurations, and the cursor: one text for each position."""

import base64
import hashlib
import string
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from stackmgr.errors import InvalidConfiguration, InvalidPagination
from stackmgr.stacks import configuration, cursor
from stackmgr.stacks.cursor import Position
from tests.support.bad_bodies import SPACES
from tests.support.examples import STORED


def test_blank_is_whitespace_of_python():
    assert len(SPACES) == 29
    for character in SPACES:
        with pytest.raises(InvalidConfiguration) as caught:
            configuration.check_name(character * 2)
        assert caught.value.reason == "name_blank"
        assert configuration.check_name(f"{character}x{character}") == f"{character}x{character}"


def test_the_digest_never_changes():
    # Receipts never expire: with another digest, a retry would be a conflict.
    items = '[{"token_address":"0x00","weight_bps":10000}]'
    known = STORED._replace(name="Z\u00fcrich \U0001f600", allocation=items, preset="monthly")
    text = f'["Z\\u00fcrich \\ud83d\\ude00","monthly"]\n{items}'
    assert known.digest() == hashlib.sha256(text.encode()).digest()


ID = UUID("0f0e0d0c-0b0a-4988-8776-655443322110")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ALPHABET = string.ascii_letters + string.digits + "-_"


def packed(microseconds):
    return "1" + base64.urlsafe_b64encode(microseconds.to_bytes(8, "big") + ID.bytes).decode()


GOOD = packed(1772368215123456)


@pytest.mark.parametrize("moment", [EPOCH, MOMENT, LATEST, *(at + MICROSECOND for at in (EPOCH, MOMENT))])
@pytest.mark.parametrize("stack_id", [ID, UUID(int=0), UUID(int=(1 << 128) - 1)])
def test_a_position_is_exact(moment, stack_id):
    position = Position(moment, stack_id)
    assert cursor.decode(cursor.encode(position)) == position


def test_the_layout_never_changes():
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=-3, minutes=-30)))
    for moment in (MOMENT, elsewhere):
        assert cursor.encode(Position(moment, ID)) == GOOD == "1AAZL9aHfpgAPDg0MCwpJiId2ZVRDMiEQ"


def test_the_start_is_before_every_stack():
    assert Position(LATEST, UUID(int=(1 << 128) - 2)) < cursor.START
    assert cursor.decode(cursor.encode(cursor.START)) == cursor.START


def test_each_cursor_has_one_position():
    decoded = 0
    for number in range(5000):
        # A zero in front keeps some of the times below the year 10000.
        letters = base64.urlsafe_b64encode(hashlib.sha256(str(number).encode()).digest())[:30].decode()
        text = f"1AA{letters}"
        try:
            position = cursor.decode(text)
        except InvalidPagination:
            continue
        decoded += 1
        assert cursor.encode(position) == text
    assert decoded > 500


OTHER_CHARACTERS = ["=", "+", "/", " ", "\n", "\0", "%", "\xe9", "\u0661"]
OTHER_TEXTS = {
    "a time after the year 9999": [packed(at) for at in (253402300800000000, 1 << 62, (1 << 64) - 1)],
    "another version": [version + GOOD[1:] for version in ALPHABET.replace("1", "")],
    "another length": [(GOOD * 400)[:n] for n in (*range(len(GOOD)), len(GOOD) + 1, len(GOOD) + 4, 10000)],
    "another character": [
        GOOD[:place] + character + end
        for character in OTHER_CHARACTERS
        for place in range(len(GOOD))
        for end in (GOOD[place:], GOOD[place + 1 :])
    ],
}


@pytest.mark.parametrize("texts", OTHER_TEXTS.values(), ids=OTHER_TEXTS)
def test_any_other_text_is_no_cursor(texts):
    assert cursor.decode(packed(253402300799999999)).created_at == LATEST
    for text in texts:
        with pytest.raises(InvalidPagination):
            cursor.decode(text)
