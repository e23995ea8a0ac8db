"""How large a page is expected to be."""

from stackmgr.http.responses import estimate_page_bytes, serialize_in_turns, serialize_page
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks.repository import Stack


def stacks(*names):
    return [Stack("id", "revision", name, "[]", "daily") for name in names]


def test_a_page_of_ascii_is_expected_to_take_a_byte_for_each_character():
    assert estimate_page_bytes(stacks("x" * 261_000, "x" * 10)) == 261_010


def test_no_stack_is_expected_to_take_more_than_a_request():
    for character in ("\xe9", "\N{GRINNING FACE}"):
        name = character * ((BODY_LIMIT_BYTES - 100) // len(character.encode()))
        [estimated, taken] = (
            estimate_page_bytes(stacks(name)),
            len(serialize_page(stacks(name), None)),
        )
        assert taken - 200 <= estimated <= BODY_LIMIT_BYTES


def test_a_page_in_pieces_is_the_page():
    for names in (["a"], ["a", "\xe9", '"']):
        assert b"".join(serialize_in_turns(stacks(*names), "next")) == serialize_page(stacks(*names), "next")
