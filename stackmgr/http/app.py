"""Create the WSGI application from its collaborators."""

from collections.abc import Mapping, Sequence

import falcon

from stackmgr.access.verifiers import Verifier
from stackmgr.database.pool import Database
from stackmgr.http import error_handlers
from stackmgr.http.middleware import Authentication, Observer, RequestContext
from stackmgr.http.resources import COLLECTION_PATH, ITEM_PATH, StackCollection, StackItem

Application = falcon.App[falcon.Request, falcon.Response]


class _App(Application):
    # Falcon reserves the method WEBSOCKET for ASGI, with 400.  Here it gets 405, as the others.
    _META_METHODS = frozenset()


def create_app(
    *,
    database: Database,
    verifier: Verifier,
    spellings: Mapping[str, str],
    observers: Sequence[Observer] = (),
    quotes_requests: bool = False,
) -> Application:
    """Return the WSGI application.

    *spellings* maps each accepted spelling of a whitelisted token address to its lowercase form.
    *observers* get the fields of each request, which may quote it only with *quotes_requests*.
    """
    context = RequestContext(observers, quotes_requests=quotes_requests)
    app = _App(middleware=(context, Authentication(database, verifier)))
    error_handlers.install(app)
    app.add_route(COLLECTION_PATH, StackCollection(spellings))
    app.add_route(ITEM_PATH, StackItem(spellings))
    return app
