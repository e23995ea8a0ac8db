"""The two resources of the service: the collection of a manager's stacks, and one stack.

A responder reads the request in the order in which the contract checks it, makes one call to the
repository, and writes the answer.  Errors are raised and turned into answers elsewhere.
"""

from collections.abc import Callable, Mapping
from functools import partial

import falcon

from stackmgr import cursor, stack_configuration, stacks
from stackmgr.database.connection import Query
from stackmgr.errors import InvalidPagination, InvalidStackId
from stackmgr.http import parsing, serialization
from stackmgr.http.validation import RequestSchema
from stackmgr.stacks import Stack

COLLECTION_PATH = "/manager/stacks"
ITEM_PATH = "/manager/stacks/{stack_id}"

PrefetchQuery = Callable[[str], Query]


def _answer(resp: falcon.Response, stack: Stack) -> None:
    resp.set_header("ETag", serialization.entity_tag(stack))
    resp.data = serialization.serialize_stack(stack)


class StackCollection:
    """Create and list."""

    methods = ("GET", "HEAD", "POST")

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._schema = RequestSchema("stack_create.json")

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create a stack, or answer the retry of its creation with the stack as it is now."""
        parsing.check_content_length(req)
        key = parsing.parse_idempotency_key(req)
        document = self._schema.read(parsing.read_body(req))
        wanted = stack_configuration.parse_create(document, self._spellings)
        stack, created = stacks.create(req.context.session, req.context.actor, key, wanted)
        if created:
            resp.status = falcon.HTTP_201
            resp.set_header("Location", f"{COLLECTION_PATH}/{stack.stack_id}")
        _answer(resp, stack)

    def prefetch_query(self, req: falcon.Request) -> PrefetchQuery | None:
        """Return what `on_get` will ask for a manager, if it will ask."""
        try:
            after, limit = parsing.parse_page_query(req.env.get("QUERY_STRING", ""))
        except InvalidPagination:
            return None
        return partial(stacks.list_query, after=after, limit=limit)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """List one page of stacks."""
        after, limit = parsing.parse_page_query(req.env.get("QUERY_STRING", ""))
        page, position = stacks.list_page(req.context.session, req.context.actor.manager_id, after, limit)
        next_cursor = None if position is None else cursor.encode(position)
        resp.data = serialization.serialize_page(page, next_cursor)

    on_head = on_get


class StackItem:
    """Read and update."""

    methods = ("GET", "HEAD", "PATCH")

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._schema = RequestSchema("stack_update.json")

    def prefetch_query(self, req: falcon.Request, stack_id: str) -> PrefetchQuery | None:
        """Return what `on_get` will ask for a manager, if it will ask."""
        try:
            return partial(stacks.get_query, stack_id=parsing.parse_stack_id(stack_id))
        except InvalidStackId:
            return None

    def on_get(self, req: falcon.Request, resp: falcon.Response, stack_id: str) -> None:
        """Answer the current configuration."""
        canonical_id = parsing.parse_stack_id(stack_id)
        _answer(resp, stacks.get(req.context.session, req.context.actor.manager_id, canonical_id))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, stack_id: str) -> None:
        """Append a revision with the supplied fields and answer the complete result."""
        parsing.check_content_length(req)
        canonical_id = parsing.parse_stack_id(stack_id)
        document = self._schema.read(parsing.read_body(req))
        changes = stack_configuration.parse_update(document, self._spellings)
        _answer(resp, stacks.update(req.context.session, req.context.actor, canonical_id, changes))
