"""Standard error that cannot be written: responses do not change, and dropped lines are counted."""

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from uuid import uuid4

import pytest

from tests.monitoring.frozen_disk import FrozenDisk, frozen_disk
from tests.support.examples import configuration
from tests.support.server import (
    GUNICORN_COMMAND,
    RunningService,
    free_port,
    running,
    running_service,
    send_request,
    workers_replaced,
)
from tests.support.waiting import eventually

CREATES = 100
PATIENCE = 20.0
LONG_ID = "x" * 15000


def create(service: RunningService, key: str) -> int:
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid4()),
        "X-Request-Id": "x" * 300,
    }
    body = json.dumps(configuration())
    return send_request(service.port, "/manager/stacks", headers, "POST", body, timeout=PATIENCE)[0]


def statuses_of_creates(service: RunningService, key: str) -> list[int]:
    with ThreadPoolExecutor(8) as clients:
        return list(clients.map(lambda _: create(service, key), range(CREATES)))


def stacks_of(service: RunningService, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    page = json.loads(send_request(service.port, "/manager/stacks?limit=100", headers, timeout=PATIENCE)[1])
    assert page["next_cursor"] is None
    return len(page["items"])


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


def read_some_and_close(lines: IO[str]) -> None:
    with lines:
        for _ in range(8):
            lines.readline()


@contextmanager
def closed(database_url: str, env: dict[str, str]) -> Iterator[RunningService]:
    shell = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *GUNICORN_COMMAND]
    with running(shell, env={"STACKMGR_DATABASE_URL": database_url, **env}) as service:
        yield service


@contextmanager
def full_disk(database_url: str, env: dict[str, str]) -> Iterator[RunningService]:
    with (
        Path("/dev/full").open("wb") as full,
        running_service(database_url, env=env, stderr=full) as service,
    ):
        yield service


@contextmanager
def reader_gone(database_url: str, env: dict[str, str]) -> Iterator[RunningService]:
    with small_pipe() as (lines, write_end):
        threading.Thread(target=read_some_and_close, args=[lines], daemon=True).start()
        with running_service(database_url, env=env, stderr=write_end) as service:
            yield service


@contextmanager
def reader_stalled(database_url: str, env: dict[str, str]) -> Iterator[RunningService]:
    with small_pipe() as (_, write_end), running_service(database_url, env=env, stderr=write_end) as service:
        yield service


@contextmanager
def on_a_disk(database_url: str, env: dict[str, str]) -> Iterator[tuple[RunningService, FrozenDisk]]:
    """Run a service whose standard error is the file `log` of a disk that can be frozen."""
    with (
        TemporaryDirectory(prefix="stackmgr-") as folder,
        frozen_disk(Path(folder)) as disk,
        (disk.folder / "log").open("ab") as file,
        running_service(database_url, env=env, stderr=file) as service,
    ):
        try:
            yield service, disk
        finally:
            disk.thaw()


@contextmanager
def disk_stalled(database_url: str, env: dict[str, str]) -> Iterator[RunningService]:
    with on_a_disk(database_url, env) as (service, disk):
        disk.freeze()
        yield service


@pytest.mark.parametrize("broken", [closed, full_disk, reader_gone, reader_stalled, disk_stalled])
def test_a_log_that_cannot_be_written_changes_no_response(broken, database_url, key):
    with broken(database_url, {"WEB_CONCURRENCY": "2"}) as service:
        statuses = statuses_of_creates(service, key)
        assert statuses == [201] * CREATES
        assert stacks_of(service, key) == CREATES


# A process that writes to a frozen disk cannot end before that is thawed.
@pytest.mark.parametrize("broken", [closed, full_disk, reader_gone, reader_stalled])
def test_a_log_that_cannot_be_written_holds_up_neither_a_reload_nor_the_end(broken, database_url, key):
    with broken(database_url, {}) as service:
        statuses_of_creates(service, key)
        with workers_replaced(service.pid):
            os.kill(service.pid, signal.SIGHUP)
        assert create(service, key) == 201
        assert service.stop() == 0


def dropped_lines(admin_port: int) -> float:
    lines = send_request(admin_port, "/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("stackmgr_log_lines_dropped_"))


def send_until_lines_are_dropped(service: RunningService, admin_port: int) -> int:
    """Send more than a pipe and the queue of a worker hold, and return how many requests that took."""
    for sent in range(50, 2000, 50):
        for _ in range(50):
            send_request(service.port, "/", {"X-Request-Id": LONG_ID})
        if dropped_lines(admin_port):
            return sent
    raise AssertionError("no line was dropped")


def test_the_log_and_a_metric_count_the_dropped_lines(database_url, tmp_path):
    admin_port = free_port()
    env = {
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "STACKMGR_METRICS_DIR": str(tmp_path / "metrics"),
    }
    with small_pipe() as (lines, write_end), ThreadPoolExecutor(1) as reader:
        with running_service(database_url, env=env, stderr=write_end) as service:
            sent = send_until_lines_are_dropped(service, admin_port)
            seen: list[dict] = []
            reader.submit(lambda: seen.extend(map(json.loads, iter(lines.readline, "end\n"))))
            deadline = time.monotonic() + PATIENCE
            while not any("dropped" in line for line in seen):
                assert time.monotonic() < deadline
                send_request(service.port, "/")
                time.sleep(0.05)
            (report,) = (line for line in seen if "dropped" in line)
            dropped = report["dropped"]
            eventually(lambda: dropped_lines(admin_port) == dropped)
        os.write(write_end, b"end\n")
    assert report["level"] == "warning"
    assert sum(line.get("request_id") == LONG_ID for line in seen) == sent - dropped


def test_lines_that_a_stalled_disk_cannot_take_are_counted_and_the_others_written(database_url, tmp_path):
    admin_port = free_port()
    env = {
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}",
        "STACKMGR_METRICS_DIR": str(tmp_path / "metrics"),
    }
    with on_a_disk(database_url, env) as (service, disk):
        disk.freeze()
        sent = send_until_lines_are_dropped(service, admin_port)
        disk.thaw()
        log = disk.folder / "log"
        eventually(lambda: b'"dropped": ' in log.read_bytes())
        lines = [json.loads(line) for line in log.read_bytes().splitlines()]
        [dropped] = [line["dropped"] for line in lines if "dropped" in line]
        eventually(lambda: dropped_lines(admin_port) == dropped)
    assert sum(line.get("request_id") == LONG_ID for line in lines) == sent - dropped


def test_lines_of_several_workers_do_not_mix_in_a_pipe(database_url):
    headers = {"X-Request-Id": "x" * 700}
    with small_pipe() as (lines, write_end), ThreadPoolExecutor(9) as threads:
        seen = threads.submit(lambda: list(iter(lines.readline, "end\n")))
        with running_service(database_url, env={"WEB_CONCURRENCY": "2"}, stderr=write_end) as service:
            list(threads.map(lambda _: send_request(service.port, "/", headers), range(400)))
        os.write(write_end, b"end\n")
        found = [json.loads(line) for line in seen.result(PATIENCE)]
    assert sum(line.get("request_id") == headers["X-Request-Id"] for line in found) == 400
