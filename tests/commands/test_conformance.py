"""`stackmgr conformance`: the service passes, also through a proxy, and each broken rule is noticed."""

from collections.abc import Iterator
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from stackmgr.access import api_keys
from stackmgr.commands.conformance.checks import CHECKS
from tests.commands.breaking_proxy import AFTER, BEFORE, proxy
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
def keys(operator) -> str:
    """The keys of two new managers, as the command reads them."""
    with operator.session() as session:
        return "".join(f"{api_keys.issue(session, str(uuid4()))}\n" for _ in range(2))


def failures(outcome) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for check in outcome.json["checks"]:
        if check["failure"] is not None:
            found.setdefault(check["section"], []).append(check["failure"])
    return found


def test_the_service_passes_every_check(command, service, keys, tmp_path):
    ran = command("conformance", service.base, "--junit", tmp_path / "report.xml", stdin=keys)
    assert ran.status == 0, ran.out
    lines = ran.out.splitlines()
    assert len(lines) == len(CHECKS) == 24
    assert all(line.startswith("ok    ") for line in lines)
    assert f"{len(CHECKS)} checks, 0 failed." in ran.err
    suite = ET.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == (str(len(CHECKS)), "0")
    assert [case.get("classname") for case in suite] == [f"section {section}" for section, *_ in CHECKS]


def test_it_passes_through_a_proxy_that_breaks_nothing(command, service, keys):
    with proxy(service.port, None) as base:
        assert failures(command("conformance", f"{base}/", "--json", stdin=keys)) == {}


def test_every_fault_is_expected_somewhere():
    assert NOTICED_BY.keys() == BEFORE.keys() | AFTER.keys()
    assert len(NOTICED_BY) >= 12


@pytest.mark.parametrize("fault", NOTICED_BY)
def test_a_proxy_that_breaks_a_rule_is_noticed(command, service, keys, fault):
    with proxy(service.port, fault) as base:
        ran = command("conformance", base, "--json", stdin=keys)
    assert ran.status == 3
    assert NOTICED_BY[fault] in failures(ran)
    assert "Traceback" not in ran.err


def test_a_failure_is_in_the_report_and_in_the_junit_file(command, service, keys, tmp_path):
    with proxy(service.port, "404 as 403") as base:
        ran = command("conformance", base, "--junit", tmp_path / "report.xml", stdin=keys)
    assert ran.status == 3
    assert "FAIL  5.3  " in ran.out
    assert "7: 403 with 'not_found'" in ran.out
    suite = ET.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - our own file
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0


def test_keys_that_are_missing_equal_or_unknown_stop_the_run(command, service, keys):
    first = keys.split()[0]
    for stdin, message in (
        ("", "two keys are expected"),
        (f"{first}\n", "two keys are expected"),
        (f"{first}\n{first}\n", "must be of two managers"),
        (f"{first}\nunknown\n", "the second manager's key is not accepted: status 401"),
    ):
        ran = command("conformance", service.base, stdin=stdin)
        assert (ran.status, ran.out) == (1, "")
        assert message in ran.err
        assert first not in ran.err


def test_a_deployment_that_does_not_respond(command, keys):
    ran = command("conformance", "http://127.0.0.1:1", stdin=keys)
    assert ran.status == 1
    assert "does not respond" in ran.err


@pytest.mark.parametrize("base", ["stackmgr.example.com", "ftp://a", "https://user:pass@a", "https://a/?b"])
def test_a_base_url_that_is_none(command, base):
    assert command("conformance", base).status == 2
