"""The counters of one worker, their sums with the others', and the folder of both."""

import mmap
import os
import re

import psutil
import pytest
from prometheus_client import values

from stackmgr.monitoring import metrics
from stackmgr.monitoring.metrics import Metrics

SAMPLE = re.compile(r"^(\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)
REQUEST = {"method": "GET", "route": "/manager/stacks", "status": 200, "code": None, "reason": None}
REQUEST |= {"duration_ms": 1.0, "queued_ms": 0.0}
COUNTED = 'stackmgr_requests_total{code="",method="GET",route="/manager/stacks",status="200"}'
BUCKET = 'stackmgr_request_seconds_bucket{le="%s",method="GET",route="/manager/stacks"}'
BOUNDS = [*map(str, (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)), "+Inf"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    yield tmp_path / "new" / "metrics"
    values.close_all_multiprocess_files()


def samples(worker: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in SAMPLE.findall(worker.exposition()[0].decode())}


@pytest.mark.parametrize(("milliseconds", "bucket"), [
    (0.0, 0), (1.0, 0), (1.1, 1), (5000.0, 11), (5100.0, 12), (600_000.0, 12)
])  # fmt: skip
def test_a_bucket_holds_what_takes_up_to_its_bound(folder, milliseconds, bucket):
    worker = Metrics(folder)
    worker.request(REQUEST | {"duration_ms": milliseconds})
    found = samples(worker)
    assert [found[BUCKET % bound] for bound in BOUNDS] == [0] * bucket + [1] * (13 - bucket)


def test_requests_are_counted_by_code_reason_and_wait(folder):
    worker = Metrics(folder)
    reasons = 'stackmgr_unavailable_total{reason="%s"}'
    waits = 'stackmgr_wait_seconds_bucket{for="%s",le="%s"}'
    found = samples(worker)
    assert found[reasons % "queue_timeout"] == found[reasons % "verifier_circuit_open"] == 0
    # Unknown paths are one series, and unknown methods.
    for method, route in [("GET", None), ("POST", None), ("BREW", None), ("BREW", "/"), ("BEER", "/")]:
        worker.request(REQUEST | {"method": method, "route": route, "status": 405})
    found = samples(worker)
    assert sorted(found[name] for name in found if name.startswith("stackmgr_requests_total")) == [2, 3]
    worker.request(REQUEST | {"status": 503, "code": "service_unavailable", "reason": "database"})
    rejected = {"status": 401, "code": "unauthorized", "reason": "key_unknown"}
    worker.request(REQUEST | rejected | {"queued_ms": 2.0})
    worker.request(REQUEST | {"verifier_ms": 300.0})
    worker.connection_waits.observe(0.04)
    found = samples(worker)
    assert (found[reasons % "database"], reasons % "key_unknown" in found) == (1, False)
    for cause, bounds, counts in (
        ("queue", (0.001, 0.0025), [7, 8]), ("verifier", (0.25, 0.5), [0, 1]),
        ("connection", (0.025, 0.05), [0, 1]),
    ):  # fmt: skip
        assert [found[waits % (cause, bound)] for bound in bounds] == counts
    for method in ("HEAD", "POST", "PATCH"):
        worker.request(REQUEST | {"method": method})
        assert samples(worker)[COUNTED.replace("GET", method)] == 1


def test_workers_are_added_up(folder):
    for rounds in range(1, 6):
        workers = [Metrics(folder), Metrics(folder)]
        for worker in workers:
            worker.request(REQUEST)
        for worker in workers:
            assert samples(worker)[COUNTED] == samples(worker)["stackmgr_worker_starts_total"] == 2 * rounds
            os.close(worker._lock)
    names = [f"{number}.lock" for number in range(2)]
    names += [f"{kind}_{number}.db" for kind in ("counter", "histogram") for number in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_worker_opens_its_own_files_before_a_request(folder):
    for _ in range(3):
        Metrics(folder)
    opened = [each.path for each in psutil.Process().open_files() if each.path.startswith(f"{folder}/")]
    names = [f"{folder}/{number}.lock" for number in range(3)]
    assert sorted(path for path in opened if path.endswith(".lock")) == names
    files = {f"{folder}/{kind}_{number}.db" for kind in ("counter", "histogram") for number in range(3)}
    assert files <= {*opened}


def test_statistics_of_the_pool_are_added(folder, monkeypatch):
    repeated = []
    monkeypatch.setattr(metrics, "repeat", lambda work, seconds, _: repeated.append((work, seconds)))
    monkeypatch.setattr(metrics.logs, "dropped_lines", iter([3, 5]).__next__)
    stats = {"pool_size": 4, "pool_available": 1, "round_trips": 0}
    worker = Metrics(folder)
    worker.start(lambda: stats | {"round_trip_requests": 3 * stats["round_trips"]})
    [(work, seconds)] = repeated
    for stats["round_trips"] in 5, 7:
        work()
    found = samples(worker)
    assert found["stackmgr_pool_use_seconds_total"] == 2 * 3 * seconds
    assert found["stackmgr_round_trips_total"] == 7
    assert found["stackmgr_round_trip_requests_total"] == 21
    assert found["stackmgr_log_lines_dropped_total"] == 5


def test_every_series_fits_the_first_pages(folder):
    """On a full disk, touching an unallocated page kills the process."""
    worker = Metrics(folder)
    for method in ("GET", "HEAD", "POST", "PATCH", "PUT"):
        for route in ("/manager/stacks", "/manager/stacks/{stack_id}", None):
            for status in (200, 400, 401, 404, 405, 408, 409, 413, 429, 500, 503):
                code = "a_code_of_25_characters__"
                fields = {"method": method, "route": route, "status": status, "code": code, "reason": "r"}
                worker.request(REQUEST | fields)
    for path in folder.glob("*.db"):
        assert (path.stat().st_size, path.stat().st_blocks * 512) == (65_536, 65_536)
        used = int.from_bytes(path.read_bytes()[:4], "little")
        assert mmap.PAGESIZE < used < 65_536


@pytest.mark.parametrize("content", [
    b"[[]]garbage", b"", b"\xff" * 100,
    *(b"\x20" + bytes(7) + bytes([length]) + b"\0\0\0[{}]" + bytes(30) for length in (4, 40)),
])  # fmt: skip
def test_unreadable_file_is_made_anew(folder, content):
    os.close(Metrics(folder)._lock)
    for number in (0, 7):  # of which the new worker gets the first
        (folder / f"counter_{number}.db").write_bytes(content)
    worker = Metrics(folder)
    worker.request(REQUEST)
    assert samples(worker)[COUNTED] == 1


def test_clear_removes_earlier_files_only(folder):
    Metrics(folder).request(REQUEST)
    assert metrics.folder_problem(folder) is None
    foreign = {folder / "2024.db", folder / "notes", folder / "counter_1.db.bak"}
    for path in foreign:
        path.touch()
    (folder / "counter_7.db").mkdir()
    metrics.clear(folder)
    assert set(folder.iterdir()) == foreign | {folder / "counter_7.db"}


def test_unusable_folder_is_in_words(tmp_path, monkeypatch):
    assert metrics.folder_problem(tmp_path / "new" / "metrics") is None
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "metrics"
    assert metrics.folder_problem(inside) == f"{inside} cannot be used: Not a directory"
    rights = os.R_OK | os.W_OK | os.X_OK
    monkeypatch.setattr(os, "access", lambda *given: given != (tmp_path, rights))
    assert metrics.folder_problem(tmp_path / "new" / "metrics") == f"{tmp_path} is not writable"
    other = "holds files of something else (file): choose an empty folder"
    assert metrics.folder_problem(tmp_path) == f"{tmp_path} {other}"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
