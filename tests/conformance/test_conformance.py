"""The service passes the checks, also through a proxy, and each broken rule is noticed."""

import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.__main__ import main
from tests.conformance.breaking_proxy import AFTER, BEFORE, proxy
from tests.conformance.checks import CHECKS
from tests.support.command_line import Outcome
from tests.support.server import RunningService, running_service

# Which section's check has to notice each fault; others may notice it as well.
NOTICED_BY = {
    "Idempotency-Key replaced": "4.1",
    "Idempotency-Key stripped": "2.1",
    "X-Request-Id of the request stripped": "4.5",
    "whitespace collapsed": "2.4",
    "ETag weakened": "2.1",
    "ETag stripped": "2.1",
    "X-Request-Id stripped": "4.5",
    "errors in HTML": "7",
    "CORS added": "5.8",
    "a cookie added": "2.1",
    "201 as 200": "2.1",
    "409 as 200": "4.1",
    "404 as 403": "5.3",
    "a field added": "2.1",
    "lists reversed": "4.2",
    "reads cached": "3",
    "a smaller body limit": "8",
}


@pytest.fixture(scope="module")
def service(database_url: str) -> Iterator[RunningService]:
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

    def run(base: str, stdin: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["conformance", base])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            main()
        except SystemExit as ex:
            printed = capsys.readouterr()
            if isinstance(ex.code, str):
                return Outcome(1, printed.out, ex.code)
            return Outcome(int(ex.code or 0), printed.out, printed.err)
        return Outcome(0, *capsys.readouterr())

    return run


def test_the_service_passes_every_check(conformance, service, keys):
    ran = conformance(service.base, keys)
    assert ran.status == 0, ran.out
    *lines, last = ran.out.splitlines()
    assert lines == [f"ok    {section:4} {title}" for section, title, _ in CHECKS]
    assert len(lines) == 24
    assert last == f"{len(CHECKS)} checks, 0 failed."


def test_it_passes_through_a_proxy_that_breaks_nothing(conformance, service, keys):
    with proxy(service.port, None) as base:
        assert conformance(f"{base}/", keys).status == 0


def test_every_fault_is_expected_somewhere():
    assert NOTICED_BY.keys() == BEFORE.keys() | AFTER.keys()
    assert len(NOTICED_BY) >= 12


@pytest.mark.parametrize("fault", NOTICED_BY)
def test_a_proxy_that_breaks_a_rule_is_noticed(conformance, service, keys, fault):
    with proxy(service.port, fault) as base:
        ran = conformance(base, keys)
    assert ran.status == 3
    assert NOTICED_BY[fault] in re.findall(r"^FAIL  (\S+)", ran.out, re.MULTILINE)
    if fault == "404 as 403":
        assert "7: 403 with 'not_found'" in ran.out


def test_keys_that_are_missing_equal_or_unknown_stop_the_run(conformance, service, keys):
    first = keys.split()[0]
    for stdin, message in (
        ("", "two keys are expected"),
        (f"{first}\n", "two keys are expected"),
        (f"{first}\n{first}\n", "must be of two managers"),
        (f"{first}\nunknown\n", "the second manager's key is not accepted: status 401"),
    ):
        ran = conformance(service.base, stdin)
        assert (ran.status, ran.out) == (1, "")
        assert message in ran.err
        assert first not in ran.err


def test_a_deployment_that_does_not_respond(conformance, keys):
    ran = conformance("http://127.0.0.1:1", keys)
    assert ran.status == 1
    assert "does not respond" in ran.err


def test_a_base_url_that_is_none(conformance):
    assert conformance("stackmgr.example.com", "").status == 2
