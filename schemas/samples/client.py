# pip install httpx; BASE_URL=… API_KEY=… python client.py

import json
import os
import random
import re
import time
from calendar import timegm
from uuid import uuid4

import httpx

ATTEMPTS = 5
LONGEST_WAIT = 60  # seconds
TOKEN = "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9"


def is_final(response):
    return response.status_code < 500 and response.status_code != 429


def retry_after(response):
    """Return the seconds of Retry-After, which may be a date, or 0 if missing or malformed."""
    given = "" if response is None else response.headers.get("Retry-After", "")
    if re.fullmatch("[0-9]+", given):
        return float(given)
    try:
        return timegm(time.strptime(given, "%a, %d %b %Y %H:%M:%S GMT")) - time.time()
    except ValueError:
        return 0


def pause(attempt, response=None):
    """Wait for Retry-After, at least with exponential backoff; return whether to retry."""
    seconds = max(retry_after(response), random.uniform(0, 0.5 * 2**attempt))
    is_next = attempt < ATTEMPTS - 1 and seconds <= LONGEST_WAIT
    if is_next:
        time.sleep(seconds)
    return is_next


def send(client, method, path, **arguments):
    """Send a request that is safe to repeat, until a response is final or a wait is too long."""
    attempt = 0
    while True:
        try:
            response = client.request(method, path, **arguments)
        except httpx.TransportError:
            if not pause(attempt):
                raise
        else:
            if is_final(response) or not pause(attempt, response):
                return response
        attempt += 1


def create(client, key, name):
    document = {
        "name": name,
        "allocation": [{"token_address": TOKEN, "weight_bps": 10000}],
        "schedule": {"preset": "weekly"},
    }
    return send(client, "POST", "/manager/stacks", headers={"Idempotency-Key": key}, json=document)


def all_stacks(client):
    parameters = {"limit": 2}
    while True:
        page = send(client, "GET", "/manager/stacks", params=parameters).raise_for_status().json()
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        parameters["cursor"] = page["next_cursor"]


def update(client, stack_id, changes):
    """Update a stack.  In *changes*, an allocation is sorted and lowercase, as in responses."""
    path = f"/manager/stacks/{stack_id}"
    attempt = 0
    while True:
        try:
            response = client.patch(path, json=changes)
        except httpx.TransportError:
            response = None
        if response is not None and is_final(response):
            return response.raise_for_status().json()
        is_next = pause(attempt, response)
        if response is None or response.status_code not in {429, 503}:  # the outcome is unknown
            current = send(client, "GET", path).raise_for_status().json()
            if all(current[field] == value for field, value in changes.items()):
                return current
        if not is_next:
            raise RuntimeError("the update was not made")
        attempt += 1


headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
with httpx.Client(base_url=os.environ["BASE_URL"], headers=headers, timeout=30) as client:
    # Store the key with the intended stack before the first attempt, and use it for every retry.
    key = str(uuid4())
    stack = create(client, key, "Growth").raise_for_status().json()
    for name in ("Income", "Balanced"):
        create(client, str(uuid4()), name).raise_for_status()
    names = [found["name"] for found in all_stacks(client)]
    conflict = create(client, key, "Other").json()["code"]
    updated = update(client, stack["id"], {"schedule": {"preset": "monthly"}})
preset = updated["schedule"]["preset"]
print(json.dumps({"id": stack["id"], "names": names, "conflict": conflict, "preset": preset}))
