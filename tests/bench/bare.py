"""A Falcon application that does nothing: what the framework and its server cost without a service."""

import json

import falcon

_STACK = {
    "id": "4f0c9f2e-6d0c-4c1e-9a57-1d8b6f0f6c11",
    "current_revision_id": "b1b6e2b0-3c52-4c0c-8a4e-52f2f2a3a9d7",
    "name": "Growth",
    "allocation": [{"token_address": f"0x{number:040x}", "weight_bps": 2000} for number in range(5)],
    "schedule": {"preset": "weekly"},
}
BODY = json.dumps(_STACK, separators=(",", ":")).encode()


class Stack:
    """Returns the same stack each time."""

    def on_get(self, request: falcon.Request, response: falcon.Response, stack_id: str) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.data = BODY


application = falcon.App()
application.add_route("/manager/stacks/{stack_id}", Stack())
