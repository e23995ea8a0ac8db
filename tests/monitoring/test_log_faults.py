"""Standard error that cannot be written: responses do not change, and dropped lines are counted."""

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import IO

import pytest

from tests.support import server
from tests.support.server import RunningService, running_service, send_request
from tests.support.waiting import eventually

CREATES = 100
PATIENCE = 20.0
LONG_ID = "\xe9" * 255  # of which a line has 1,530 bytes


@contextmanager
def small_pipe() -> Iterator[tuple[IO[str], int]]:
    """A pipe of 4 KiB: the file at its reading end, and the descriptor of its writing end."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(read_end) as lines:
        try:
            yield lines, write_end
        finally:
            os.close(write_end)


@pytest.fixture(params=["closed", "full disk", "reader gone", "reader stalled"])
def service(request, database_url) -> Iterator[RunningService]:
    env = {"WEB_CONCURRENCY": "2"}
    if target := {"closed": "2>&-", "full disk": "2>/dev/full"}.get(request.param):
        shell = ["/bin/sh", "-c", f'exec "$@" {target}', "sh", *server.GUNICORN_COMMAND]
        with server.running(shell, env=env | {"STACKMGR_DATABASE_URL": database_url}) as service:
            yield service
    else:
        with small_pipe() as (lines, write_end):
            if request.param == "reader gone":
                threading.Thread(target=lambda: (lines.read(2000), lines.close()), daemon=True).start()
            with running_service(database_url, env=env, stderr=write_end) as service:
                yield service


def test_unwritable_log_changes_no_response(service, key):
    create = partial(server.create_stack, service.port, key, timeout=PATIENCE, **{"X-Request-Id": "x" * 300})
    with ThreadPoolExecutor(8) as clients:
        statuses = list(clients.map(lambda _: create()[0], range(CREATES)))
    assert statuses == [201] * CREATES
    headers = {"Authorization": f"Bearer {key}"}
    page = send_request(service.port, "/manager/stacks?limit=100", headers, timeout=PATIENCE)[1]
    assert len(json.loads(page)["items"]) == CREATES
    with server.workers_replaced(service.pid):
        os.kill(service.pid, signal.SIGHUP)
    assert create()[0] == 201
    assert service.stop() == 0


def dropped_lines(admin_port: int) -> float:
    lines = send_request(admin_port, "/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("stackmgr_log_lines_dropped_"))


def test_dropped_lines_are_counted(database_url, tmp_path):
    admin_bind, folder = f"127.0.0.1:{(admin_port := server.free_port())}", str(tmp_path / "metrics")
    env = {"STACKMGR_ADMIN_BIND": admin_bind, "STACKMGR_METRICS_DIR": folder}
    seen: list[dict] = []
    with ThreadPoolExecutor(1) as reader, small_pipe() as (lines, write_end):
        with running_service(database_url, env=env, stderr=write_end) as service:
            sent = count()

            def send() -> int:
                send_request(service.port, "/", {"X-Request-Id": LONG_ID})
                return next(sent)

            while not dropped_lines(admin_port):
                assert [send() for _ in range(100)][-1] < 20_000
            reader.submit(lambda: seen.extend(map(json.loads, iter(lines.readline, "end\n"))))
            # It may drop the next ones too.
            eventually(lambda: send() and any("dropped" in line for line in seen), PATIENCE)
            [report] = [line for line in seen if "dropped" in line]
            eventually(lambda: dropped_lines(admin_port) == report["dropped"])
        os.write(write_end, b"end\n")
    assert report["level"] == "warning"
    assert sum(line.get("request_id") == LONG_ID for line in seen) == next(sent) - report["dropped"]
