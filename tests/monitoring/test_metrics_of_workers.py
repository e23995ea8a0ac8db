"""Metrics of several workers, read from any of them."""

import os
import re
import shutil
import signal
from functools import partial

import psutil
import pytest

from stackmgr import __version__
from tests.support import server
from tests.support.server import free_port, running_service, workers_replaced
from tests.support.waiting import eventually

REQUESTS = 40
send_request = partial(server.send_request, timeout=60)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LISTED = 'stackmgr_requests_total{code="",method="GET",route="/manager/stacks",status="200"}'


def samples(admin_port: int) -> dict[str, float]:
    found = server.exchange(admin_port, "/metrics", timeout=60)
    assert found.headers["Content-Type"].startswith("text/plain; version=")
    values = SAMPLE.findall(found.body.decode())
    return {f"{name}{{{labels}}}": float(value) for name, labels, value in values}


@pytest.fixture
def admin_port():
    return free_port()


@pytest.fixture
def service(database_url, admin_port, tmp_path):
    folder = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}", "STACKMGR_METRICS_DIR": f"{tmp_path}/metrics"}
    with running_service(database_url, env=folder | {"WEB_CONCURRENCY": "2"}) as running:
        yield running


def listed(service, key):
    return send_request(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})[0]


def test_what_a_worker_has_counted_outlives_it(service, admin_port, key, tmp_path):
    assert {listed(service, key) for _ in range(REQUESTS)} == {200}
    eventually(lambda: samples(admin_port).get(LISTED) == REQUESTS)  # each is counted after its response
    # One worker may have served them all while the other still starts.
    eventually(lambda: samples(admin_port)["stackmgr_worker_starts_total{}"] == 2)
    assert samples(admin_port)[f'stackmgr_build_info{{version="{__version__}"}}'] == 1
    with workers_replaced(service.pid):
        killed, stopped = psutil.Process(service.pid).children()
        killed.send_signal(signal.SIGKILL)
        stopped.send_signal(signal.SIGTERM)
    eventually(lambda: samples(admin_port)["stackmgr_worker_starts_total{}"] == 4)
    assert samples(admin_port)[LISTED] == REQUESTS
    with workers_replaced(service.pid):
        os.kill(service.pid, signal.SIGHUP)
    assert listed(service, key) == 200
    assert samples(admin_port)[LISTED] == REQUESTS + 1
    eventually(lambda: samples(admin_port)["stackmgr_worker_starts_total{}"] == 6)
    # Four at most have served at once: the old and the new ones of the reload.
    assert len(list((tmp_path / "metrics").glob("*.db"))) <= 8


def test_start_of_a_worker_that_cannot_boot_is_counted(database_url, admin_port, tmp_path):
    (works := tmp_path / "works").touch()
    settings = tmp_path / "settings.py"
    settings.write_text(
        f"exec(open({str(server.SETTINGS)!r}).read())\nfrom stackmgr.server.worker import Worker\n"
        f"load = Worker.load_wsgi\nWorker.load_wsgi = lambda self: open({str(works)!r}) and load(self)\n"
    )
    env = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}", "STACKMGR_METRICS_DIR": f"{tmp_path}/metrics"}
    env["WEB_CONCURRENCY"] = "2"
    with running_service(database_url, env=env, args=["-c", str(settings)]) as service:
        eventually(lambda: samples(admin_port)["stackmgr_worker_starts_total{}"] == 2)
        works.unlink()
        psutil.Process(service.pid).children()[0].kill()
        eventually(lambda: samples(admin_port)["stackmgr_worker_starts_total{}"] > 2)
        eventually(lambda: "This worker cannot boot" in service.log_path.read_text())


def test_worker_serves_without_metrics(service, admin_port, key, tmp_path):
    shutil.rmtree(tmp_path / "metrics")
    (tmp_path / "metrics").touch()
    with workers_replaced(service.pid):
        for worker in psutil.Process(service.pid).children():
            worker.kill()
    assert listed(service, key) == 200
    assert send_request(admin_port, "/metrics")[0] == 404
    assert "this worker has no metrics: File exists" in service.log()
