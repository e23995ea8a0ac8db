"""Each operation by the package that openapi-python-client generates.

openapi-python-client generate --path schemas/openapi.bundled.json --meta none --output-path stack_manager
BASE_URL=… API_KEY=… python generated_client.py
"""

import json
import os

from stack_manager import AuthenticatedClient
from stack_manager.api.stacks import create_stack, get_stack, list_stacks, update_stack
from stack_manager.models import AllocationItemRequest, Preset, Schedule, StackCreate, StackUpdate

TOKEN = "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9"


def create(key, name):
    allocation = [AllocationItemRequest(token_address=TOKEN, weight_bps=10000)]
    body = StackCreate(name=name, allocation=allocation, schedule=Schedule(preset=Preset.WEEKLY))
    return create_stack.sync(client=client, body=body, idempotency_key=key)


with AuthenticatedClient(base_url=os.environ["BASE_URL"], token=os.environ["API_KEY"]) as client:
    stack = create("key", "Growth")
    conflict = create("key", "Other").code
    changes = StackUpdate(schedule=Schedule(preset=Preset.MONTHLY))
    update_stack.sync(stack.id, client=client, body=changes)
    updated = get_stack.sync(stack.id, client=client)
    create("another key", "Income")
    first = list_stacks.sync(client=client, limit=1)
    second = list_stacks.sync(client=client, limit=1, cursor=first.next_cursor)
names = [found.name for page in (first, second) for found in page.items]
print(json.dumps({"names": names, "conflict": conflict, "preset": updated.schedule.preset}))
