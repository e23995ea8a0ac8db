"""A cursor is the only text of a position; an altered text is rejected, or is that of another position."""

import string
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stackmgr.errors import InvalidPagination
from stackmgr.stacks import cursor
from stackmgr.stacks.cursor import Position
from tests.support.examples import configuration

ALPHABET = string.ascii_letters + string.digits + "-_"

# Up to the last microsecond there is; the strategy adds the zone.
moments = st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
positions = st.builds(Position, moments, st.uuids())
# Those that a lenient reader of base64 takes for others, or passes over, are among the likeliest.
characters = st.one_of(
    st.sampled_from(ALPHABET), st.sampled_from("+/= \n"), st.characters(exclude_categories=["Cs"])
)


@st.composite
def tampered(draw):
    """Draw a cursor in which one character was replaced, and which is not what it was."""
    text = cursor.encode(draw(positions))
    place = draw(st.integers(0, len(text) - 1))
    changed = text[:place] + draw(characters) + text[place + 1 :]
    assume(changed != text)
    return changed


def position_of(text):
    """Return the position, or None where the text is rejected."""
    try:
        return cursor.decode(text)
    except InvalidPagination:
        return None


@given(positions)
def test_a_position_is_decoded_unchanged(position):
    assert cursor.decode(cursor.encode(position)) == position


@given(st.lists(positions, min_size=2, max_size=2, unique=True))
def test_two_positions_never_share_a_text(pair):
    first, second = map(cursor.encode, pair)
    assert first != second


@settings(max_examples=1000)
@given(tampered())
def test_a_tampered_cursor_is_rejected_or_is_the_text_of_its_position(text):
    position = position_of(text)
    assert position is None or cursor.encode(position) == text


@settings(max_examples=300)
@given(st.text(st.sampled_from(ALPHABET), min_size=32, max_size=32))
def test_any_text_of_the_form_is_rejected_or_is_the_text_of_its_position(letters):
    # Two thirds of the cases start as a cursor of this century does.
    for text in (f"1{letters}", f"1AA{letters[:30]}", f"1AAZ{letters[:29]}"):
        position = position_of(text)
        assert position is None or cursor.encode(position) == text


@pytest.fixture(scope="module")
def moment():
    return datetime.now(UTC)


@settings(max_examples=60)
@given(tampered())
def test_the_service_rejects_a_tampered_cursor_or_continues_at_its_position(make_client, moment, text):
    client = make_client()
    created = client.create(configuration()).json
    response = client.page(f"cursor={quote(text, safe='')}")
    position = position_of(text)
    if position is None:
        assert (response.status_int, response.json["code"]) == (400, "invalid_request")
    else:
        # The stack is newer than every position before this run began.
        later = position.created_at > moment
        assert response.json["items"] in ([created], []) if later else response.json["items"] == []
