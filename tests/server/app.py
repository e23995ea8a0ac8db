"""The application behind the worker under test: small responses about what reached it."""

import hashlib
import json
import sys
import time

from stackmgr.admission import ADMISSION
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.scheduler import Signal


class EndOfThread(BaseException):
    """An exception that no `except Exception` catches."""


def body_report(environ):
    if int(environ.get("CONTENT_LENGTH") or 0) <= BODY_LIMIT_BYTES:
        body = environ["wsgi.input"].read(BODY_LIMIT_BYTES + 1)
        if len(body) <= BODY_LIMIT_BYTES:
            return "200 OK", {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return "413 Content Too Large", {"read": "too large"}


def late(start_response):
    start_response("200 OK", [("Content-Length", "100")])
    yield b"first"
    raise ValueError("late")


def change_of_mind(start_response):
    """Fail after an empty piece, when PEP 3333 still allows another status."""
    start_response("200 OK", [("X-Early", "1")])
    yield b""
    try:
        raise ValueError("SECRET")  # noqa: TRY301 - passed to start_response
    except ValueError:
        start_response("404 Not Found", [("Content-Length", "4")], sys.exc_info())
    yield b"none"


RAISED = {
    "/raise": ValueError("SECRET of the application"), "/eof": EOFError("SECRET of the application"),
    "/oserror": FileNotFoundError("SECRET of the application"), "/exit": SystemExit(3),
    "/base-exception": EndOfThread("SECRET of the application"),
}  # fmt: skip
# Status and header fields that no response may have.
INVALID = {
    "/bad-header": ("200 OK", [("X-A", "a\nb")]), "/integer-header": ("200 OK", [("X-A", 1)]),
    "/bad-length": ("200 OK", [("Content-Length", "1\r\nX-A: b")]), "/informational": ("103 Early Hints", []),
    "/no-content": ("204 No Content", []), "/not-modified": ("304 Not Modified", []),
    "/switching": ("101 Switching Protocols", []),
}  # fmt: skip


# What tests the server's side of WSGI.
SPECIAL = {
    "/hang": lambda _: time.sleep(600),
    "/unauthorized": lambda start: start("401 Unauthorized", []) and [], "/never-starts": lambda _: [b"x"],
    "/starts-twice": lambda start: start("200 OK", []) and start("200 OK", []) and [b"x"],
    "/change-of-mind": change_of_mind, "/late": late,
}  # fmt: skip


def app(environ, start_response):
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    if seconds := environ[ADMISSION].retry_after:
        start_response("503 Service Unavailable", [("Retry-After", str(seconds))])
        return [b"overloaded"]
    key = environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
    environ[ADMISSION].accept(key.partition("-")[0] or "anybody")
    if path in RAISED:
        raise RAISED[path]
    if path in INVALID:
        start_response(*INVALID[path])
        return [b""]
    if path in ("/sleep", "/hang"):
        print(path, "has begun", file=environ["wsgi.errors"])
    if path in SPECIAL:
        return SPECIAL[path](start_response)
    status, report = "200 OK", {"path": path}
    if path == "/echo":
        status, report = body_report(environ)
    elif path == "/reject":
        status, report = "413 Content Too Large", {"read": "not at all"}
    elif path == "/environ":
        report = {key: value for key, value in environ.items() if isinstance(value, (str, bool, int))}
    elif path == "/sleep":
        Signal().wait(float(query))
    elif path == "/big":
        report = {"filler": "x" * int(query)}
    payload = json.dumps(report).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(payload)))]
    start_response(status, [*headers, ("X-Path", path.encode("latin-1").hex())])
    return [payload]
