"""Prometheus metrics, right under several workers; an optional extra that costs nothing while it is off.

prometheus-client is imported here only, and only once metrics are asked for: it decides at import whether it
shares its values between processes, by the folder that is then in the environment.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Not at run time: gunicorn's master imports this module, and its workers are to import Falcon afresh.
    import falcon

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH"})
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare(folder: Path) -> None:
    """Empty the folder that the workers share, before any of them starts: values of an earlier run go."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def forget(folder: Path, pid: int) -> None:
    """Take a worker that has ended out of the gauges; what it has counted stays."""
    os.environ[_FOLDER_VARIABLE] = str(folder)
    from prometheus_client import multiprocess  # noqa: PLC0415

    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


class Metrics:
    """The instruments of one worker, and the resource `/metrics`."""

    def __init__(self, folder: Path) -> None:
        os.environ[_FOLDER_VARIABLE] = str(folder)
        from prometheus_client import Counter, Gauge, Histogram  # noqa: PLC0415

        self._requests = Counter(
            "stackmgr_requests_total", "Requests answered", ["method", "route", "status", "code"]
        )
        self._duration = Histogram(
            "stackmgr_request_seconds", "From routing to answer", ["method", "route"], buckets=_BUCKETS
        )
        self._verifications = Counter(
            "stackmgr_verifications_total", "Keys verified, by outcome", ["outcome"]
        )
        self._statements = Histogram(
            "stackmgr_statement_seconds", "Time of a statement, both ways", ["statement"], buckets=_BUCKETS
        )
        self._checkouts = Histogram(
            "stackmgr_pool_wait_seconds", "Wait for a connection of the pool", buckets=_BUCKETS
        )
        self._leased = Gauge("stackmgr_pool_leased", "Connections in use", multiprocess_mode="livesum")
        self._children: dict[tuple[str, ...], Any] = {}

    def request(self, fields: Mapping[str, Any]) -> None:
        """Count one finished request by the fields of its log line."""
        route = fields["route"] or "none"
        # What callers make up must not make up time series.
        method = fields["method"] if fields["method"] in _METHODS and route != "none" else "other"
        labels = (method, route, str(fields["status"]), fields["code"] or "")
        self._child(self._requests, labels).inc()
        self._child(self._duration, (method, route)).observe(fields["duration_ms"] / 1000)
        if fields["verifier"] is not None:
            self._child(self._verifications, (fields["verifier"],)).inc()

    def statement(self, name: str, seconds: float) -> None:
        """Record one statement by its name."""
        self._child(self._statements, (name,)).observe(seconds)

    def taken(self, seconds: float) -> None:
        """Record the wait for a connection, and that it is in use."""
        self._checkouts.observe(seconds)
        self._leased.inc()

    def given_back(self) -> None:
        """Record that a connection is free again."""
        self._leased.dec()

    def _child(self, instrument: Any, labels: tuple[str, ...]) -> Any:
        key = (instrument._name, *labels)  # noqa: SLF001
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = instrument.labels(*labels)
        return child

    def on_get(self, req: "falcon.Request", resp: "falcon.Response") -> None:
        """Answer with the values of all workers together, in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry, exposition, multiprocess  # noqa: PLC0415

        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        resp.content_type = exposition.CONTENT_TYPE_LATEST
        resp.data = exposition.generate_latest(registry)
