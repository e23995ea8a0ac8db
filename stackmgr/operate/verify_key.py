"""`stackmgr verify-key`: verify a key as a request would be, and print the status of the response.

Nothing is stored: no manager record, no last use, no use of a quota of the database verifier.
Unkey cannot distinguish this from a request and counts it as a verification.
"""

import argparse
import getpass
import os
import sys
import time
from typing import Any

from stackmgr import startup
from stackmgr.access import managers
from stackmgr.access.verifiers import Verifier
from stackmgr.database.session import Session
from stackmgr.errors import CommandError, DatabaseError, ServiceError, ServiceUnavailable
from stackmgr.http import requests
from stackmgr.operate import preflight
from stackmgr.operate.command import EVERYTHING, FOUND, Commands, add_command, print_json
from stackmgr.operate.operator import request_session

_LONGEST_LINE = 65536
# Without a word of what was given: it is a key, and this goes to terminals and logs.
_KEY_AS_ARGUMENT = "the key is read from standard input: give no arguments"

_HEADINGS = {
    True: "accepted: requests with this key are authenticated",
    False: "not accepted",
    None: "not verified: the verifier or the database failed, which says nothing about the key",
}


def _read_key() -> str:
    line = b""
    if sys.stdin is not None:  # as after <&-
        if sys.stdin.isatty():
            return getpass.getpass("API key: ")
        line = sys.stdin.buffer.readline(_LONGEST_LINE).rstrip(b"\r\n")
    if not line:
        raise CommandError("standard input has no key: stackmgr verify-key < FILE")
    return line.decode("latin-1")


def _ask(verifier: Verifier, session: Session, key: str) -> dict[str, Any]:
    """Return the outcome: the identity of the key, or the error of a request with it.

    `accepted` is None if the verifier or the database failed.
    """
    outcome: dict[str, Any] = {"accepted": False, "status": 200}
    outcome |= dict.fromkeys(("code", "reason", "retry_after"))
    started = time.perf_counter()
    try:
        try:
            credential = requests.parse_credential(f"Bearer {key}")
            identity = verifier.verify(credential, session)
        finally:
            outcome["duration_ms"] = round((time.perf_counter() - started) * 1000, 3)
        outcome |= {name: getattr(identity, name) for name in ("key_id", "external_id", "identity_id")}
        outcome["manager_id"] = identity.manager_id or managers.look_up(session, identity)
        outcome["accepted"] = True
    except ServiceError as ex:
        outcome |= {"status": ex.status, "code": ex.code, "reason": ex.reason}
        outcome.setdefault("key_id", ex.key_id)
        outcome["retry_after"] = getattr(ex, "retry_after", None)
        if isinstance(ex, ServiceUnavailable | DatabaseError):
            outcome["accepted"] = None
    return outcome


def _print_text(outcome: dict[str, Any]) -> None:
    print(_HEADINGS[outcome["accepted"]])
    for name, value in outcome.items():
        if name != "accepted" and value is not None:
            print(f"{name}\t{value}")
    if outcome["accepted"] and outcome["manager_id"] is None:
        print("manager_id\t- (the first request creates the record)")


def _verify_key(arguments: argparse.Namespace) -> None:
    chosen = startup.prepare(os.environ).settings
    key = _read_key()
    with request_session(chosen.database_url) as session:
        outcome = _ask(startup.make_verifier(chosen, None), session, key)
    if outcome["accepted"] is None and (problems := preflight.examine(chosen.database_url).problems):
        raise CommandError("; ".join(problems))  # no outage: a login without the rights, or an old schema
    document = {"verifier": chosen.verifier} | outcome
    if arguments.json:
        print_json(document)
    else:
        _print_text(document)
    if not outcome["accepted"]:
        sys.exit(1 if outcome["accepted"] is None else FOUND)


def add_to(commands: Commands) -> None:
    add_command(
        commands,
        "verify-key",
        "verify the key on standard input as a request would be",
        _verify_key,
        reads=EVERYTHING,
        more="Print whom it identifies, the status of a request with it, and the duration. Store nothing, "
        "and use up no quota of the database verifier. If the verifier or the database fails, the exit "
        "status is 1.",
        found="the key is not accepted",
        unexpected=_KEY_AS_ARGUMENT,
    )
