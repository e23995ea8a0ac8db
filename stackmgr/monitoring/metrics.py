"""Prometheus metrics of all workers, by prometheus-client's multiprocess mode: an optional extra.

Each worker counts in mapped files of STACKMGR_METRICS_DIR, and the worker that is scraped adds up
all.  The library would keep the files of each ended process.  Here a worker continues those of an
ended one, so that their number is bounded.
"""

import fcntl
import itertools
import logging
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stackmgr import __version__
from stackmgr.monitoring import logs
from stackmgr.reasons import ReasonSlug
from stackmgr.threads import repeat

_SAMPLE_SECONDS = 1.0
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH"})
_UNAVAILABLE = 503
# Counted from 0 on, so that increase() sees the first one.
_REASONS_OF_ALERTS = (ReasonSlug.QUEUE_TIMEOUT, ReasonSlug.VERIFIER_CIRCUIT_OPEN)

_BUILD = f"""\
# HELP stackmgr_build_info Release that serves
# TYPE stackmgr_build_info gauge
stackmgr_build_info{{version="{__version__}"}} 1.0
""".encode("ascii")

_KINDS = ("counter", "histogram")
_OWN = re.compile(r"(?:counter|histogram)_[0-9]+\.(?:db|new)|[0-9]+\.lock")
_FILE_BYTES = 65_536  # with which the library starts; it holds every series of this module

_log = logging.getLogger("stackmgr")


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
    return None if os.access(needed, os.R_OK | os.W_OK | os.X_OK) else f"{needed} is not writable"


def clear(folder: Path) -> None:
    """Create *folder*, or empty it of an earlier run.  Raises OSError, also if that runs."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # This process keeps it.  If it is killed, its workers must not delay the next start.
        os.register_at_fork(after_in_child=partial(os.close, lock))
    except BlockingIOError as ex:
        raise OSError(ex.errno, "in use by another service", str(folder)) from ex
    for entry in folder.iterdir():
        if _is_own(entry):
            entry.unlink()


def _is_own(entry: Path) -> bool:
    return _OWN.fullmatch(entry.name) is not None and not entry.is_dir()


def _claim_files(folder: Path) -> tuple[int, int]:
    """Return the lowest number whose files no process uses, and the descriptor that locks them.

    On a full disk, touching an unallocated page kills the process (SIGBUS): all are allocated.
    """
    for number in itertools.count():
        lock = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        for kind in _KINDS:
            path = folder / f"{kind}_{number}.db"
            if not _is_readable(path):
                with path.with_suffix(".new").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)
                path.with_suffix(".new").replace(path)  # a scrape cannot read an empty file
        return number, lock
    raise AssertionError("unreachable")


def _merge(paths: Iterable[Path]) -> list[Any]:
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415 - an extra

    return list(MultiProcessCollector.merge(map(str, paths)))  # type: ignore[no-untyped-call]


def _is_readable(path: Path) -> bool:
    try:
        return bool(_merge([path]))
    except (FileNotFoundError, ValueError, RuntimeError, struct.error):
        return False


class Metrics:
    """The metrics of one worker.  Created after the fork.  Raises OSError."""

    def __init__(self, folder: Path) -> None:
        # The library reads it on import: the master must not import it, as workers inherit modules.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        from prometheus_client import Counter, Histogram, values  # noqa: PLC0415 - an extra

        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        number, self._lock = _claim_files(folder)
        values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]

        counter = partial(Counter, namespace="stackmgr", registry=None)
        histogram = partial(Histogram, namespace="stackmgr", buckets=_BUCKETS, registry=None)
        labels = "method", "route", "status", "code"
        self._requests = counter("requests", "Requests completed", labels)
        self._seconds = histogram("request_seconds", "Time from routing to response", labels[:2])
        waits = histogram("wait_seconds", "Time for which requests waited", ["for"])
        self._queue_waits, self._verifier_waits = waits.labels("queue"), waits.labels("verifier")
        self.connection_waits = waits.labels("connection")
        self._seconds.labels("other", "none")  # opens the file: at the first request, the folder may be gone
        self._unavailable = counter("unavailable", "Responses with status 503", ["reason"])
        for reason in _REASONS_OF_ALERTS:
            self._unavailable.labels(reason.value)
        self._used = counter("pool_use_seconds", "Connections in use times seconds, sampled each second")
        self._sampled = {
            "round_trips": counter("round_trips", "Round trips to PostgreSQL with a statement of a request"),
            "round_trip_requests": counter("round_trip_requests", "Requests that they had in total"),
            "dropped": counter("log_lines_dropped", "Log lines dropped: standard error cannot be written"),
        }
        self._reported = dict.fromkeys(self._sampled, 0)
        counter("worker_starts", "Workers started").inc()
        self._count = cache(self._requests.labels)
        self._time = cache(self._seconds.labels)

    def start(self, pool_stats: Callable[[], Mapping[str, int]]) -> None:
        """Sample the pool's statistics, which *pool_stats* returns, once a second."""

        def sample() -> None:
            stats = {**pool_stats(), "dropped": logs.dropped_lines()}
            self._used.inc((stats["pool_size"] - stats["pool_available"]) * _SAMPLE_SECONDS)
            for name, sampled in self._sampled.items():
                sampled.inc(stats[name] - self._reported[name])
                self._reported[name] = stats[name]

        repeat(sample, _SAMPLE_SECONDS, "metrics")

    def request(self, fields: Mapping[str, Any]) -> None:
        """Count a finished request, given the fields of its log line."""
        route = fields["route"] or "none"
        # A method or path invented by a client must not create a time series.
        method = fields["method"] if fields["method"] in _METHODS and route != "none" else "other"
        self._count(method, route, fields["status"], fields["code"] or "").inc()
        self._time(method, route).observe(fields["duration_ms"] / 1000)
        self._queue_waits.observe(fields["queued_ms"] / 1000)
        if "verifier_ms" in fields:
            self._verifier_waits.observe(fields["verifier_ms"] / 1000)
        if fields["status"] == _UNAVAILABLE:
            self._unavailable.labels(fields["reason"] or "").inc()

    def exposition(self) -> tuple[bytes, str]:
        """Return the sums over all workers in the text format of Prometheus, and its media type.

        Blocks: the disk may be slow.
        """
        from prometheus_client import exposition  # noqa: PLC0415 - an extra

        # After a reload, files may be of another release of the library.
        readable = [path for path in self._folder.glob("*.db") if _is_readable(path)]
        registry: Any = SimpleNamespace(collect=lambda: _merge(readable))
        return exposition.generate_latest(registry) + _BUILD, exposition.CONTENT_TYPE_LATEST


@cache
def of_worker(folder: Path) -> Metrics | None:
    """Return the metrics of this worker, which begin at its fork, or None if it cannot keep any."""
    try:
        return Metrics(folder)
    except OSError as ex:  # serve requests without metrics
        _log.warning("this worker has no metrics: %s", ex.strerror)
        return None
