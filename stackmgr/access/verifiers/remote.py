"""Requests to a remote verifier over HTTP, each with one deadline, name resolution included.

The credential is sent to one host only: no redirect is followed, no proxy of the environment used.
"""

import json
import logging
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from math import ceil
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import h11

from stackmgr import __version__
from stackmgr.access.verifiers.circuit_breaker import CircuitBreaker
from stackmgr.access.verifiers.http_connection import Address, HttpConnection, Request, Response, is_response
from stackmgr.errors import ServiceUnavailable, TooManyRequests
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.reasons import ReasonSlug
from stackmgr.threads import result, start_thread

_MAX_VALUES = 20_000  # parsing so many in 2.5 MB takes 4 to 10 ms, in which no other request runs
_LONGEST_LIMIT_SECONDS = 60  # for which a rate limit of the service itself is obeyed

_REQUEST_REJECTED = (
    "The verifier rejects the service's own request with HTTP %d: check its URL and the credential"
)
_log = logging.getLogger("stackmgr.verifiers")
_log.addFilter(RateLimitFilter())


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def retry_after(text: str, date: str = "") -> int | None:
    """Return the seconds of a Retry-After value, or None if it is missing or malformed.

    *date* is the response's Date: the two are by the same clock, which may not be this host's.
    """
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if (moment := _moment(text)) is None:
        return None
    return max(0, ceil((moment - (_moment(date) or datetime.now(UTC))).total_seconds()))


def _object(body: bytes) -> dict[str, Any]:
    if sum(body.count(mark) for mark in b"[{,") > _MAX_VALUES:
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_TOO_LONG)
    try:
        # No float is read, and their conversion costs most.
        document = json.loads(body.decode("utf-8-sig"), parse_float=str)
    except (ValueError, RecursionError) as ex:
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_NOT_JSON) from ex
    if not isinstance(document, dict):
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_NOT_AN_OBJECT)
    return document


def _unavailable(failure: Exception, otherwise: ReasonSlug) -> ServiceUnavailable:
    if isinstance(failure, TimeoutError):
        otherwise = ReasonSlug.VERIFIER_TIMEOUT
    elif isinstance(failure, ssl.SSLError):
        otherwise = ReasonSlug.VERIFIER_TLS
    return ServiceUnavailable(otherwise)


class Endpoint:
    """The HTTP API of one verifier.  Thread-safe; not to be used before a fork.

    *timeout* is in seconds and covers name resolution, connecting, TLS, sending and receiving.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        self._idle: deque[HttpConnection] = deque()
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._authority, self._host = parts.netloc, parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._breaker = CircuitBreaker(timeout)
        self._limited_until = 0.0
        self._look_up: Future[Sequence[Address]] | None = None

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

        Raises TooManyRequests for 429.  Raises ServiceUnavailable for another status, a failed
        connection, a late, long or malformed response, and while the circuit is open.
        """
        if (left := self._limited_until - monotonic()) > 0:
            # Not 61 of 60 s: the sum and the difference of two times are not exact.
            reason = ReasonSlug.VERIFIER_HTTP_STATUS.replace("STATUS", "429")
            raise TooManyRequests(reason, max(1, ceil(round(left, 3))))
        fields = {
            "Host": self._authority,
            "Authorization": f"Bearer {credential}",
            "Content-Type": media_type,
            "Content-Length": str(len(body)),
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # without it a gateway may compress
            "User-Agent": f"stackmgr/{__version__}",
            **(trace or {}),
        }
        head = h11.Request(method="POST", target=self._path + path, headers=[*fields.items()])
        request = head, h11.Data(data=body), h11.EndOfMessage()
        # A request of the same body is one for the same key.
        has_responded, permit = False, self._breaker.acquire(hash(body))
        try:
            deadline, is_probe = monotonic() + permit.seconds, permit.circuit is not None
            status, *times, content = self._exchange(request, deadline, is_probe=is_probe)
            has_responded = is_response(status)
        finally:
            self._breaker.release(permit, responded=has_responded)
        if status == 200:
            return _object(content)
        reason, seconds = ReasonSlug.VERIFIER_HTTP_STATUS.replace("STATUS", str(status)), retry_after(*times)
        if status == 429:
            if seconds is not None:
                seconds = min(seconds, _LONGEST_LIMIT_SECONDS)
                self._limited_until = monotonic() + seconds
            raise TooManyRequests(reason, seconds)
        if is_response(status):
            _log.error(_REQUEST_REJECTED, status)
            seconds = None
        raise ServiceUnavailable(reason, seconds)

    def _exchange(self, request: Request, deadline: float, *, is_probe: bool) -> Response:
        kept = None if is_probe else self._kept()
        while True:
            connection = kept or self._connect(deadline)
            try:
                return connection.exchange(request, deadline)
            except (OSError, h11.RemoteProtocolError) as ex:
                # A kept connection may close just as it is used: without a response, send once
                # more.
                if kept is None or connection.received:
                    raise _unavailable(ex, ReasonSlug.VERIFIER_RESPONSE_BROKEN) from ex
                kept = None
            finally:
                if connection.can_be_kept:
                    if is_probe:  # the others may lead to a server that has failed
                        self._close_idle()
                    self._idle.append(connection)
                else:
                    connection.close()

    def _kept(self) -> HttpConnection | None:
        with suppress(IndexError):
            while not (connection := self._idle.popleft()).is_usable():
                connection.close()
            return connection
        return None

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.popleft().close()

    __del__ = _close_idle

    def _connect(self, deadline: float) -> HttpConnection:
        """Return a new connection, after a new name resolution.  Raises ServiceUnavailable."""
        try:
            # It has no timeout, so it runs in a thread; while one hangs, no other is started.
            if self._look_up is None or self._look_up.done():
                look_up = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
                self._look_up = start_thread(look_up)
            addresses = result(self._look_up, deadline - monotonic())
        except (OSError, UnicodeError, RuntimeError) as ex:
            raise _unavailable(ex, ReasonSlug.VERIFIER_DNS) from ex
        for left in range(len(addresses), 0, -1):
            # An address that drops packets must leave time for the next one.
            end = (now := monotonic()) + (deadline - now) / left
            try:
                return HttpConnection(addresses[-left], self._tls, self._host.rstrip("."), end)
            except OSError as ex:  # no frame keeps it: with its traceback that would be a cycle
                if left == 1:
                    raise _unavailable(ex, ReasonSlug.VERIFIER_CONNECT) from ex
        raise ServiceUnavailable(ReasonSlug.VERIFIER_DNS)
