"""The service passes the checks; a proxy that removes a header field does not."""

from collections.abc import Callable

import pytest

from tests.conformance.__main__ import main
from tests.conformance.checks import CHECKS
from tests.support.command_line import Outcome, runner
from tests.support.http_proxy import Exchange, http_proxy


@pytest.fixture
def keys(new_key) -> str:
    return "".join(f"{new_key()}\n" for _ in range(2))


@pytest.fixture
def conformance(monkeypatch, capsys) -> Callable[..., Outcome]:
    return runner(monkeypatch, capsys, main)


def test_the_service_passes_every_check(conformance, service, keys):
    ran = conformance(f"{service.base}/", stdin=keys)
    assert ran.status == 0, ran.out
    *lines, last = ran.out.splitlines()
    assert lines == [f"ok    {section:4} {title}" for section, title, _ in CHECKS]
    assert last == f"{len(lines)} checks, 0 failed." == "20 checks, 0 failed."


def test_a_failed_check_is_reported(conformance, service, keys):
    def remove_etag(exchange: Exchange) -> None:
        exchange.received.pop("etag", None)

    with http_proxy(service.port, after=remove_etag) as base:
        ran = conformance(base, stdin=keys)
    assert (ran.status, "\nFAIL  2.1 " in f"\n{ran.out}") == (3, True)
    assert "4.5: ETag" in ran.out


def test_wrong_keys_stop_the_run(conformance, service, keys):
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


def test_no_deployment_or_no_base_url(conformance, keys):
    ran = conformance("http://127.0.0.1:1", stdin=keys)
    assert (ran.status, "does not respond" in ran.err) == (1, True)
    assert conformance("stackmgr.example.com").status == 2
