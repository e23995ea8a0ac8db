"""Logs: one JSON object to a line on standard error, from the service and from gunicorn alike.

Plain ASCII, so that no byte of a request can end a line early; and never a key, a body, a header but the
request id, or the text of an exception, which may quote any of them.
"""

import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "text")

_STDERR = 2


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _plain(text: str) -> str:
    """Return *text* with everything but printable ASCII escaped: a message may quote a caller's bytes."""
    return text.encode("unicode_escape").decode("ascii")


def _causes(ex: BaseException | None) -> list[str]:
    """Return what kinds of error led here, outermost first, with their reasons and SQLSTATEs."""
    found: list[str] = []
    while ex is not None:
        details = (getattr(ex, "reason", None), getattr(ex, "sqlstate", None))
        found.append(
            " ".join([type(ex).__name__, *(detail for detail in details if isinstance(detail, str))])
        )
        ex = ex.__cause__ or ex.__context__
    return found


def description(ex: BaseException) -> dict[str, list[str]]:
    """Return what may be told of an exception: its kinds, and the places it came through."""
    frames = traceback.extract_tb(ex.__traceback__)
    trace = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"causes": _causes(ex), "trace": trace}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields |= description(record.exc_info[1])
    return fields


class JsonFormatter(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(fields)


class TextFormatter(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        extra = "".join(f" {name}={value!a}" for name, value in _fields(record).items())
        return f"{_timestamp(record.created)} {record.levelname.lower()} {_plain(record.getMessage())}{extra}"


def configuration(level: str, style: str) -> dict[str, Any]:
    """Return the dictConfig that gunicorn is given as `logconfig_dict`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}, "text": {"()": TextFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": style}},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "stackmgr": {"level": level.upper()},
            "gunicorn.error": {"level": level.upper(), "handlers": ["stderr"], "propagate": False},
        },
    }


def request_writer(style: str) -> Callable[[Mapping[str, Any]], None]:
    """Return what writes the line of one finished request.

    One system call for a line, so that the lines of several workers do not mix.
    """

    def write_json(fields: Mapping[str, Any]) -> None:
        line = json.dumps({"time": _timestamp(time.time()), "level": "info", "message": "request", **fields})
        os.write(_STDERR, line.encode("ascii") + b"\n")

    def write_text(fields: Mapping[str, Any]) -> None:
        known = " ".join(f"{name}={value!a}" for name, value in fields.items() if value is not None)
        os.write(_STDERR, f"{_timestamp(time.time())} info request {known}\n".encode("ascii"))

    return write_json if style == "json" else write_text
