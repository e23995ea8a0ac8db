"""A WSGI call whose environ is made by hand, for what no well-behaved client sends."""

import io

import webtest
from webtest.response import TestResponse

from stackmgr.http.app import Application
from tests.support.client import Client, check_response
from tests.support.greenlets import in_greenlets


class Input:
    """A `wsgi.input` that counts the bytes taken from it, and can break instead of giving any."""

    def __init__(self, body: bytes, breaks_with: OSError | None = None) -> None:
        self._stream = io.BytesIO(body)
        self._breaks_with = breaks_with
        self.bytes_read = 0

    def read(self, size: int = -1) -> bytes:
        if self._breaks_with is not None:
            raise self._breaks_with
        piece = self._stream.read(size)
        self.bytes_read += len(piece)
        return piece


def call(app: Application, client: Client, method, path, body: Input, **environ: str | bool) -> TestResponse:
    """Send *body* as a request of *client*'s; *environ* says all that is known of its length and its type."""
    request = webtest.TestRequest.blank(path, method=method)
    request.environ.pop("CONTENT_LENGTH", None)
    request.environ["HTTP_AUTHORIZATION"] = f"Bearer {client.key}"
    request.environ["wsgi.input"] = body
    request.environ |= environ
    # Lint is for well-behaved servers: it would reject some of these requests before the application.
    response = webtest.TestApp(in_greenlets(app), lint=False).do_request(request, expect_errors=True)
    check_response(method, path, response.status_int, response.headers, response.body)
    return response
