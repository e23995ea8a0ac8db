"""From the environment to the application of a worker, with every problem reported at once."""

import atexit
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from stackmgr import settings
from stackmgr.access.verifiers import Verifier
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.access.verifiers.unkey import UnkeyVerifier
from stackmgr.database.pool import Database
from stackmgr.database.round_trips import MAX_REQUESTS
from stackmgr.http import health
from stackmgr.http.app import create_app
from stackmgr.http.health import WsgiApplication
from stackmgr.monitoring import logs
from stackmgr.monitoring.metrics import of_worker
from stackmgr.settings import Settings, SettingsError
from stackmgr.stacks import whitelist

# By the value of STACKMGR_VERIFIER.
VERIFIERS: Mapping[str, type[Verifier]] = {"database": DatabaseVerifier, "unkey": UnkeyVerifier}

# gunicorn's master sets it in each worker after the fork: see deploy/gunicorn.conf.py.
PREPARED = "STACKMGR.PREPARED"
# Set by `stackmgr dev`: the request log may quote requests.
DEV = "STACKMGR.DEV"


class Prepared(NamedTuple):
    """A configuration that passed every check."""

    settings: Settings
    spellings: Mapping[str, str]

    def dump(self) -> str:
        """Return this as JSON, secrets included."""
        return json.dumps([settings.to_environ(self.settings), self.spellings])


def prepare(environ: Mapping[str, str]) -> Prepared:
    """Return the checked configuration, or raise SettingsError with every problem it has.

    A worker of gunicorn finds in PREPARED what its master has checked: by a file that has changed
    since it would differ from the other workers.
    """
    if PREPARED in environ:
        checked = json.loads(environ[PREPARED])
        return Prepared(settings.from_environ(checked[0]), checked[1])
    problems: list[str] = []
    try:
        chosen = settings.from_environ(environ)
    except SettingsError as ex:
        problems += ex.problems
    # gunicorn reads it before any file of this package, and without a number it cannot start.
    if not re.fullmatch(r"[1-9][0-9]{0,2}", environ.get("WEB_CONCURRENCY", "1")):
        problems.append("WEB_CONCURRENCY must be a whole number from 1 to 999")
    try:
        spellings = whitelist.load_configured(environ).spellings
    except SettingsError as ex:
        problems += ex.problems
    if problems:
        raise SettingsError(problems)
    return Prepared(chosen, spellings)


def make_verifier(chosen: Settings, database: Database | None) -> Verifier:
    """Return the verifier that the settings name; without a *database* it records nothing."""
    return VERIFIERS[chosen.verifier].from_settings(chosen, database)


def concurrent_requests(chosen: Settings) -> int:
    """Return how many requests a worker serves at once.

    With a verifier that needs the database, more than two full batches would only wait for it, and
    could not be rejected any more.
    """
    if VERIFIERS[chosen.verifier].needs_connection:
        return min(chosen.concurrency, 2 * MAX_REQUESTS)
    return chosen.concurrency


def build(environ: Mapping[str, str]) -> WsgiApplication:
    """Return the application for *environ*, which serves.  Raises SettingsError."""
    return assemble(prepare(environ), environ, serves=True)


def assemble(prepared: Prepared, environ: Mapping[str, str], *, serves: bool) -> WsgiApplication:
    """Return the application of a checked configuration, with its pool open if it *serves*."""
    chosen, spellings = prepared
    metrics = of_worker(chosen.metrics_dir) if serves and chosen.metrics_dir else None
    database = Database(
        chosen.database_url,
        pool_size=chosen.database_connections,
        deadline=chosen.database_timeout,
        variant=chosen.sql_variant,
    )
    if serves:
        database.open()
        atexit.register(database.close)
    logs_requests = chosen.log_level in {"debug", "info"}
    observers = [logs.request_writer(chosen.log_format)] if logs_requests else []
    if metrics is not None:
        metrics.start(database.stats)
        database.on_wait(metrics.connection_waits.observe)
        observers.append(metrics.request)
    app: WsgiApplication = create_app(
        database=database,
        verifier=make_verifier(chosen, database),
        spellings=spellings,
        observers=observers,
        quotes_requests=DEV in environ,
    )
    if not chosen.admin_port:
        return app
    return health.by_listener(app, health.create_admin_app(database, metrics), chosen.admin_port)
