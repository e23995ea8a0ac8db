"""The instruments, and the folder of files through which the workers share their values.

Each worker writes a file of its own.  When it ends, the master adds its counters to those of the workers that
ended before.  Imports nothing of the HTTP layer: gunicorn's master uses it too.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_ENDED = "stackmgr_ended.json"
_LOCK = "stackmgr.lock"
_OWN = re.compile(r"stackmgr_(?:[0-9]+|ended)\.(?:json|new)|stackmgr\.lock")

_log = logging.getLogger("stackmgr")

# Keyed by instrument name and label values.  A counter or gauge has one number; a histogram has the number of
# observations in each bucket, the number above the last, and the sum of the observations.
Values = dict[tuple[str, ...], list[float]]


class Instrument(NamedTuple):
    """A counter, gauge or histogram."""

    kind: str
    documentation: str
    labels: tuple[str, ...] = ()
    combine: Callable[[Iterable[float]], float] = sum  # the values of several workers


REQUESTS = "stackmgr_requests"
REQUEST_SECONDS = "stackmgr_request_seconds"
VERIFICATIONS = "stackmgr_verifications"
STATEMENT_SECONDS = "stackmgr_statement_seconds"
POOL_WAIT_SECONDS = "stackmgr_pool_wait_seconds"
POOL_LEASED = "stackmgr_pool_leased"
LOG_LINES_DROPPED = "stackmgr_log_lines_dropped"
VERIFIER_CIRCUIT_OPEN = "stackmgr_verifier_circuit_open"
QUEUE_TIMEOUTS = "stackmgr_queue_timeouts"

INSTRUMENTS = {
    REQUESTS: Instrument("counter", "Requests completed", ("method", "route", "status", "code")),
    REQUEST_SECONDS: Instrument("histogram", "Time from routing to response", ("method", "route")),
    VERIFICATIONS: Instrument("counter", "API key verifications by outcome", ("outcome",)),
    STATEMENT_SECONDS: Instrument("histogram", "Time of a statement, network included", ("statement",)),
    POOL_WAIT_SECONDS: Instrument("histogram", "Wait for a connection from the pool"),
    POOL_LEASED: Instrument("gauge", "Connections in use"),
    VERIFIER_CIRCUIT_OPEN: Instrument(
        "gauge", "Workers that respond 503 because the verifier does not respond"
    ),
    QUEUE_TIMEOUTS: Instrument("counter", "Requests that got 503 because they could not be started in time"),
    LOG_LINES_DROPPED: Instrument("counter", "Log lines dropped because standard error could not be written"),
}


def folder_problem(folder: Path) -> str | None:
    """Return why metrics cannot be kept in *folder*, or None.  Changes nothing."""
    try:
        foreign = sorted(entry.name for entry in folder.iterdir() if not _is_own(entry))
        if foreign:
            return f"{folder} holds files of something else ({foreign[0]}): choose an empty folder"
        needed = folder
    except FileNotFoundError:
        needed = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
    except OSError as ex:
        return f"{folder} cannot be used: {ex.strerror}"
    if not os.access(needed, os.R_OK | os.W_OK | os.X_OK):
        return f"{needed} is not writable"
    return None


def clear(folder: Path) -> None:
    """Create *folder*, or remove the files of an earlier run from it.  Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if _is_own(entry):
            entry.unlink()


def _is_own(entry: Path) -> bool:
    return _OWN.fullmatch(entry.name) is not None and not entry.is_dir()


def mark_process_dead(folder: Path, pid: int) -> None:
    """Add the counters of a worker that has ended to those that ended before, and drop its gauges."""
    ended, worker = folder / _ENDED, file_of(folder, pid)
    try:
        with _locked(folder, fcntl.LOCK_EX):
            sums, counted = _read(ended), _read(worker)
            _merge(sums, without_gauges(counted))
            write(ended, sums)
            worker.unlink(missing_ok=True)
    except (OSError, ValueError) as ex:
        _log.warning("the counters of worker %s are lost: %s", pid, getattr(ex, "strerror", "malformed"))


def without_gauges(values: Values) -> Values:
    """Return the counters and histograms, which outlive their worker."""
    return {key: numbers for key, numbers in values.items() if INSTRUMENTS[key[0]].kind != "gauge"}


def totals(folder: Path) -> Values:
    """Return the sums over all workers, including those that have ended."""
    sums: Values = {}
    with _locked(folder, fcntl.LOCK_SH):
        for path in folder.glob("stackmgr_*.json"):
            _merge(sums, _read(path))
    return sums


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    # The counters of a worker move to another file when it ends.  A reader in between would miss them, or
    # count them twice.
    with (folder / _LOCK).open("a") as file:
        fcntl.flock(file, operation)
        yield


def worker_pids(folder: Path) -> list[int]:
    """Return the process ids of the workers that have written their values."""
    names = (path.stem.removeprefix("stackmgr_") for path in folder.glob("stackmgr_*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def file_of(folder: Path, pid: int) -> Path:
    """Return the path of a worker's file."""
    return folder / f"stackmgr_{pid}.json"


def _read(path: Path) -> Values:
    try:
        # Another release, before or after an upgrade, may count something else.
        return {tuple(key): values for key, values in json.loads(path.read_bytes()) if key[0] in INSTRUMENTS}
    except FileNotFoundError:
        return {}


def write(path: Path, values: Values) -> None:
    """Replace the file at *path* atomically.  Raises OSError."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(list(values.items())), encoding="ascii")
    unfinished.replace(path)


def _merge(sums: Values, values: Values) -> None:
    for key, numbers in values.items():
        before, combine = sums.get(key), INSTRUMENTS[key[0]].combine
        sums[key] = numbers if before is None else list(map(combine, zip(before, numbers, strict=True)))
