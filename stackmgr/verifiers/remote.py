"""Asking a verifier over HTTP: one question, one answer, and one deadline over everything in between.

urllib3 gives the pool, TLS and HTTP, but its time-outs bound each read by itself: a server that sends a
byte a second would never run into one.  Here every wait, from the look-up of the host to the last byte of
the body, is given what is left of one budget, and nothing that arrives is kept beyond a fixed size.
Redirects are not followed and proxies of the environment are not used: the credential goes to one host.
"""

import json
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Any

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)
from urllib3.exceptions import TimeoutError as PhaseTimeoutError

from stackmgr import __version__
from stackmgr.errors import RateLimited, ServiceUnavailable
from stackmgr.slots import give_up
from stackmgr.verifiers import bounded

BODY_LIMIT = 65536

_log = logging.getLogger("stackmgr")
_SECONDS = re.compile(r"[0-9]{1,9}")

# urllib3 warns of malformed answers by quoting them, and what they quote may be our own request.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (NameResolutionError, "verifier_dns"),
    (NewConnectionError, "verifier_connect"),
    (ConnectTimeoutError, "verifier_timeout"),
    (PhaseTimeoutError, "verifier_timeout"),
    (SSLError, "verifier_tls"),
    (Exception, "verifier_answer_broken"),
)


def retry_after(text: str | None) -> int | None:
    """Return the seconds that a Retry-After value asks for, or None for none or a malformed one."""
    if text is None:
        return None
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return int(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, ceil((moment - datetime.now(UTC)).total_seconds()))


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as ex:
        raise ServiceUnavailable("verifier_answer_not_json") from ex
    if not isinstance(document, dict):
        raise ServiceUnavailable("verifier_answer_not_an_object")
    return document


class Endpoint:
    """One verifier's HTTP API.  Safe for threads, and for a fork: each process connects for itself.

    *timeout* is in seconds and covers name resolution, connecting, TLS, sending and receiving;
    *connections* is how many stay open between requests.
    """

    def __init__(self, url: str, *, timeout: float, connections: int) -> None:
        parts = urllib3.util.parse_url(url)
        self._scheme, self._host, self._port = parts.scheme, parts.host or "", parts.port
        self._path = (parts.path or "").rstrip("/")
        self._timeout = timeout
        self._connections = connections
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: urllib3.HTTPConnectionPool
        self._resolver: bounded.Resolver

    def post(self, path: str, *, credential: str, media_type: str, body: bytes) -> dict[str, Any]:
        """Return the JSON object that answers a POST with 200.

        Raises RateLimited for 429, and ServiceUnavailable for every other status, for a failure on the way,
        and for an answer that is late, too long or no JSON object.
        """
        headers = {
            "Authorization": f"Bearer {credential}",
            "Content-Type": media_type,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"stackmgr/{__version__}",
        }
        status, answer_headers, answer = self._exchange(self._path + path, headers, body)
        if status == 200:
            return _object(answer)
        wait = retry_after(answer_headers.get("Retry-After"))
        if status == 429:
            raise RateLimited("verifier_http_429", wait)
        if status >= 500 or status in (408, 499):
            raise ServiceUnavailable(f"verifier_http_{status}", wait)
        _log.error(
            "the key verifier answers our own request with HTTP %d: check its URL and our credential", status
        )
        raise ServiceUnavailable(f"verifier_http_{status}")

    def _exchange(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        give_up()
        pool, resolver = self._own_pool()
        deadline = time.monotonic() + self._timeout
        with bounded.call(resolver, deadline) as call:
            try:
                try:
                    return self._attempt(pool, path, headers, body)
                except HTTPError as ex:
                    # A connection that was kept open may die just as we use it.  Without a byte of an answer
                    # the question was not heard, or its answer is lost: asked once more, over a new one,
                    # because urllib3 puts a place without a connection where the dead one was.
                    if isinstance(ex, PhaseTimeoutError) or not call.died_idle:
                        raise
                    return self._attempt(pool, path, headers, body)
            except (HTTPError, OSError) as ex:
                reason = next(reason for kind, reason in _REASONS if isinstance(ex, kind))
                raise ServiceUnavailable(reason) from ex

    def _attempt(
        self, pool: urllib3.HTTPConnectionPool, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        response = pool.urlopen(
            "POST",
            path,
            body=body,
            headers=dict(headers),
            retries=False,
            redirect=False,
            preload_content=False,
            timeout=self._timeout,
        )
        try:
            content = response.read(BODY_LIMIT + 1, decode_content=False)
        finally:
            # Read to its end, the response has given its connection back; otherwise this ends both.
            response.close()
        if len(content) > BODY_LIMIT:
            raise ServiceUnavailable("verifier_answer_too_long")
        return response.status, response.headers, content

    def _own_pool(self) -> tuple[urllib3.HTTPConnectionPool, bounded.Resolver]:
        """Return this process's pool, made by its first request."""
        with self._lock:
            if self._pid != os.getpid():
                self._resolver = bounded.Resolver()
                self._pool = self._make_pool()
                self._pid = os.getpid()
            return self._pool, self._resolver

    def _make_pool(self) -> urllib3.HTTPConnectionPool:
        if self._scheme == "http":
            return bounded.ConnectionPool(self._host, self._port, maxsize=self._connections)
        context = ssl.create_default_context()
        context.sslsocket_class = bounded.TLSSocket
        return bounded.TLSConnectionPool(
            self._host, self._port, maxsize=self._connections, ssl_context=context
        )
