"""The WSGI application, built from the environment.

Each worker process imports it after the fork, because the pool it opens must not be shared.  Run as a
program, `python -m stackmgr.wsgi`, it checks for gunicorn's master whether workers can do so.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from stackmgr import __version__, settings, startup
from stackmgr.database.pool import Database
from stackmgr.http import health
from stackmgr.http.app import create_app
from stackmgr.http.health import WsgiApplication
from stackmgr.monitoring import logs
from stackmgr.monitoring.metrics import Metrics
from stackmgr.settings import SettingsError
from stackmgr.startup import Prepared


def _request_observer(
    prepared: Prepared, metrics: Metrics | None
) -> Callable[[Mapping[str, Any]], None] | None:
    write = None
    if prepared.settings.log_level in {"debug", "info"}:
        write = logs.request_writer(prepared.settings.log_format)
    if metrics is None or write is None:
        return write if metrics is None else metrics.request

    def observe(fields: Mapping[str, Any]) -> None:
        write(fields)
        metrics.request(fields)

    return observe


def build(environ: Mapping[str, str]) -> WsgiApplication:
    """Return the application for *environ*, with its pool open.  Raises SettingsError."""
    prepared = startup.prepare(environ)
    chosen = prepared.settings
    metrics = Metrics(chosen.metrics_dir) if chosen.metrics_dir else None
    if metrics is not None:
        metrics.start()
    database = Database(
        chosen.database_url,
        pool_size=chosen.database_connections,
        deadline=chosen.database_timeout,
        observer=metrics,
        variant=chosen.sql_variant,
    )
    database.open()
    atexit.register(database.close)
    verifier = startup.make_verifier(chosen, database)
    if metrics is not None:
        for name, read in verifier.gauges.items():
            metrics.sample(name, read)
    app: WsgiApplication = create_app(
        database=database,
        verifier=verifier,
        spellings=prepared.spellings,
        log=_request_observer(prepared, metrics),
    )
    if not chosen.admin_port:
        return app
    return health.by_listener(app, health.create_admin_app(database, metrics), chosen.admin_port)


def check() -> None:
    """Check this process's environment and its database, and print the result as one JSON document.

    `problems` is empty if workers can start.  All that a worker imports has been imported by then: the master
    must not do so itself, because its workers would inherit the modules, after an upgrade those of two
    releases.  The document holds secrets, so it is not printed on a terminal.
    """
    if os.isatty(1):
        sys.exit("for gunicorn's master: run 'stackmgr check'")
    import stackmgr.server.worker  # noqa: F401, PLC0415 - not needed under another WSGI server

    known: dict[str, Any] = {
        "version": __version__,
        "log_format": settings.log_format(os.environ),
        "warnings": [],
        "problems": [],
    }
    try:
        prepared = startup.prepare(os.environ)
        chosen = prepared.settings
        known |= {
            "warnings": startup.check_database_and_metrics_folder(chosen),
            "concurrency": startup.concurrent_requests(chosen),
            "queue_timeout": chosen.queue_timeout,
            "admin_port": chosen.admin_port,
            "log_level": chosen.log_level,
            "admin_bind": chosen.admin_bind,
            "metrics_dir": chosen.metrics_dir and str(chosen.metrics_dir),
            "prepared": prepared.dump(),
        }
    except SettingsError as ex:
        known["problems"] = ex.problems
    # The master may have been stopped while it waited.
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(known).encode("ascii"))


if __name__ == "__main__":
    check()
else:
    application = build(os.environ)
