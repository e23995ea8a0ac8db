"""Metrics of several workers, read from whichever of them answers."""

import re
from functools import partial
from uuid import uuid4

from stackmgr import api_keys
from tests import server
from tests.server import free_port, running_service

REQUESTS = 40
ask = partial(server.ask, timeout=10)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def samples(text: str) -> dict[str, float]:
    return {f"{name}{{{labels}}}": float(value) for name, labels, value in SAMPLE.findall(text)}


def test_every_workers_requests_are_counted_and_callers_cannot_make_up_series(
    database_url, operator, tmp_path
):
    with operator.session() as session:
        key = api_keys.issue(session, str(uuid4()))
    admin_port = free_port()
    settings = {
        "WEB_CONCURRENCY": "2",
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "STACKMGR_METRICS_DIR": str(tmp_path / "metrics"),
    }
    with running_service(database_url, env=settings) as service:
        before = samples(ask(admin_port, "/metrics")[1])
        for _ in range(REQUESTS):
            assert ask(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})[0] == 200
        assert ask(service.port, "/manager/stacks", method="INVENTED")[0] == 405
        assert ask(service.port, "/invented")[0] == 404
        assert ask(service.port, "/metrics")[0] == 404
        found = samples(ask(admin_port, "/metrics")[1])
    listed = 'code="",method="GET",route="/manager/stacks",status="200"'
    assert found[f"stackmgr_requests_total{{{listed}}}"] == REQUESTS
    assert found['stackmgr_verifications_total{outcome="accepted"}'] == REQUESTS
    assert found['stackmgr_statement_seconds_count{statement="stack_list"}'] == REQUESTS
    assert found["stackmgr_pool_leased{}"] == 0
    assert not any("INVENTED" in name or "/invented" in name for name in found)
    assert sum(value for name, value in before.items() if name.startswith("stackmgr_requests_total")) <= 1
