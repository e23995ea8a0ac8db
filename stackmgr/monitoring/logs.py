"""Logs of the service and of gunicorn: one JSON object per line, on standard error.

Lines are ASCII, so that no byte of a request ends one.  They never contain a key, a body, a header
field but the request id, or the text of an exception, which may quote any of them.
"""

import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from stackmgr.monitoring.line_writer import LineWriter, stderr

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "text")
# Of a text that a client chooses, six bytes each: other workers cannot split lines up to PIPE_BUF.
CLIENT_CHARACTERS = 255

# A request line of text starts with these: a terminal may cut the rest.
_START = {"status", "method", "route", "duration_ms"}

# Kept by each filter.
_LIMITED_MESSAGES = 1000

_DROPPED = "Log lines were dropped because standard error could not be written"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def _timestamp(seconds: float) -> str:
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03}+00:00"


def _plain(text: str) -> str:
    """Return *text* with everything but printable ASCII escaped: it may quote a request."""
    return text.encode("unicode_escape").decode("ascii")


def _causes(ex: BaseException | None) -> list[str]:
    """Return the chain of errors, outermost first, each with its reason, statement and SQLSTATE."""
    found: list[str] = []
    while ex is not None:
        details = (getattr(ex, name, None) for name in ("reason", "statement", "sqlstate"))
        found.append(
            " ".join([type(ex).__name__, *(detail for detail in details if isinstance(detail, str))])
        )
        ex = ex.__cause__ or ex.__context__
    return found


def description(ex: BaseException) -> dict[str, list[str]]:
    """Return what may be logged of an exception: the types of its chain, and the trace."""
    frames = traceback.extract_tb(ex.__traceback__)
    trace = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"causes": _causes(ex), "trace": trace}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, "fields", {}))
    if fields.get("request_id"):
        fields["request_id"] = fields["request_id"][:CLIENT_CHARACTERS]
    if record.exc_info and record.exc_info[1] is not None:
        fields |= description(record.exc_info[1])
    return fields


class Formatter(logging.Formatter):
    """A record as one JSON object, or as one line of text."""

    def __init__(self, kind: str = "json") -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        moment, level, message = _timestamp(record.created), record.levelname.lower(), record.getMessage()
        fields = _fields(record)
        if self.kind == "json":
            head = {"time": moment, "level": level, "logger": record.name, "message": message}
            return json.dumps(head | fields)
        extra = "".join(f" {name}={value!a}" for name, value in fields.items())
        return f"{moment} {level} {_plain(message)}{extra}"


_formatter = Formatter()  # its kind is set before the first line


def _line(record: logging.LogRecord) -> bytes:
    return _formatter.format(record).encode("ascii") + b"\n"


def _report(dropped: int) -> bytes:
    record = logging.LogRecord("stackmgr", logging.WARNING, "", 0, _DROPPED, None, None)
    record.fields = {"dropped": dropped}
    return _line(record)


_stderr = LineWriter(stderr(), _report)  # the only writer to standard error of the process


class RateLimitFilter(logging.Filter):
    """Passes each message once in *seconds*: an outage is one event, not a thousand.

    Messages that differ in their arguments alone are one message, unless *by_arguments*.
    """

    def __init__(self, *, by_arguments: bool = False, seconds: float = 10.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._by_arguments = by_arguments
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        message = record.getMessage() if self._by_arguments else record.msg
        if now < self._next.get(message, 0.0):
            return False
        if len(self._next) >= _LIMITED_MESSAGES:
            self._next.clear()
        self._next[message] = now + self._seconds
        return True


class StderrHandler(logging.Handler):
    """Queues records for the thread that writes standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _stderr.write(_line(record))
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments must not fail a request
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Count the line; the traceback that logging would print could block or fail."""
        _stderr.drop()


def dropped_lines() -> int:
    return _stderr.dropped


def configuration(level: str, style: str) -> dict[str, Any]:
    """Return the dictConfig that gunicorn is given as `logconfig_dict`."""
    _formatter.kind = style
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"stderr": {"()": StderrHandler}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "stackmgr": {"level": level.upper()},
            "gunicorn.error": {"level": level.upper(), "handlers": ["stderr"], "propagate": False},
        },
    }


def request_writer(style: str) -> Callable[[Mapping[str, Any]], None]:
    """Return the function that logs one finished request by its fields."""
    _formatter.kind = style
    write = _stderr.write

    def write_json(fields: Mapping[str, Any]) -> None:
        line = json.dumps({"time": _timestamp(time.time()), "level": "info", "message": "request", **fields})
        write(line.encode("ascii") + b"\n")

    def write_text(fields: Mapping[str, Any]) -> None:
        rest = {name: fields.get(name) for name in ("reason", "at", *fields) if name not in _START}
        place = fields["route"] or rest.pop("at", None) or "-"
        start = _plain(f"{fields['status']} {fields['method']} {place} {fields['duration_ms']:.0f} ms")
        known = "".join(f" {name}={value!a}" for name, value in rest.items() if value is not None)
        write(f"{start}{known} time={_timestamp(time.time())}\n".encode("ascii"))

    return write_json if style == "json" else write_text
