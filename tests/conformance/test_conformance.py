"""The service passes the checks, and a proxy that breaks a rule, as misconfigured ones do, is noticed."""

import json
import re
from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.conformance.__main__ import main
from tests.conformance.checks import CHECKS
from tests.support.command_line import Outcome, runner
from tests.support.http_proxy import Change, Exchange, http_proxy
from tests.support.server import running_service


def status(old: int, new: int) -> Change:
    def fault(exchange: Exchange) -> None:
        exchange.status = new if exchange.status == old else exchange.status

    return fault


def document(change: Callable[[dict], None]) -> Change:
    """Return a fault that changes the JSON of each success."""

    def fault(exchange: Exchange) -> None:
        if exchange.status < 400 and exchange.content:
            received = json.loads(exchange.content)
            change(received)
            exchange.content = json.dumps(received).encode()

    return fault


def strip(part: str, name: str) -> Change:
    return lambda exchange: getattr(exchange, part).pop(name, None)


def add(name: str, value: str) -> Change:
    return lambda exchange: exchange.received.update({name: value})


def weaken(exchange: Exchange) -> None:
    if "etag" in exchange.received:
        exchange.received["etag"] = f"W/{exchange.received['etag']}"


def replace_key(exchange: Exchange) -> None:
    if 0 < len(exchange.headers.get("idempotency-key", "").strip()) < 100:
        exchange.headers["idempotency-key"] = str(uuid4())


def collapse(exchange: Exchange) -> None:
    exchange.body = exchange.body.replace(b" two  spaces ", b"two spaces")


def show_errors_in_html(exchange: Exchange) -> None:
    if exchange.status >= 400:
        exchange.content = b"<html><h1>Bad Request</h1></html>"


def reject_large_bodies(exchange: Exchange) -> None:
    if len(exchange.body) > 200_000:
        exchange.status = 413
        error = {"code": "payload_too_large", "message": "too large"}
        exchange.content = json.dumps(error | {"request_id": exchange.received["x-request-id"]}).encode()


class Cache:
    """Returns the first response to a GET of a stack for ever."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[dict[str, str], bytes]] = {}

    def __call__(self, exchange: Exchange) -> None:
        is_stack = exchange.method == "GET" and exchange.path.startswith("/manager/stacks/")
        if is_stack and exchange.status == 200:
            key = f"{exchange.path} {exchange.headers.get('authorization')}"
            kept, exchange.content = self._kept.setdefault(key, (exchange.received, exchange.content))
            exchange.received = kept | {"x-request-id": exchange.received["x-request-id"]}


# The section whose check has to notice each fault; others may notice it as well.
# The change is made before the request is sent on, or after the response has come.
FAULTS: dict[str, tuple[str, str, Change]] = {
    "Idempotency-Key replaced": ("before", "4.1", replace_key),
    "Idempotency-Key stripped": ("before", "2.1", strip("headers", "idempotency-key")),
    "X-Request-Id of the request stripped": ("before", "4.5", strip("headers", "x-request-id")),
    "whitespace collapsed": ("before", "2.4", collapse),
    "ETag weakened": ("after", "2.1", weaken),
    "ETag stripped": ("after", "2.1", strip("received", "etag")),
    "X-Request-Id stripped": ("after", "4.5", strip("received", "x-request-id")),
    "errors in HTML": ("after", "7", show_errors_in_html),
    "CORS added": ("after", "5.8", add("access-control-allow-origin", "*")),
    "a cookie added": ("after", "2.1", add("set-cookie", "a=b")),
    "201 as 200": ("after", "2.1", status(201, 200)),
    "409 as 200": ("after", "4.1", status(409, 200)),
    "404 as 403": ("after", "5.3", status(404, 403)),
    "a field added": ("after", "2.1", document(lambda received: received.update(links=[]))),
    "lists reversed": ("after", "4.2", document(lambda received: received.get("items", []).reverse())),
    "reads cached": ("after", "3", Cache()),
    "a smaller body limit": ("after", "8", reject_large_bodies),
}


@pytest.fixture(scope="module")
def service(database_url):
    with running_service(database_url) as service:
        yield service


@pytest.fixture
def keys(new_key) -> str:
    """The keys of two new managers, each on its line."""
    return "".join(f"{new_key()}\n" for _ in range(2))


@pytest.fixture
def conformance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Return a function that runs `python -m tests.conformance` inside this process."""
    return runner(monkeypatch, capsys, main)


def test_the_service_passes_every_check(conformance, service, keys):
    ran = conformance(f"{service.base}/", stdin=keys)
    assert ran.status == 0, ran.out
    *lines, last = ran.out.splitlines()
    assert lines == [f"ok    {section:4} {title}" for section, title, _ in CHECKS]
    assert last == f"{len(lines)} checks, 0 failed." == "24 checks, 0 failed."


@pytest.mark.parametrize("fault", FAULTS)
def test_a_proxy_that_breaks_a_rule_is_noticed(conformance, service, keys, fault):
    moment, section, change = FAULTS[fault]
    with http_proxy(service.port, **{moment: change}) as base:
        ran = conformance(base, stdin=keys)
    assert ran.status == 3
    assert section in re.findall(r"^FAIL  (\S+)", ran.out, re.MULTILINE)
    assert fault != "404 as 403" or "7: 403 with 'not_found'" in ran.out


def test_keys_that_are_missing_equal_or_unknown_stop_the_run(conformance, service, keys):
    first = keys.split()[0]
    for stdin, message in (
        ("", "two keys are expected"),
        (f"{first}\n", "two keys are expected"),
        (f"{first}\n{first}\n", "must be of two managers"),
        (f"{first}\nunknown\n", "the second manager's key is not accepted: status 401"),
    ):
        ran = conformance(service.base, stdin=stdin)
        assert (ran.status, ran.out) == (1, "")
        assert message in ran.err
        assert first not in ran.err


def test_a_deployment_that_does_not_respond_or_a_base_url_that_is_none(conformance, keys):
    ran = conformance("http://127.0.0.1:1", stdin=keys)
    assert ran.status == 1
    assert "does not respond" in ran.err
    assert conformance("stackmgr.example.com").status == 2
