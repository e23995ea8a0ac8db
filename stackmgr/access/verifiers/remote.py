"""Requests to a remote verifier over HTTP, each with one deadline from name resolution to the last byte.

urllib3 provides the pool, TLS and HTTP, but its time-outs bound each read separately: a server that sends one
byte per second never exceeds one.  Here every wait has what is left of one deadline, and the response has a
maximum size.  Redirects are not followed and proxies of the environment are not used: the credential is sent
to one host only.
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
from stackmgr.access.verifiers import Gauges, bounded
from stackmgr.access.verifiers.circuit_breaker import CircuitBreaker
from stackmgr.errors import RateLimited, ServiceUnavailable, VerificationError
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.monitoring.metrics_store import VERIFIER_CIRCUIT_OPEN
from stackmgr.reasons import ReasonSlug

RESPONSE_LIMIT_BYTES = 65536

# Statuses by which a server, or a proxy before it, says that there was no response in time.
_NO_RESPONSE = (408, 499)

_REQUEST_REJECTED = (
    "The verifier rejects the service's own request with HTTP %d: check its URL and the credential"
)

_log = logging.getLogger("stackmgr.verifiers")
_log.addFilter(RateLimitFilter())
_SECONDS = re.compile(r"[0-9]{1,9}")

# urllib3 quotes malformed responses in its warnings, and those may quote our own request.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)

_REASONS: tuple[tuple[type[Exception], ReasonSlug], ...] = (
    (NameResolutionError, ReasonSlug.VERIFIER_DNS),
    (NewConnectionError, ReasonSlug.VERIFIER_CONNECT),
    (ConnectTimeoutError, ReasonSlug.VERIFIER_TIMEOUT),
    (PhaseTimeoutError, ReasonSlug.VERIFIER_TIMEOUT),
    (SSLError, ReasonSlug.VERIFIER_TLS),
    (Exception, ReasonSlug.VERIFIER_RESPONSE_BROKEN),
)


def retry_after(text: str | None) -> int | None:
    """Return the seconds of a Retry-After value, or None if it is missing or malformed."""
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
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_NOT_JSON) from ex
    if not isinstance(document, dict):
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_NOT_AN_OBJECT)
    return document


class Endpoint:
    """The HTTP API of one verifier.  Thread-safe; each process opens its own connections.

    *timeout* is in seconds and covers name resolution, connecting, TLS, sending and receiving;
    *connections* is how many stay open between requests.
    """

    def __init__(self, url: str, *, timeout: float, connections: int) -> None:
        parts = urllib3.util.parse_url(url)
        self._scheme, self._host, self._port = parts.scheme, parts.host or "", parts.port
        self._path = (parts.path or "").rstrip("/")
        self._timeout = timeout
        self._breaker = CircuitBreaker(timeout)
        self.gauges: Gauges = {VERIFIER_CIRCUIT_OPEN: lambda: self._breaker.is_open}
        self._connections = connections
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: urllib3.HTTPConnectionPool
        self._resolver: bounded.Resolver

    def post(
        self,
        path: str,
        *,
        credential: str,
        media_type: str,
        body: bytes,
        trace: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a POST, with the fields of *trace*, and return the JSON object of the 200 response.

        Raises RateLimited for 429, and ServiceUnavailable for every other status, for a failure on the way,
        for a response that is late, too long or no JSON object, and at once while the circuit is open.
        """
        headers = {
            "Authorization": f"Bearer {credential}",
            "Content-Type": media_type,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"stackmgr/{__version__}",
            **(trace or {}),
        }
        permit = self._breaker.acquire()
        status = 0
        try:
            status, response_headers, content = self._exchange(
                self._path + path, headers, body, permit.seconds
            )
        finally:
            self._breaker.release(permit, responded=0 < status < 500 and status not in _NO_RESPONSE)
        if status == 200:
            return _object(content)
        wait = retry_after(response_headers.get("Retry-After"))
        error: VerificationError
        if status == 429:
            error = RateLimited(ReasonSlug.VERIFIER_HTTP_STATUS, wait)
        elif status >= 500 or status in _NO_RESPONSE:
            error = ServiceUnavailable(ReasonSlug.VERIFIER_HTTP_STATUS, wait)
        else:
            error = ServiceUnavailable(ReasonSlug.VERIFIER_HTTP_STATUS)
            _log.error(_REQUEST_REJECTED, status)
        error.reason = error.reason.replace("STATUS", str(status))
        raise error

    def _exchange(
        self, path: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        pool, resolver = self._own_pool()
        deadline = time.monotonic() + seconds
        with bounded.call(resolver, deadline) as call:
            try:
                try:
                    return self._attempt(pool, path, headers, body)
                except HTTPError as ex:
                    # A kept connection may close just as it is used.  Without a byte of a response the
                    # request is sent once more, over a new connection: the pool no longer has the old one.
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
            content = response.read(RESPONSE_LIMIT_BYTES + 1, decode_content=False)
        finally:
            # A response read to its end has returned its connection; otherwise this closes both.
            response.close()
        if len(content) > RESPONSE_LIMIT_BYTES:
            raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_TOO_LONG)
        return response.status, response.headers, content

    def _own_pool(self) -> tuple[urllib3.HTTPConnectionPool, bounded.Resolver]:
        """Return the pool of this process, created by its first request."""
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
