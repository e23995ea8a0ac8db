"""Serialize stacks and pages as JSON.

The allocation is stored as the JSON text of responses and copied.  Ids and presets have no
character that JSON escapes.  Names have the fewest escapes: no more bytes than the request had.
"""

import json
from collections.abc import Sequence

from stackmgr.stacks.repository import Stack

_quote = json.JSONEncoder(ensure_ascii=False).encode


def serialize_stack(stack: Stack) -> bytes:
    """Return the Stack object."""
    return (
        f'{{"id":"{stack.stack_id}","current_revision_id":"{stack.revision_id}",'
        f'"name":{_quote(stack.name)},"allocation":{stack.allocation},'
        f'"schedule":{{"preset":"{stack.preset}"}}}}'
    ).encode()


def serialize_page(stacks: Sequence[Stack], next_cursor: str | None) -> bytes:
    """Return the Stack page."""
    items = b",".join([serialize_stack(stack) for stack in stacks])
    return b'{"items":[%b],"next_cursor":%b}' % (items, json.dumps(next_cursor).encode())
