"""The operator's listener: `/live`, `/ready` and, if enabled, `/metrics`.  No proxy publishes it.

The manager listener serves the four operations only.  The port that accepted the connection decides
which application handles a request.
"""

from collections.abc import Callable, Iterable
from typing import Any

import falcon

from stackmgr import __version__, paths
from stackmgr.database import statements
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError, MethodNotAllowed
from stackmgr.http.app import return_error_objects
from stackmgr.monitoring.metrics import Metrics
from stackmgr.threads import call_in_thread

_READINESS = statements.load("readiness")

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Health:
    def __init__(self, database: Database, metrics: Metrics | None) -> None:
        self._database = database
        self._metrics = metrics
        self._schema_version = paths.schema_version()

    def on_get_live(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 and the release that runs.  Nothing else is checked."""
        resp.media = {"status": "live", "version": __version__}

    def on_get_ready(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 if this worker can write to a database with the required schema, or 503."""
        reason = self._not_ready_reason()
        resp.status = falcon.HTTP_503 if reason else falcon.HTTP_200
        resp.media = {"status": "not ready", "reason": reason} if reason else {"status": "ready"}

    def on_get_metrics(self, req: falcon.Request, resp: falcon.Response) -> None:
        if self._metrics is not None:  # otherwise it has no route
            resp.data, resp.content_type = call_in_thread(self._metrics.exposition)

    on_head_live, on_head_ready, on_head_metrics = on_get_live, on_get_ready, on_get_metrics

    def _not_ready_reason(self) -> str | None:
        try:
            row = self._database.session().row(_READINESS, {})
        except DatabaseError as ex:
            return (
                f"the database rejects it: {ex.sqlstate}" if ex.sqlstate else "the database does not respond"
            )
        takes_writes, schema_version, missing = row or (False, 0, None)
        if not takes_writes:
            return "the database accepts no writes"
        if schema_version < self._schema_version:
            return "the schema is older than the service"
        return missing and f"stackmgr_app lacks {missing}: run 'stackmgr migrate'"


class ReadsOnly:
    """Reject every other method, also those that Falcon responds to by itself."""

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, params: dict[str, Any]
    ) -> None:
        if req.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("GET, HEAD")


def create_admin_app(database: Database, metrics: Metrics | None) -> WsgiApplication:
    app: falcon.App[falcon.Request, falcon.Response] = falcon.App(middleware=ReadsOnly())
    return_error_objects(app)
    resource = Health(database, metrics)
    for suffix in ("live", "ready", "metrics") if metrics else ("live", "ready"):
        app.add_route(f"/{suffix}", resource, suffix=suffix)
    return app


def by_listener(manager_app: WsgiApplication, admin_app: WsgiApplication, admin_port: int) -> WsgiApplication:
    """Return an application that dispatches by listener.

    SERVER_PORT is the listener's own port.  No header field changes it.
    """
    port = str(admin_port)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        chosen = admin_app if environ["SERVER_PORT"] == port else manager_app
        return chosen(environ, start_response)

    return application
