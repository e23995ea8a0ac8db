"""A direct WSGI call, for tests with many requests.  Responses are checked as in the client."""

import io
import sys
from email.message import Message
from typing import Any

from webob.headers import ResponseHeaders

from stackmgr.http.app import Application
from tests.support.client import check_response
from tests.support.greenlets import in_greenlets
from tests.support.server import Response

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


def call(app: Application, method: str, path: str, body: bytes, idempotency_key: str) -> Response:
    """Send *body* as JSON and check the form of the response."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        started.extend((int(status.partition(" ")[0]), headers))

    environ = ENVIRON | {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_IDEMPOTENCY_KEY": idempotency_key,
        "wsgi.input": io.BytesIO(body),
    }
    content = b"".join(in_greenlets(app)(environ, start_response))
    status, fields = started
    check_response(method, path, status, ResponseHeaders(fields), content)
    message = Message()
    for name, value in fields:
        message[name] = value
    return Response(status, message, content)
