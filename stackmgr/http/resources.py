"""The two resources of the service: the collection of a manager's stacks, and one stack.

`operation` checks the request in the order of the contract and returns its statement.  A responder
runs it and serializes the result.  Errors raised here become responses in app.py.

The allocation is stored as the JSON text of responses and copied.  Ids and presets have no
character that JSON escapes.  Names have the fewest escapes: no more bytes than the request had.
"""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

import falcon

from stackmgr.database.session import Operation
from stackmgr.http import requests
from stackmgr.http.requests import RequestSchema
from stackmgr.stacks import configuration, cursor, repository
from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.repository import Stack

COLLECTION_PATH = "/manager/stacks"
ITEM_PATH = "/manager/stacks/{stack_id}"

_quote = encode_basestring  # as json.JSONEncoder(ensure_ascii=False), but called for each name of a page


def serialize_stack(stack: Stack) -> bytes:
    return (
        f'{{"id":"{stack.stack_id}","current_revision_id":"{stack.revision_id}",'
        f'"name":{_quote(stack.name)},"allocation":{stack.allocation},'
        f'"schedule":{{"preset":"{stack.preset}"}}}}'
    ).encode()


def serialize_page(stacks: Sequence[Stack], next_cursor: str | None) -> bytes:
    items = b",".join([serialize_stack(stack) for stack in stacks])
    return b'{"items":[%b],"next_cursor":%b}' % (items, json.dumps(next_cursor).encode())


def _respond(req: falcon.Request, resp: falcon.Response, stack: Stack) -> None:
    req.context.stack_id = stack.stack_id
    resp.data = serialize_stack(stack)
    resp.set_header("ETag", f'"{stack.revision_id}"')  # last: no error response has it


class _Resource:
    schema: str

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._schema = RequestSchema(self.schema)

    def _fields(self, req: falcon.Request) -> dict[str, str]:
        return configuration.parse(self._schema.parse(requests.read_body(req)), self._spellings)


class StackCollection(_Resource):
    methods, schema = ("GET", "HEAD", "POST"), "stack_create.json"

    def operation(self, req: falcon.Request, params: dict[str, Any]) -> Operation:
        if req.method != "POST":
            return repository.list_operation(*requests.parse_page_query(req.env.get("QUERY_STRING", "")))
        requests.check_content_length(req)
        key = requests.parse_idempotency_key(req)
        wanted = Configuration(**self._fields(req))
        return repository.create_operation(key, wanted, req.context.request_id)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create a stack, or return the current state of the one created under the same key."""
        stack, created = repository.create(req.context.credential.rows, req.context.operation)
        _respond(req, resp, stack)
        if created:
            resp.status = falcon.HTTP_201
            resp.set_header("Location", f"{COLLECTION_PATH}/{stack.stack_id}")

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        page, position = repository.list_page(req.context.credential.rows, req.context.operation)
        resp.data = serialize_page(page, None if position is None else cursor.encode(position))

    on_head = on_get


class StackItem(_Resource):
    methods, schema = ("GET", "HEAD", "PATCH"), "stack_update.json"

    def operation(self, req: falcon.Request, params: dict[str, Any]) -> Operation:
        if req.method == "PATCH":
            requests.check_content_length(req)
        stack_id = req.context.stack_id = requests.parse_stack_id(params["stack_id"])
        if req.method != "PATCH":
            return repository.get_operation(stack_id)
        return repository.update_operation(stack_id, self._fields(req), req.context.request_id)

    def on_get(self, req: falcon.Request, resp: falcon.Response, stack_id: str) -> None:
        """Return the stack; of a PATCH, with the revision that it has appended."""
        _respond(req, resp, repository.get_or_update(req.context.credential.rows, req.context.operation))

    on_head = on_patch = on_get
