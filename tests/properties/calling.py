"""A WSGI call with no client between, for tests that make a great many; answers are checked as elsewhere."""

import io
import sys
from typing import Any, NamedTuple

from webob.headers import ResponseHeaders

from stackmgr.app import Application
from tests.support.client import check_answer

ENVIRON = {
    "SCRIPT_NAME": "",
    "QUERY_STRING": "",
    "SERVER_NAME": "localhost",
    "SERVER_PORT": "80",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "CONTENT_TYPE": "application/json",
    "HTTP_AUTHORIZATION": "Bearer any",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": False,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


def call(app: Application, method: str, path: str, body: bytes, idempotency_key: str) -> Answer:
    """Send *body* as JSON and check the form of the answer."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        started.extend((int(status.partition(" ")[0]), ResponseHeaders(headers)))

    environ = ENVIRON | {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_IDEMPOTENCY_KEY": idempotency_key,
        "wsgi.input": io.BytesIO(body),
    }
    content = b"".join(app(environ, start_response))
    status, headers = started
    check_answer(method, path, status, headers, content)
    return Answer(status, content)
