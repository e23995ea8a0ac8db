"""The application for a WSGI server, made from the environment.

Imported once in each worker process, after the fork, because the pool it opens must not be shared.
"""

import atexit
import os
from collections.abc import Callable, Mapping
from typing import Any

from stackmgr import logs, startup
from stackmgr.app import create_app
from stackmgr.database.pool import Database
from stackmgr.http import health
from stackmgr.http.health import WsgiApplication
from stackmgr.metrics import Metrics
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
    """Return the application that *environ* describes, with its pool open.  Raises SettingsError."""
    prepared = startup.prepare(environ)
    chosen = prepared.settings
    metrics = Metrics(chosen.metrics_dir) if chosen.metrics_dir else None
    if metrics is not None:
        metrics.start()
    database = Database(
        chosen.database_url, pool_size=chosen.threads, deadline=chosen.database_timeout, observer=metrics
    )
    database.open()
    atexit.register(database.close)
    app = create_app(
        database=database,
        verifier=startup.make_verifier(chosen, database),
        spellings=prepared.spellings,
        log=_request_observer(prepared, metrics),
    )
    if not chosen.admin_port:
        return app
    return health.by_listener(app, health.create_admin_app(database, metrics), chosen.admin_port)


application = build(os.environ)
