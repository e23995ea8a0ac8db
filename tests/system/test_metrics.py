"""Metrics of several workers, read from whichever of them answers."""

import re
import signal
import time
from functools import partial
from uuid import uuid4

import psutil
import pytest

from stackmgr import api_keys
from tests.support import server
from tests.support.server import free_port, running_service, workers_replaced

REQUESTS = 40
ask = partial(server.ask, timeout=10)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LISTED = 'stackmgr_requests_total{code="",method="GET",route="/manager/stacks",status="200"}'


def samples(admin_port: int) -> dict[str, float]:
    text = ask(admin_port, "/metrics")[1]
    return {f"{name}{{{labels}}}": float(value) for name, labels, value in SAMPLE.findall(text)}


def answered(found: dict[str, float]) -> float:
    return sum(value for name, value in found.items() if name.startswith("stackmgr_requests_total"))


def samples_of(admin_port: int, requests: int) -> dict[str, float]:
    """Return what there is once so many requests are counted: each worker tells the others once a second."""
    deadline = time.monotonic() + 10
    while answered(found := samples(admin_port)) < requests:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@pytest.fixture
def key(operator):
    with operator.session() as session:
        return api_keys.issue(session, str(uuid4()))


@pytest.fixture
def admin_port():
    return free_port()


@pytest.fixture
def service(database_url, admin_port, tmp_path):
    settings = {
        "WEB_CONCURRENCY": "2",
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "STACKMGR_METRICS_DIR": str(tmp_path / "metrics"),
    }
    with running_service(database_url, env=settings) as running:
        yield running


def test_every_workers_requests_are_counted_and_callers_cannot_make_up_series(service, admin_port, key):
    # One request has found out that the service has started.
    assert answered(samples_of(admin_port, 1)) == 1
    for _ in range(REQUESTS):
        assert ask(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})[0] == 200
    assert ask(service.port, "/manager/stacks", method="INVENTED")[0] == 405
    assert ask(service.port, "/invented")[0] == 404
    assert ask(service.port, "/metrics")[0] == 404
    found = samples_of(admin_port, 1 + REQUESTS + 3)
    route = 'method="GET",route="/manager/stacks"'
    assert found[LISTED] == REQUESTS
    assert found[f"stackmgr_request_seconds_count{{{route}}}"] == REQUESTS
    assert found[f'stackmgr_request_seconds_bucket{{le="+Inf",{route}}}'] == REQUESTS
    assert found[f"stackmgr_request_seconds_sum{{{route}}}"] > 0
    assert found['stackmgr_verifications_total{outcome="accepted"}'] == REQUESTS
    assert found['stackmgr_statement_seconds_count{statement="stack_list"}'] == REQUESTS
    assert found["stackmgr_pool_leased{}"] == 0
    assert not any("INVENTED" in name or "/invented" in name for name in found)


def test_what_a_worker_has_counted_outlives_it(service, admin_port, key, tmp_path):
    for _ in range(REQUESTS):
        assert ask(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})[0] == 200
    samples_of(admin_port, 1 + REQUESTS)
    with workers_replaced(service.pid):
        killed, stopped = psutil.Process(service.pid).children()
        killed.send_signal(signal.SIGKILL)
        stopped.send_signal(signal.SIGTERM)
    assert samples(admin_port)[LISTED] == REQUESTS
    # The master has moved it before it forked the next worker.
    assert (tmp_path / "metrics" / "ended.json").exists()
    assert not (tmp_path / "metrics" / f"{killed.pid}.json").exists()
