"""What one worker counts, and how it is added to what the others have counted."""

import logging
import shutil

import pytest

from stackmgr import metrics
from stackmgr.metrics import Metrics

LEASED = ("stackmgr_pool_leased",)
WAIT = ("stackmgr_pool_wait_seconds",)
STATEMENT = ("stackmgr_statement_seconds", "stack_get")


@pytest.fixture
def folder(tmp_path):
    metrics.clear(tmp_path / "metrics")
    return tmp_path / "metrics"


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (5.0, 11), (5.1, 12), (600.0, 12)]
)
def test_a_bucket_holds_what_takes_up_to_its_bound(folder, seconds, bucket):
    worker = Metrics(folder)
    worker.statement("stack_get", seconds)
    worker.flush()
    *counts, total = metrics.totals(folder)[STATEMENT]
    assert [number for number, count in enumerate(counts) if count] == [bucket]
    assert total == seconds


def test_workers_are_added_up_and_one_that_ended_has_no_connection_in_use(folder, monkeypatch):
    for pid in (11, 12):
        monkeypatch.setattr(metrics.os, "getpid", lambda pid=pid: pid)
        worker = Metrics(folder)
        worker.acquired(0.5)
        worker.acquired(0.25)
        worker.released()
        worker.flush()
    for ended in (None, 11, 12, 12):
        if ended is not None:
            metrics.mark_process_dead(folder, ended)
        found = metrics.totals(folder)
        assert (sum(found[WAIT][:-1]), found[WAIT][-1]) == (4, 1.5)
    assert LEASED not in found


def test_a_folder_that_is_gone_is_told_to_the_operator_and_fails_nothing(folder, caplog):
    worker = Metrics(folder)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, logger="stackmgr"):
        worker.flush()
        metrics.mark_process_dead(folder, 11)
    assert [record.getMessage() for record in caplog.records] == [
        "the metrics of this worker cannot be shared: No such file or directory",
        "what worker 11 has counted is lost: No such file or directory",
    ]
