"""A service that is reloaded: what it logs, who serves, and that a reload was rejected."""

import json
import os
import signal
import time

import psutil

from tests.support.server import RunningService, send_request
from tests.support.waiting import eventually

RELOAD_REJECTED = "The reload is rejected for the reasons above; the workers keep serving as before"


def messages(service: RunningService) -> list[str]:
    """Return what the service has logged.  A process that fails to import prints lines that are not JSON."""
    lines = service.log_path.read_text().splitlines()
    return [json.loads(line)["message"] for line in lines if line.startswith("{")]


def is_serving(service: RunningService) -> bool:
    return send_request(service.port, "/", timeout=20)[0] == 404


def workers(service: RunningService) -> set[psutil.Process]:
    return set(psutil.Process(service.pid).children())


def kill_workers(service: RunningService) -> None:
    before = workers(service)
    for worker in before:
        worker.kill()
    eventually(lambda: len(workers(service) - before) == len(before), 60)


def rejected_reload(service: RunningService) -> str:
    before, rejected = workers(service), messages(service).count(RELOAD_REJECTED)
    os.kill(service.pid, signal.SIGHUP)
    ended = service.process.poll
    eventually(lambda: messages(service).count(RELOAD_REJECTED) > rejected or ended() is not None, 60)
    assert ended() is None
    eventually(lambda: workers(service) == before)
    time.sleep(0.5)  # in which the master would end, or replace the workers
    assert workers(service) == before
    assert is_serving(service)
    logged = messages(service)
    return logged[len(logged) - logged[::-1].index(RELOAD_REJECTED) - 2]
