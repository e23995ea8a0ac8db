"""A proxy before the service that breaks one rule at a time, as misconfigured ones do."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from tests.support.http_proxy import Change, Exchange, http_proxy


def _html_error(exchange: Exchange) -> None:
    if exchange.status >= 400:
        exchange.content = b"<html><h1>Bad Request</h1></html>"
        exchange.received["content-type"] = "text/html"


def _change_json(change: Callable[[dict], None]) -> Change:
    def fault(exchange: Exchange) -> None:
        if exchange.status < 400 and exchange.content:
            document = json.loads(exchange.content)
            change(document)
            exchange.content = json.dumps(document).encode()

    return fault


def _status(old: int, new: int) -> Change:
    def fault(exchange: Exchange) -> None:
        exchange.status = new if exchange.status == old else exchange.status

    return fault


def _etag(change: Callable[[str], str | None]) -> Change:
    def fault(exchange: Exchange) -> None:
        etag = exchange.received.pop("etag", None)
        if etag and (changed := change(etag)):
            exchange.received["etag"] = changed

    return fault


def _without(name: str) -> Change:
    def fault(exchange: Exchange) -> None:
        exchange.headers.pop(name, None)

    return fault


def _collapse(exchange: Exchange) -> None:
    exchange.body = exchange.body.replace(b" two  spaces ", b"two spaces")


def _new_key(exchange: Exchange) -> None:
    if exchange.headers.get("Idempotency-Key", "").strip() and len(exchange.headers["Idempotency-Key"]) < 100:
        exchange.headers["Idempotency-Key"] = str(uuid4())


class _Cache:
    """Returns the first response to a GET of a stack for ever."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = {}

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET" and exchange.is_item and exchange.status == 200:
            key = exchange.path, exchange.headers.get("Authorization", "")
            kept = (exchange.status, dict(exchange.received), exchange.content)
            exchange.status, exchange.received, exchange.content = self._kept.setdefault(key, kept)
            exchange.received["x-request-id"] = exchange.headers.get("X-Request-Id") or str(uuid4())


def _small_limit(exchange: Exchange) -> None:
    if len(exchange.body) > 200_000:
        exchange.status = 413
        error = {"code": "payload_too_large", "message": "too large"}
        exchange.content = json.dumps(error | {"request_id": exchange.received["x-request-id"]}).encode()


BEFORE: dict[str, Change] = {
    "Idempotency-Key replaced": _new_key,
    "Idempotency-Key stripped": lambda exchange: exchange.headers.pop("Idempotency-Key", None) and None,
    "X-Request-Id of the request stripped": lambda exchange: (
        exchange.headers.pop("X-Request-Id", None) and None
    ),
    "whitespace collapsed": _collapse,
}
AFTER: dict[str, Callable[[], Change]] = {
    "ETag weakened": lambda: _etag(lambda etag: f"W/{etag}"),
    "ETag stripped": lambda: _etag(lambda _: None),
    "X-Request-Id stripped": lambda: lambda exchange: exchange.received.pop("x-request-id", None) and None,
    "errors in HTML": lambda: _html_error,
    "CORS added": lambda: lambda exchange: exchange.received.update({"access-control-allow-origin": "*"}),
    "a cookie added": lambda: lambda exchange: exchange.received.update({"set-cookie": "a=b"}),
    "201 as 200": lambda: _status(201, 200),
    "409 as 200": lambda: _status(409, 200),
    "404 as 403": lambda: _status(404, 403),
    "a field added": lambda: _change_json(lambda document: document.update(links=[])),
    "lists reversed": lambda: _change_json(lambda document: document.get("items", []).reverse()),
    "reads cached": _Cache,
    "a smaller body limit": lambda: _small_limit,
}


@contextmanager
def proxy(port: int, fault: str | None) -> Iterator[str]:
    """Run a proxy to *port* of 127.0.0.1 with a fault, and yield its base URL."""
    changes = {"before": BEFORE.get(fault), "after": AFTER[fault]() if fault in AFTER else None}
    with http_proxy(port, **{name: change for name, change in changes.items() if change}) as base:
        yield base
