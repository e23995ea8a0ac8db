"""Prometheus metrics of all workers; an optional extra that costs nothing while it is off.

A worker counts in memory and writes its values to a shared folder once a second.  The worker that is scraped
adds up the files.  A scrape may therefore lag by a second, and a killed worker loses its last second.
prometheus-client's own multiprocess values have no lag, but cost a seventh of the throughput.
"""

import atexit
import contextlib
import logging
import os
import resource
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackmgr import __version__
from stackmgr.monitoring import logs, metrics_store
from stackmgr.monitoring.metrics_store import (
    INSTRUMENTS,
    LOG_LINES_DROPPED,
    POOL_LEASED,
    POOL_WAIT_SECONDS,
    QUEUE_TIMEOUTS,
    REQUEST_SECONDS,
    REQUESTS,
    STATEMENT_SECONDS,
    VERIFICATIONS,
    Values,
)
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import repeat

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

INTERVAL = 1.0

_BATCH = 500

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH"})

_REQUEST = ("request",)  # the key of a request event, which updates several instruments
_POOL_WAIT = (POOL_WAIT_SECONDS,)
_LEASED = (POOL_LEASED,)

_QUEUE_TIMEOUT = ReasonSlug.QUEUE_TIMEOUT.value

_log = logging.getLogger("stackmgr")


class Metrics:
    """The instruments of one worker.  Thread-safe; created after the fork.

    A request only appends events to a queue.  They are counted in batches of several hundred: in a tight loop
    an event costs a fraction of what it costs between the steps of a request.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: deque[tuple[tuple[str, ...], Any]] = deque()
        self._lock = threading.Lock()
        # From 0 on, so that increase() sees the first one.
        self._values: Values = {(QUEUE_TIMEOUTS,): [0]}
        self._sampled: dict[str, Callable[[], float]] = {LOG_LINES_DROPPED: logs.dropped_lines}
        self._has_ended = False

    def start(self) -> None:
        """Flush once a second, and end with the process."""
        atexit.register(self.end)
        repeat(self.flush, INTERVAL, "metrics")

    def sample(self, name: str, read: Callable[[], float]) -> None:
        """Read the value of a counter or gauge without labels from *read* at each flush."""
        self._sampled[name] = read

    def end(self) -> None:
        """Write the counters for the last time: a worker that ends has no gauges.

        After a rollback the master is of an older release, which may not know all of them.
        """
        self._has_ended = True
        self.flush()

    def flush(self) -> None:
        """Write the current values to this worker's file."""
        with self._lock:
            self._count()
            for name, read in self._sampled.items():
                self._values[(name,)] = [read()]
            values = metrics_store.without_gauges(self._values) if self._has_ended else self._values
            try:
                metrics_store.write(metrics_store.file_of(self._folder, os.getpid()), values)
            except OSError as ex:
                _log.warning("the metrics of this worker cannot be written: %s", ex.strerror)

    def request(self, fields: Mapping[str, Any]) -> None:
        """Count a finished request, given the fields of its log line."""
        self._record(_REQUEST, fields)

    def statement(self, name: str, seconds: float) -> None:
        """Record the duration of a statement."""
        self._record((STATEMENT_SECONDS, name), seconds)

    def acquired(self, seconds: float) -> None:
        """Record that a connection was acquired, and the wait for it."""
        self._record(_POOL_WAIT, seconds)

    def released(self) -> None:
        """Record that a connection was released."""
        self._record(_LEASED, -1)

    def _record(self, key: tuple[str, ...], what: Any) -> None:
        self._events.append((key, what))
        if len(self._events) >= _BATCH and self._lock.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._lock.release()

    def _count(self) -> None:
        events = self._events
        while events:
            key, what = events.popleft()
            if key is _REQUEST:
                self._count_request(what)
            elif key is _LEASED:
                self._add(key, what)
            else:
                self._observe(key, what)
                if key is _POOL_WAIT:
                    self._add(_LEASED, 1)

    def _count_request(self, fields: Mapping[str, Any]) -> None:
        route = fields["route"] or "none"
        # A method or path invented by a client must not create a time series.
        method = fields["method"] if fields["method"] in _METHODS and route != "none" else "other"
        self._add((REQUESTS, method, route, str(fields["status"]), fields["code"] or ""), 1)
        self._observe((REQUEST_SECONDS, method, route), fields["duration_ms"] / 1000)
        if fields.get("reason") == _QUEUE_TIMEOUT:
            self._add((QUEUE_TIMEOUTS,), 1)
        if fields["verifier"] is not None:
            self._add((VERIFICATIONS, fields["verifier"]), 1)

    def _add(self, key: tuple[str, ...], number: int) -> None:
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = [0]
        values[0] += number

    def _observe(self, key: tuple[str, ...], seconds: float) -> None:
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = [0] * (len(_BUCKETS) + 2)
        values[bisect_left(_BUCKETS, seconds)] += 1
        values[-1] += seconds

    def exposition(self) -> tuple[bytes, str]:
        """Return the sums over all workers in the text format of Prometheus, and its media type.

        Blocks: the disk may be slow.
        """
        from prometheus_client import CollectorRegistry, exposition  # noqa: PLC0415 - an extra

        self.flush()
        registry = CollectorRegistry()
        registry.register(_Collector(metrics_store.totals(self._folder)))
        registry.register(_ProcessCollector(metrics_store.worker_pids(self._folder)))
        return exposition.generate_latest(registry), exposition.CONTENT_TYPE_LATEST


class _Collector:
    """Present values to prometheus-client's exposition."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - an extra

        build = core.GaugeMetricFamily("stackmgr_build_info", "Release that serves", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build
        families = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        for name, instrument in INSTRUMENTS.items():
            family = families[instrument.kind](name, instrument.documentation, labels=instrument.labels)
            for key in sorted(key for key in self._values if key[0] == name):
                if instrument.kind == "histogram":
                    *counts, total = self._values[key]
                    bounds = [*map(str, _BUCKETS), "+Inf"]
                    family.add_metric(key[1:], list(zip(bounds, accumulate(counts), strict=True)), total)
                else:
                    family.add_metric(key[1:], self._values[key][0])
            yield family


class _ProcessCollector:
    """process_* of gunicorn's master and of each worker.

    prometheus-client's own collector reports one process, and reads /proc/stat, which the systemd unit hides.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._processes = [("master", os.getppid()), *(("worker", pid) for pid in workers)]

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - an extra

        labels = ("role", "pid")
        families: tuple[CounterMetricFamily | GaugeMetricFamily, ...] = (
            core.CounterMetricFamily("process_cpu_seconds", "User and system CPU time", labels=labels),
            core.GaugeMetricFamily("process_resident_memory_bytes", "Resident memory", labels=labels),
            core.GaugeMetricFamily("process_start_time_seconds", "Start, as Unix time", labels=labels),
            core.GaugeMetricFamily("process_open_fds", "Open file descriptors", labels=labels),
            core.GaugeMetricFamily("process_max_fds", "Limit of open file descriptors", labels=labels),
        )
        for role, pid in self._processes:
            # A worker may have ended since, and not every system has /proc.
            with contextlib.suppress(OSError):
                for family, value in zip(families, _usage(pid), strict=True):
                    family.add_metric((role, str(pid)), value)
        return families


def _usage(pid: int) -> tuple[float, ...]:
    """Return CPU seconds, resident bytes, start time, open files and their limit.  Raises OSError."""
    process = Path("/proc", str(pid))
    # After the name in parentheses; fields as proc(5) numbers them, from the third.
    fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
    open_files = sum(1 for _ in process.joinpath("fd").iterdir())
    ticks = os.sysconf("SC_CLK_TCK")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return (
        (int(fields[11]) + int(fields[12])) / ticks,
        int(fields[21]) * resource.getpagesize(),
        booted + int(fields[19]) / ticks,
        open_files,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
