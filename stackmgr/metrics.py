"""Prometheus metrics, right under several workers; an optional extra that costs nothing while it is off.

A worker counts in its own memory, and once a second writes what it has counted to a file of its own, in a
folder that all share; the worker that Prometheus asks adds the files up. So what another worker counted
shows a second later, and of one that is killed the last second is lost. The values that prometheus-client
shares between processes are exact at any moment, and cost a seventh of the throughput.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stackmgr.background import repeat

if TYPE_CHECKING:
    # Not at run time: gunicorn's master imports this module, and its workers are to import Falcon afresh.
    import falcon
    from prometheus_client import Metric

INTERVAL = 1.0

_AT_ONCE = 500

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH"})
_ENDED = "ended.json"

# By the name of an instrument and the values of its labels: one number, or of a histogram the number of
# observations in each bucket and beyond the last, and their sum.
Values = dict[tuple[str, ...], list[float]]


class Instrument(NamedTuple):
    """What is counted under one name."""

    kind: str
    documentation: str
    labels: tuple[str, ...] = ()


_REQUESTS = "stackmgr_requests"
_REQUEST_SECONDS = "stackmgr_request_seconds"
_VERIFICATIONS = "stackmgr_verifications"
_STATEMENT_SECONDS = "stackmgr_statement_seconds"
_POOL_WAIT_SECONDS = "stackmgr_pool_wait_seconds"
_POOL_LEASED = "stackmgr_pool_leased"

INSTRUMENTS = {
    _REQUESTS: Instrument("counter", "Requests answered", ("method", "route", "status", "code")),
    _REQUEST_SECONDS: Instrument("histogram", "From routing to answer", ("method", "route")),
    _VERIFICATIONS: Instrument("counter", "Keys verified, by outcome", ("outcome",)),
    _STATEMENT_SECONDS: Instrument("histogram", "Time of a statement, both ways", ("statement",)),
    _POOL_WAIT_SECONDS: Instrument("histogram", "Wait for a connection of the pool"),
    _POOL_LEASED: Instrument("gauge", "Connections in use"),
}
_REQUEST = ("request",)  # that a note is of one, which is counted under several names
_POOL_WAIT = (_POOL_WAIT_SECONDS,)
_LEASED = (_POOL_LEASED,)

_log = logging.getLogger("stackmgr")


def clear(folder: Path) -> None:
    """Empty the folder that the workers share, before any of them starts: values of an earlier run go."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def mark_process_dead(folder: Path, pid: int) -> None:
    """Add what a worker has counted, now that it has ended, to what the others had; its gauges go."""
    ended, worker = folder / _ENDED, _file_of(folder, pid)
    try:
        with _locked(folder, fcntl.LOCK_EX):
            sums, counted = _read(ended), _read(worker)
            _merge(sums, {key: counted[key] for key in counted if INSTRUMENTS[key[0]].kind != "gauge"})
            _write(ended, sums)
            worker.unlink(missing_ok=True)
    except OSError as ex:
        _log.warning("what worker %s has counted is lost: %s", pid, ex.strerror)


def totals(folder: Path) -> Values:
    """Return what all workers have counted, those that have ended included."""
    sums: Values = {}
    with _locked(folder, fcntl.LOCK_SH):
        for path in folder.glob("*.json"):
            _merge(sums, _read(path))
    return sums


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    # What a worker counted moves from one file to another when it ends: read in between, it would be missing
    # or counted twice.
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, operation)
        yield


def _file_of(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"


def _read(path: Path) -> Values:
    try:
        return {tuple(key): values for key, values in json.loads(path.read_bytes())}
    except FileNotFoundError:
        return {}


def _write(path: Path, values: Values) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(list(values.items())), encoding="ascii")
    unfinished.replace(path)


def _merge(sums: Values, values: Values) -> None:
    for key, numbers in values.items():
        before = sums.get(key)
        sums[key] = numbers if before is None else list(map(sum, zip(before, numbers, strict=True)))


class Metrics:
    """What one worker counts, and the resource `/metrics`.  Safe for threads; made after the fork.

    A request only leaves notes.  They are counted some hundred at a time: in a loop each costs a fraction of
    what it would between the steps of a request.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes: deque[tuple[tuple[str, ...], Any]] = deque()
        self._counting = threading.Lock()
        self._values: Values = {}

    def start(self) -> None:
        """Share what is counted once a second, and once more when the process ends."""
        repeat(self.flush, INTERVAL, "metrics")

    def flush(self) -> None:
        """Write what was counted so far where the other workers find it."""
        with self._counting:
            self._count()
            try:
                _write(_file_of(self._folder, os.getpid()), self._values)
            except OSError as ex:
                _log.warning("the metrics of this worker cannot be shared: %s", ex.strerror)

    def request(self, fields: Mapping[str, Any]) -> None:
        """Count one finished request by the fields of its log line."""
        self._note(_REQUEST, fields)

    def statement(self, name: str, seconds: float) -> None:
        """Record one statement by its name."""
        self._note((_STATEMENT_SECONDS, name), seconds)

    def acquired(self, seconds: float) -> None:
        """Record the wait for a connection, and that it is in use."""
        self._note(_POOL_WAIT, seconds)

    def released(self) -> None:
        """Record that a connection is free again."""
        self._note(_LEASED, -1)

    def _note(self, key: tuple[str, ...], what: Any) -> None:
        self._notes.append((key, what))
        if len(self._notes) >= _AT_ONCE and self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()

    def _count(self) -> None:
        notes = self._notes
        while notes:
            key, what = notes.popleft()
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
        # What callers make up must not make up time series.
        method = fields["method"] if fields["method"] in _METHODS and route != "none" else "other"
        self._add((_REQUESTS, method, route, str(fields["status"]), fields["code"] or ""), 1)
        self._observe((_REQUEST_SECONDS, method, route), fields["duration_ms"] / 1000)
        if fields["verifier"] is not None:
            self._add((_VERIFICATIONS, fields["verifier"]), 1)

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

    def on_get(self, req: "falcon.Request", resp: "falcon.Response") -> None:
        """Answer with the values of all workers together, in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry, exposition  # noqa: PLC0415 - an extra

        self.flush()
        registry = CollectorRegistry()
        registry.register(_Collector(totals(self._folder)))
        resp.content_type = exposition.CONTENT_TYPE_LATEST
        resp.data = exposition.generate_latest(registry)


class _Collector:
    """Values in the form in which prometheus-client writes them down."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - an extra

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
