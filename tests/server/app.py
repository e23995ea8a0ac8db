"""The application behind the worker under test: small answers about what reached it."""

import hashlib
import json
import time

from stackmgr.slots import give_up

LIMIT = 262_144
produced = []


def body_report(environ):
    """Read the body as stackmgr does and say what came."""
    try:
        body = environ["wsgi.input"].read(LIMIT + 1)
    except OSError as exc:
        return "400 Bad Request", {"read": type(exc).__name__}
    if len(body) > LIMIT:
        return "413 Content Too Large", {"read": "too large"}
    return "200 OK", {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def endless():
    """Produce far more pieces than anybody should hold and remember how many."""
    for _ in range(3000):
        produced.append(1)
        yield b"x" * 65536


def drip():
    yield b"first"
    give_up()
    time.sleep(1)
    yield b"last"


def late_failure():
    yield b"first"
    raise ValueError("late")


def app(environ, start_response):
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    status, report = "200 OK", {"path": path}
    if path == "/echo":
        status, report = body_report(environ)
    elif path == "/refuse":
        status, report = "413 Content Too Large", {"read": "not at all"}
    elif path == "/environ":
        report = {key: value for key, value in environ.items() if isinstance(value, (str, bool, int))}
    elif path == "/sleep":
        give_up()
        time.sleep(float(query))
    elif path == "/big":
        report = {"filler": "x" * int(query)}
    elif path == "/endless":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return endless()
    elif path == "/produced":
        report = {"pieces": len(produced)}
    elif path == "/drip":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return drip()
    elif path == "/pieces":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([b"one", b"two", b"", b"three"])
    elif path == "/raise":
        raise ValueError("SECRET of the application")
    elif path == "/oserror":
        raise FileNotFoundError("SECRET of the application")
    elif path == "/eof":
        raise EOFError("SECRET of the application")
    elif path == "/exit":
        raise SystemExit(3)
    elif path == "/late":
        start_response("200 OK", [("Content-Length", "100")])
        return late_failure()
    elif path == "/bad-header":
        start_response("200 OK", [("X-A", "a\nb")])
        return [b""]
    payload = json.dumps(report).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(payload)))]
    start_response(status, [*headers, ("X-Path", path.encode("latin-1").hex())])
    return [payload]
