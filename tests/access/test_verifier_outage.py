"""The running service while Unkey hangs and when it has recovered: never a 401, and threads stay free."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.http_server import http_server, respond
from tests.support.server import free_port, running_service, send_request
from tests.support.unkey_server import ROOT_KEY, accepted
from tests.support.waiting import eventually

EXTERNAL = "8d1f7a52-52f5-4b0e-8f5e-6f1b9c2d3e44"
AUTHORIZED = {"Authorization": "Bearer key-outage"}
REQUESTS, CLIENTS = 1000, 100
REJECTED = 'stackmgr_unavailable_total{reason="verifier_circuit_open"} '


@pytest.fixture
def unkey():
    with http_server() as server:
        yield server


@pytest.fixture
def admin_port():
    return free_port()


@pytest.fixture
def service(database_url, unkey, admin_port, tmp_path):
    env = {
        "STACKMGR_VERIFIER": "unkey",
        "STACKMGR_UNKEY_URL": unkey.url,
        "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
        "STACKMGR_VERIFY_TIMEOUT": "1",
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "STACKMGR_METRICS_DIR": str(tmp_path / "metrics"),
    }
    with running_service(database_url, env=env) as running:
        yield running


def rejected_by_the_circuit(admin_port):
    lines = send_request(admin_port, "/metrics")[1].splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(REJECTED))
    return float(value)


def test_a_verifier_that_hangs_costs_its_time_out_once_and_recovery_is_seen(service, unkey, admin_port):
    def status(_=None):
        return send_request(service.port, "/manager/stacks", AUTHORIZED, timeout=60)[0]

    unkey.behave = unkey.silence
    with ThreadPoolExecutor(CLIENTS) as clients:
        statuses = list(clients.map(status, range(REQUESTS)))
    assert statuses == [503] * REQUESTS
    # Those of the first moment, and a few probes: the others do not wait for the verifier.
    assert len(unkey.requests) < REQUESTS / 5
    assert rejected_by_the_circuit(admin_port) > REQUESTS / 2
    unkey.behave = respond(200, accepted(EXTERNAL, "id_outage"))
    seen = []
    eventually(lambda: seen.append(status()) or seen[-1] == 200)
    assert set(seen) <= {503, 200}
    rejected = rejected_by_the_circuit(admin_port)
    assert [status() for _ in range(20)] == [200] * 20
    assert rejected_by_the_circuit(admin_port) == rejected
    messages = [json.loads(line)["message"] for line in service.log().splitlines()]
    assert "The verifier does not respond: requests return 503 at once until it does" in messages
    assert messages.index("The verifier responds again") > 0
