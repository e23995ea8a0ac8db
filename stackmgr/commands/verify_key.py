"""`stackmgr verify-key`: what the configured verifier says of a key, and what a request would be answered.

It takes the way of a request and stores nothing: no manager record is made, no last use is noted, and a
quota of the database verifier is looked at but not spent.  Unkey, which cannot tell this question from a
request's, counts it as a verification.
"""

import argparse
import getpass
import os
import sys
import time
from typing import Any

from stackmgr import errors, managers, startup
from stackmgr.commands.common import CommandError, Commands, print_json
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import ServiceError
from stackmgr.http import parsing
from stackmgr.verifiers import Verifier

NOT_ACCEPTED = 3
_LONGEST_LINE = 65536


def _read_key() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("API key: ")
    line = sys.stdin.buffer.readline(_LONGEST_LINE).rstrip(b"\r\n")
    if not line:
        raise CommandError("the key is expected on standard input")
    return line.decode("latin-1")


def _ask(verifier: Verifier, session: Session, key: str) -> dict[str, Any]:
    """Return the answer: whom the key identifies, or which error a request would end in."""
    answer: dict[str, Any] = {
        "accepted": False,
        "status": 200,
        "code": None,
        "reason": None,
        "retry_after": None,
    }
    started = time.perf_counter()
    try:
        try:
            identity = verifier.verify(parsing.parse_credential(f"Bearer {key}"), session)
        finally:
            answer["duration_ms"] = round((time.perf_counter() - started) * 1000, 3)
        answer |= {"external_id": identity.external_id, "identity_id": identity.identity_id}
        answer["manager_id"] = identity.manager_id or managers.look_up(session, identity)
        answer["accepted"] = True
    except ServiceError as ex:
        answer |= {"status": errors.STATUS[ex.code], "code": ex.code, "reason": ex.reason}
        answer["retry_after"] = getattr(ex, "retry_after", None)
    return answer


def _print_text(answer: dict[str, Any]) -> None:
    print("accepted: a request goes on" if answer["accepted"] else "not accepted")
    for name, value in answer.items():
        if name != "accepted" and value is not None:
            print(f"{name}\t{value}")
    if answer["accepted"] and answer["manager_id"] is None:
        print("manager_id\t- (the first request makes the record)")


def _verify_key(arguments: argparse.Namespace) -> None:
    chosen = startup.prepare(os.environ).settings
    key = _read_key()
    database = Database(chosen.database_url, pool_size=1)
    database.open()
    try:
        with database.session() as session:
            answer = _ask(startup.make_verifier(chosen, None), session, key)
    finally:
        database.close()
    document = {"verifier": chosen.verifier} | answer
    if arguments.json:
        print_json(document)
    else:
        _print_text(document)
    if not answer["accepted"]:
        sys.exit(NOT_ACCEPTED)


def add_to(commands: Commands) -> None:
    """Add `verify-key`."""
    command = commands.add_parser(
        "verify-key",
        help="tell what the configured verifier says of the key on standard input",
        description="Tell what the configured verifier says of the key on standard input, which status a "
        f"request would be answered with, and how long it took. Exits {NOT_ACCEPTED} if not accepted.",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=_verify_key)
