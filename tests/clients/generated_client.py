"""A client of the API with a package that openapi-python-client generates.

    openapi-python-client generate --path schemas/openapi.bundled.json --meta none \\
        --output-path stack_manager
    BASE_URL=… API_KEY=… python generated_client.py
"""

import json
import os
import random
import time
from uuid import uuid4

import httpx
from stack_manager import AuthenticatedClient
from stack_manager.api.stacks import create_stack, get_stack, list_stacks, update_stack
from stack_manager.models import AllocationItemRequest, Preset, Schedule, StackCreate, StackUpdate
from stack_manager.types import UNSET

RETRIED = {429, 500, 503}
ATTEMPTS = 5
TOKEN = "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9"


def pause(attempt, response=None):
    """Wait for Retry-After, or else exponentially longer, with jitter."""
    given = None if response is None else response.headers.get("Retry-After")
    time.sleep(float(given) if given else random.uniform(0, 0.1 * 2**attempt))


def send(operation, **arguments):
    """Call an operation that is safe to repeat, until a response arrives that is not to be retried."""
    for attempt in range(ATTEMPTS):
        response = None
        try:
            response = operation.sync_detailed(client=client, **arguments)
            if response.status_code not in RETRIED:
                return response.parsed
        except httpx.TransportError:
            if attempt == ATTEMPTS - 1:
                raise
        pause(attempt, response)
    return response.parsed


def create(key, name):
    body = StackCreate(
        name=name,
        allocation=[AllocationItemRequest(token_address=TOKEN, weight_bps=10000)],
        schedule=Schedule(preset=Preset.WEEKLY),
    )
    return send(create_stack, body=body, idempotency_key=key)


def all_stacks():
    cursor = UNSET
    while cursor is not None:
        page = send(list_stacks, limit=2, cursor=cursor)
        yield from page.items
        cursor = page.next_cursor


def update(stack, body):
    """Update a stack; read it where the outcome is unknown, which is not so after 429 and 503."""
    for attempt in range(ATTEMPTS):
        response = None
        try:
            response = update_stack.sync_detailed(stack.id, client=client, body=body)
            if response.status_code not in RETRIED:
                return response.parsed
        except httpx.TransportError:
            pass
        pause(attempt, response)
        if response is not None and response.status_code != 500:
            continue
        current = send(get_stack, id=stack.id)
        if current.schedule == body.schedule:
            return current
    raise RuntimeError("the update was not made")


with AuthenticatedClient(base_url=os.environ["BASE_URL"], token=os.environ["API_KEY"]) as client:
    # Store the key with the intended stack before the first attempt, and use it for every retry.
    key = str(uuid4())
    stack = create(key, "Growth")
    for name in ("Income", "Balanced"):
        create(str(uuid4()), name)
    names = [found.name for found in all_stacks()]
    conflict = create(key, "Other").code
    updated = update(stack, StackUpdate(schedule=Schedule(preset=Preset.MONTHLY)))
print(json.dumps({"id": stack.id, "names": names, "conflict": conflict, "preset": updated.schedule.preset}))
