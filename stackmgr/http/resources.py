"""The two resources of the service: the collection of a manager's stacks, and one stack.

A responder checks the request in the order of the contract, calls the repository once, and serializes the
result.  Errors are raised here and become responses in error_handlers.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from time import monotonic

import falcon

from stackmgr.capacity import CAPACITY, UNLIMITED
from stackmgr.database.session import PrefetchQuery
from stackmgr.errors import InvalidPagination, InvalidStackId, Overloaded
from stackmgr.http import requests, responses
from stackmgr.http.requests import RequestSchema
from stackmgr.scheduler import give_way
from stackmgr.stacks import configuration, cursor, repository
from stackmgr.stacks.repository import Stack

COLLECTION_PATH = "/manager/stacks"
ITEM_PATH = "/manager/stacks/{stack_id}"

# A larger page waits until the server has room (stackmgr/server/memory.py) and is built in turns with others.
LARGE_PAGE_BYTES = 1_048_576


def _in_turns(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a large body; let other requests run meanwhile."""
    started = monotonic()
    for piece in pieces:
        yield piece
        started = give_way(started)


def _respond(req: falcon.Request, resp: falcon.Response, stack: Stack) -> None:
    req.context.stack_id = stack.stack_id
    resp.set_header("ETag", responses.entity_tag(stack))
    resp.data = responses.serialize_stack(stack)


class StackCollection:
    """Create and list."""

    methods = ("GET", "HEAD", "POST")

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._schema = RequestSchema("stack_create.json")

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create a stack, or return the current state of the one created under the same key."""
        requests.check_content_length(req)
        key = requests.parse_idempotency_key(req)
        document = self._schema.parse(requests.read_body(req))
        wanted = configuration.parse_create(document, self._spellings)
        stack, created = repository.create(req.context.session, req.context.actor, key, wanted)
        if created:
            resp.status = falcon.HTTP_201
            resp.set_header("Location", f"{COLLECTION_PATH}/{stack.stack_id}")
        _respond(req, resp, stack)

    def prefetch_query(self, req: falcon.Request) -> PrefetchQuery | None:
        """Return the query of `on_get`, or None if it will run none.

        The query string is parsed here, before the key is verified; an error waits for `on_get`.
        """
        try:
            after, limit = req.context.page = requests.parse_page_query(req.env.get("QUERY_STRING", ""))
        except InvalidPagination as ex:
            req.context.page = ex
            return None
        return partial(repository.list_query, after=after, limit=limit)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """List one page of stacks."""
        if isinstance(req.context.page, InvalidPagination):
            raise req.context.page
        after, limit = req.context.page
        page, position = repository.list_page(req.context.session, req.context.actor.manager_id, after, limit)
        next_cursor = None if position is None else cursor.encode(position)
        size = responses.estimate_page_bytes(page)
        if size <= LARGE_PAGE_BYTES:
            resp.data = responses.serialize_page(page, next_cursor)
            return
        req.context.session.close()  # others may need the connection while this page waits
        if seconds := req.env.get(CAPACITY, UNLIMITED).wait_for_room(size):
            raise Overloaded("large_pages", seconds)
        pieces = responses.serialize_in_turns(page, next_cursor)
        resp.content_length = sum([len(piece) for piece in pieces])
        resp.stream = _in_turns(pieces)

    on_head = on_get


class StackItem:
    """Read and update."""

    methods = ("GET", "HEAD", "PATCH")

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._schema = RequestSchema("stack_update.json")

    def prefetch_query(self, req: falcon.Request, stack_id: str) -> PrefetchQuery | None:
        """Return the query of `on_get`, or None if it will run none."""
        try:
            return partial(repository.get_query, stack_id=requests.parse_stack_id(stack_id))
        except InvalidStackId:
            return None

    def on_get(self, req: falcon.Request, resp: falcon.Response, stack_id: str) -> None:
        """Return the stack."""
        canonical_id = req.context.stack_id = requests.parse_stack_id(stack_id)
        _respond(req, resp, repository.get(req.context.session, req.context.actor.manager_id, canonical_id))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, stack_id: str) -> None:
        """Append a revision with the supplied fields and return the stack."""
        requests.check_content_length(req)
        canonical_id = req.context.stack_id = requests.parse_stack_id(stack_id)
        document = self._schema.parse(requests.read_body(req))
        changes = configuration.parse_update(document, self._spellings)
        _respond(req, resp, repository.update(req.context.session, req.context.actor, canonical_id, changes))
