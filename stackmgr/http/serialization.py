"""Writing an answer: stacks and pages as JSON.

The allocation is stored in the form in which it is answered, so its text goes out as it came from the
table; the ids and the preset hold no character that JSON would escape.
"""

import json
from collections.abc import Iterable

from stackmgr.stacks import Stack


def _stack_text(stack: Stack) -> str:
    return (
        f'{{"id":"{stack.stack_id}","current_revision_id":"{stack.revision_id}",'
        f'"name":{json.dumps(stack.name)},"allocation":{stack.allocation},'
        f'"schedule":{{"preset":"{stack.preset}"}}}}'
    )


def serialize_stack(stack: Stack) -> bytes:
    """Return the Stack object."""
    return _stack_text(stack).encode("ascii")


def serialize_page(stacks: Iterable[Stack], next_cursor: str | None) -> bytes:
    """Return the Stack page."""
    items = ",".join(map(_stack_text, stacks))
    return f'{{"items":[{items}],"next_cursor":{json.dumps(next_cursor)}}}'.encode("ascii")


def entity_tag(stack: Stack) -> str:
    """Return the strong entity tag of the stack's current revision."""
    return f'"{stack.revision_id}"'
