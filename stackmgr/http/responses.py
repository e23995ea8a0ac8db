"""Serialize stacks and pages as JSON.

The allocation is stored as the JSON text that responses contain, so it is copied.  Ids and presets hold no
character that JSON escapes.  Names are written as UTF-8 with the fewest escapes, so a name takes no more
bytes than in the request that saved it.
"""

import json
from collections.abc import Sequence
from time import monotonic

from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.scheduler import give_way
from stackmgr.stacks.repository import Stack

_PAGE_START = b'{"items":['
_quote = json.JSONEncoder(ensure_ascii=False).encode


def serialize_stack(stack: Stack) -> bytes:
    """Return the Stack object."""
    return (
        f'{{"id":"{stack.stack_id}","current_revision_id":"{stack.revision_id}",'
        f'"name":{_quote(stack.name)},"allocation":{stack.allocation},'
        f'"schedule":{{"preset":"{stack.preset}"}}}}'
    ).encode()


def estimate_page_bytes(stacks: Sequence[Stack]) -> int:
    """Return about how many bytes the names of a page take, or for a small page an upper bound.

    Only escapes in a name of ASCII take more, and no name takes more than the request that saved it.
    """
    bound = 4 * sum([len(stack.name) for stack in stacks])
    if bound <= BODY_LIMIT_BYTES:
        return bound
    lengths = [len(stack.name) if stack.name.isascii() else 4 * len(stack.name) for stack in stacks]
    return sum([min(length, BODY_LIMIT_BYTES) for length in lengths])


def serialize_page(stacks: Sequence[Stack], next_cursor: str | None) -> bytes:
    """Return the Stack page."""
    items = b",".join([serialize_stack(stack) for stack in stacks])
    return b"%b%b%b" % (_PAGE_START, items, _page_end(next_cursor))


def serialize_in_turns(stacks: list[Stack], next_cursor: str | None) -> list[bytes]:
    """Return the pieces of a large Stack page; let other requests run meanwhile.

    *stacks* is emptied, so that the page is not in memory twice.
    """
    pieces, started = [_PAGE_START], monotonic()
    stacks.reverse()
    while stacks:
        pieces += (serialize_stack(stacks.pop()), b",")
        started = give_way(started)
    pieces[-1] = _page_end(next_cursor)
    return pieces


def _page_end(next_cursor: str | None) -> bytes:
    return b'],"next_cursor":%b}' % json.dumps(next_cursor).encode()


def entity_tag(stack: Stack) -> str:
    """Return the strong entity tag of the stack's current revision."""
    return f'"{stack.revision_id}"'
