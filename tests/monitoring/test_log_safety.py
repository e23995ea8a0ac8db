"""The log's lines for requests and errors, and their forbidden contents."""

import json
import logging
import random
import re
import select
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest

from stackmgr.access.verifiers import Identity
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.errors import DatabaseError, ServiceUnavailable
from stackmgr.http import middleware
from stackmgr.monitoring import logs
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier
from tests.support.processes import completed

CANARY = "c4n4ry"
REQUEST_ID = "caf\xe9 \x85 \"{'\\n"


class Log:
    """All that the application, and the libraries below it, would have written, in both formats."""

    def __init__(self, caplog):
        self._caplog = caplog
        self.requests = []

    def lines(self, formatter=None):
        return [(formatter or logs.Formatter()).format(record) for record in self._caplog.records]

    def text(self):
        lines = [*self.lines(), *self.lines(logs.Formatter("text"))]
        return "\n".join([*lines, *map(json.dumps, self.requests)])


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    return Log(caplog)


@pytest.fixture
def logged(client_with, log):
    observers = [log.requests.append]
    return lambda verifier, key=CANARY, **more: client_with(
        key, verifier=verifier, observers=observers, **more
    )


@pytest.mark.parametrize(("error", "status", "cause"), [
    (ArithmeticError(CANARY), 500, "ArithmeticError"),
    (ServiceUnavailable("timeout"), 503, "ServiceUnavailable timeout"),
    (DatabaseError("rejected", sqlstate="57014"), 500, "DatabaseError rejected 57014"),
])  # fmt: skip
def test_error_is_logged_by_kind_and_place(logged, log, error, status, cause):
    setattr(error, "__context__" if status == 503 else "__cause__", LookupError(f"{CANARY} is not there"))
    if isinstance(error, ArithmeticError):
        error.reason = ValueError(CANARY)
    response = logged(FixedVerifier(error)).request("GET", STACKS, headers={"X-Request-Id": "r1"})
    assert response.status_int == status
    (line,) = (json.loads(line) for line in log.lines())
    shown = [line[name] for name in ("level", "logger", "request_id", "method", "causes")]
    assert shown == ["error", "stackmgr", "r1", "GET", [cause, "LookupError"]]
    assert line["trace"][-1].endswith("verify")
    assert CANARY not in log.text()


def test_what_the_database_says_of_a_row_is_not_logged(logged, log):
    # The server's message about its syntax quotes the id.
    manager_id = f"no UUID {uuid4()}"
    sender = logged(FixedVerifier(Identity("identity", str(uuid4()), manager_id)))
    assert sender.create(configuration(name=CANARY), key=CANARY).status_int == 500
    (line,) = (json.loads(line) for line in log.lines())
    assert line["causes"][0] == "DatabaseError rejected stack_create 22P02"
    assert CANARY not in log.text()
    # The request's own line names the manager, as every such line does.
    assert manager_id not in "\n".join(log.lines())


@pytest.mark.filterwarnings("ignore::webtest.lint.WSGIWarning")
def test_line_has_255_chosen_characters_at_most(logged, log):
    headers = {"X-Request-Id": "\xe9" * 8000}
    response = logged(FixedVerifier(ArithmeticError())).request("G" * 300, STACKS, headers=headers)
    assert response.json["request_id"] == "\xe9" * 8000
    logged(FixedVerifier(ArithmeticError())).request("GET", STACKS, headers=headers)
    assert [(line["request_id"], len(line["method"])) for line in log.requests] == [
        ("\xe9" * 255, 255), ("\xe9" * 255, 3)
    ]  # fmt: skip
    assert [json.loads(line)["request_id"] for line in log.lines()] == ["\xe9" * 255]
    logged(FixedVerifier(ArithmeticError()), quotes_requests=True).request("GET", "/" + "%C3%A9" * 300)
    assert len(log.requests[-1]["at"]) == 255
    assert max(map(len, log.text().splitlines())) < select.PIPE_BUF  # a line for a pipe stays in one piece


def test_a_client_error_logs_its_request_line_only(client, logged, log):
    sender, missing = logged(DatabaseVerifier(), client.key), str(uuid4())
    sender.page("limit=0")
    sender.get(missing.upper())
    sender.get(CANARY)
    sender.request("GET", STACKS, headers={"Authorization": None})
    sender.request("GET", f"{STACKS}/")
    assert log.lines() == []
    assert [(line["status"], line["code"], line["reason"]) for line in log.requests] == [
        (400, "invalid_request", "limit_range"), (404, "not_found", "stack"),
        (400, "invalid_request", "stack_id"), (401, "unauthorized", "authorization_header"),
        (404, "not_found", "route"),
    ]  # fmt: skip
    item = f"{STACKS}/{{stack_id}}"
    assert [line["route"] for line in log.requests] == [STACKS, item, item, STACKS, None]
    assert [line["stack_id"] for line in log.requests] == [None, missing, None, None, None]


LONG_KEY = random.Random(1).randbytes(1500).hex()  # noqa: S311 - what cannot be compressed
QUERIES = {
    "limit=%f": "percent_encoding", "limit=%ff": "percent_encoding", "offset=1": "parameter_unknown",
    "limit=1&limit=1": "parameter_repeated", "limit=%2B1": "limit_form", "cursor=": "cursor_form",
    f"cursor=1{'_' * 32}": "cursor_time", "limit": "limit_form", "limit=5=5": "limit_form",
}  # fmt: skip
REASONS = [
    *((reason, {"path": f"{STACKS}?{query}"}) for query, reason in QUERIES.items()),
    ("method_not_allowed", {"method": "DELETE"}), ("body_structure", {"body": [1] * 2000}),
    ("key_malformed", {"headers": {"Authorization": "Bearer x"}}),
    *((f"idempotency_key_{rest}", {"body": configuration(), "headers": {"Idempotency-Key": key}})
      for rest, key in (("blank", " "), ("too_long", LONG_KEY), ("reused", "used"))),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "given"), REASONS)
def test_each_error_has_its_reason(client, logged, log, reason, given):
    sender = logged(DatabaseVerifier(), client.key)
    assert sender.create(configuration(name="Another"), "used").status_int == 201
    request = {"method": "POST" if "body" in given else "GET", "path": STACKS}
    headers = {"Idempotency-Key": "new"} if "body" in given else {}
    response = sender.request(**request | given | {"headers": headers | given.get("headers", {})})
    assert (log.requests[-1]["reason"], log.requests[-1]["status"]) == (reason, response.status_int)


def test_line_has_manager_route_and_outcome(client, logged, log, admin):
    sender = logged(DatabaseVerifier(), client.key)
    began = time.perf_counter()
    created = sender.create(configuration(), headers={"X-Request-Id": "r1"})
    elapsed_ms = (time.perf_counter() - began) * 1000
    (line,) = log.requests
    manager_id, key_id = admin.execute(
        "SELECT manager_id::text, key_id::text FROM stackmgr.managers JOIN stackmgr.api_keys"
        " USING (external_id) WHERE external_id = %s",
        (client.external_id,),
    ).fetchone()
    assert {type(line[name]) for name in ("duration_ms", "verifier_ms", "queued_ms")} == {float}
    assert elapsed_ms > line.pop("duration_ms") > line.pop("verifier_ms") > line.pop("queued_ms") == 0
    assert line == {
        "request_id": "r1", "method": "POST", "route": STACKS, "status": 201, "code": None, "reason": None,
        "manager_id": manager_id, "key_id": key_id, "stack_id": created.json["id"], "verifier": "accepted",
    }  # fmt: skip
    assert (sender.page().status_int, "verifier_ms" in log.requests[-1]) == (200, False)


def test_failing_observer_changes_no_response(client, client_with, log, monkeypatch):
    def fail(fields):
        raise OSError(CANARY)

    observers = [fail, log.requests.append]
    sender = client_with(client.key, verifier=DatabaseVerifier(), observers=observers)
    assert [sender.create(configuration()).status_int for _ in range(3)] == [201] * 3
    monkeypatch.setattr(middleware._log, "filters", [])
    assert sender.page().status_int == 200
    assert len(log.requests) == 4  # the others are called all the same
    first, last = map(json.loads, log.lines())  # the limit of such lines has passed over two
    assert (first["level"], first["message"]) == ("warning", "a request could not be observed")
    assert (first["causes"], first["failures"], last["failures"]) == (["OSError"], 1, 4)
    assert CANARY not in log.text()


@pytest.mark.parametrize("style", logs.FORMATS)
def test_request_is_one_line_of_ascii(style, capfd):
    fields = {"request_id": REQUEST_ID, "method": "GET\n", "route": None, "status": 200, "duration_ms": 0.6}
    logs.request_writer(style)(fields | {"reason": None, "at": "/docs\n"})
    logs.StderrHandler().emit(logging.makeLogRecord({"msg": "another"}))
    logs._stderr.flush()
    written, another = capfd.readouterr().err.splitlines(keepends=True)
    assert (another[0] == "{") is (style == "json")
    assert (written.isascii(), len(written.splitlines())) == (True, 1)
    assert re.search(r"\b20\d\d(-\d\d){2}T[\d:.]{12}\+00:00", written)
    assert written.endswith("\n")
    if style == "json":
        assert json.loads(written).items() >= (fields | {"level": "info", "message": "request"}).items()
    else:
        assert written.startswith(rf"200 GET\n /docs\n 1 ms request_id={REQUEST_ID!a} time=")


@pytest.mark.parametrize("formatter", [logs.Formatter(), logs.Formatter("text")])
def test_a_message_cannot_begin_a_line_of_its_own(formatter):
    fields = {"request_id": REQUEST_ID, "method": None}
    message = {"msg": "bad: %s", "args": ("a\nb\x85c\u2028d",), "fields": fields, "created": 0.0075}
    found = formatter.format(logging.makeLogRecord(message))
    assert (found.isascii(), len(found.splitlines())) == (True, 1)
    assert "1970-01-01T00:00:00.007+00:00" in found
    assert "1970-01-01T00:00:01.998+00:00" in formatter.format(logging.makeLogRecord({"created": 1.9985}))
    raised = formatter.format(logging.makeLogRecord({"exc_info": (KeyError, KeyError(CANARY), None)}))
    assert ("KeyError" in raised, CANARY in raised) == (True, False)
    text = f" request_id={REQUEST_ID!a} method=None"
    assert found.endswith(text if formatter.kind == "text" else json.dumps(fields)[1:])
    dropped = logs.dropped_lines()
    logs.StderrHandler().emit(logging.makeLogRecord({"msg": "%d", "args": ("text",)}))
    assert logs.dropped_lines() == dropped + 1


@pytest.mark.parametrize("by_arguments", [False, True])
def test_limited_message_passes_now_and_then(by_arguments, monkeypatch):
    limited, moments = logs.RateLimitFilter(by_arguments=by_arguments), iter([100, 109, 109, 111, 112])
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: next(moments, 113)))
    records = [logging.makeLogRecord({"msg": "conflict of %s", "args": (text,)}) for text in "aabba"]
    passed = [bool(limited.filter(record)) for record in records]
    assert passed == [True, False, by_arguments, not by_arguments, by_arguments]
    monkeypatch.setattr(logs, "_LIMITED_MESSAGES", 3)
    later = logs.RateLimitFilter(by_arguments=by_arguments, seconds=0.0)
    assert all(later.filter(logging.makeLogRecord({"msg": str(number)})) for number in range(9))
    assert len(later._next) <= 3


LEVELS = """
import logging.config, sys
from stackmgr.monitoring import logs
loggers = [logging.getLogger(name) for name in sys.argv[2:]]
logging.config.dictConfig(logs.configuration(sys.argv[1], "text"))
[logger.log(level, logger.name) for logger in loggers for level in (10, 20, 30, 40)]
"""


@pytest.mark.parametrize(("lowest", "lines"), [("debug", [4, 4, 2]), ("error", [1, 1, 2])])
def test_each_logger_has_its_level_and_one_line(lowest, lines, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    names = "stackmgr.pool", "gunicorn.error", "of.a.library"
    said = completed([sys.executable, "-c", LEVELS, lowest, *names]).stderr
    assert abs((datetime.fromisoformat(said[:29]) - datetime.now(UTC)).total_seconds()) < 600
    assert [said.count(f" {name}\n") for name in names] == lines
