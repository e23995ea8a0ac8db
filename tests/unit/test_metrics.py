"""What one worker counts, and how it is added to what the others have counted."""

import logging
import shutil

import pytest

from stackmgr.monitoring import metrics_store
from stackmgr.monitoring.metrics import Metrics

LEASED = ("stackmgr_pool_leased",)
WAIT = ("stackmgr_pool_wait_seconds",)
STATEMENT = ("stackmgr_statement_seconds", "stack_get")


@pytest.fixture
def folder(tmp_path):
    metrics_store.clear(tmp_path / "metrics")
    return tmp_path / "metrics"


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (5.0, 11), (5.1, 12), (600.0, 12)]
)
def test_a_bucket_holds_what_takes_up_to_its_bound(folder, seconds, bucket):
    worker = Metrics(folder)
    worker.statement("stack_get", seconds)
    worker.flush()
    *counts, total = metrics_store.totals(folder)[STATEMENT]
    assert [number for number, count in enumerate(counts) if count] == [bucket]
    assert total == seconds


def test_workers_are_added_up_and_one_that_ended_has_no_connection_in_use(folder, monkeypatch):
    for pid in (11, 12):
        monkeypatch.setattr(metrics_store.os, "getpid", lambda pid=pid: pid)
        worker = Metrics(folder)
        worker.acquired(0.5)
        worker.acquired(0.25)
        worker.released()
        worker.flush()
    for ended in (None, 11, 12, 12):
        if ended is not None:
            metrics_store.mark_process_dead(folder, ended)
        found = metrics_store.totals(folder)
        assert (sum(found[WAIT][:-1]), found[WAIT][-1]) == (4, 1.5)
    assert LEASED not in found


def test_a_worker_that_ends_leaves_no_gauge_to_the_master_of_another_release(folder):
    worker = Metrics(folder)
    worker.acquired(0.5)
    worker.flush()
    assert {LEASED} <= metrics_store.totals(folder).keys()
    worker.end()
    worker.flush()
    found = metrics_store.totals(folder)
    assert {metrics_store.INSTRUMENTS[name].kind for name, *_ in found} == {"counter", "histogram"}
    assert (sum(found[WAIT][:-1]), found[WAIT][-1]) == (1, 0.5)


def test_clear_removes_the_files_of_an_earlier_run_and_no_other(folder):
    worker = Metrics(folder)
    worker.acquired(0.5)
    worker.flush()
    metrics_store.mark_process_dead(folder, 11)
    (folder / "stackmgr_12.new").touch()
    assert metrics_store.folder_problem(folder) is None
    foreign = {folder / "2024.json", folder / "notes", folder / "stackmgr_12.json.bak"}
    for path in foreign:
        path.touch()
    (folder / "stackmgr_7.json").mkdir()
    metrics_store.clear(folder)
    assert set(folder.iterdir()) == foreign | {folder / "stackmgr_7.json"}


def test_a_folder_with_other_files_is_rejected_and_kept(tmp_path):
    (tmp_path / "notes").touch()
    assert metrics_store.folder_problem(tmp_path) == (
        f"{tmp_path} holds files of something else (notes): choose an empty folder"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_the_problem_of_a_folder_that_cannot_be_made_is_in_words(tmp_path, monkeypatch):
    assert metrics_store.folder_problem(tmp_path / "new" / "metrics") is None
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "metrics"
    assert metrics_store.folder_problem(inside) == f"{inside} cannot be used: Not a directory"
    monkeypatch.setattr(metrics_store.os, "access", lambda path, _: path != tmp_path)
    assert metrics_store.folder_problem(tmp_path / "new" / "metrics") == f"{tmp_path} is not writable"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_malformed_file_ends_no_master(folder, caplog):
    metrics_store.file_of(folder, 11).write_text("{")
    with caplog.at_level(logging.WARNING, logger="stackmgr"):
        metrics_store.mark_process_dead(folder, 11)
    assert [record.getMessage() for record in caplog.records] == [
        "the counters of worker 11 are lost: malformed"
    ]


def test_a_missing_folder_is_logged_and_fails_no_request(folder, caplog):
    worker = Metrics(folder)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, logger="stackmgr"):
        worker.flush()
        metrics_store.mark_process_dead(folder, 11)
    assert [record.getMessage() for record in caplog.records] == [
        "the metrics of this worker cannot be written: No such file or directory",
        "the counters of worker 11 are lost: No such file or directory",
    ]
