"""Requests to the application, and responses back."""

from traceback import walk_tb
from typing import Any

from gunicorn.http.wsgi import base_environ

from stackmgr.server.connection import ClientConnection
from stackmgr.server.protocol import CLOSED, Rejection
from stackmgr.server.queue import RequestQueue
from stackmgr.server.request import HEAD_LIMIT, HeadLimits, ReceivedRequest
from stackmgr.server.response import Response


def log_failure(log: Any, exc: BaseException) -> None:
    """Log the type and the place of an unexpected exception, not its text, which may quote a request."""
    *_, (frame, line) = walk_tb(exc.__traceback__)
    name = type(exc).__name__
    log.error("Error handling a request: %s at %s:%d", name, frame.f_code.co_filename, line)


def log_rejection(log: Any, peer: str, rejection: Rejection) -> None:
    """Log an error of the server's own with the id of the request."""
    kind, request_id, why = rejection
    fields = {"request_id": request_id, "status": kind.status, "code": kind.code}
    log.warning("Rejected a request from %s: %s", peer, why, extra={"fields": fields})


class RequestHandler:
    """Runs a worker's application. It reads gunicorn's settings once: each `cfg.name` is slow."""

    def __init__(self, worker: Any, queue: RequestQueue[Any]) -> None:
        self._worker, self._queue = worker, queue
        cfg = worker.cfg
        limits = cfg.limit_request_line, cfg.limit_request_fields, cfg.limit_request_field_size
        self.limits = HeadLimits(*(min(each or HEAD_LIMIT, HEAD_LIMIT) for each in limits))
        self._keeps_alive = bool(cfg.keepalive)
        self._base_environ = {
            **base_environ(cfg),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http",
            "SCRIPT_NAME": "",
        }

    def respond(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Run the application and take its response.  Raises what the application does."""
        conn.protocol.start()
        if conn.protocol.state is CLOSED:
            return
        self._worker.count_request()
        response = Response(request)
        try:
            result = self._worker.wsgi(self._environ(conn, request), response.start_response)
            try:
                response.pieces.extend(result)
            finally:
                if hasattr(result, "close"):
                    result.close()
        finally:
            if response.status.startswith("401"):
                self._queue.forget(conn.place)
        # A worker that stops says so; later, the client has read that the connection stays open.
        must_close = request.must_close or not (self._keeps_alive and self._worker.alive)
        *parts, must_close = response.encode(must_close=must_close)
        conn.protocol.respond(*parts, must_close=must_close)

    def _environ(self, conn: ClientConnection, request: ReceivedRequest) -> dict[str, Any]:
        return {
            **self._base_environ,
            **conn.environ,
            **request.environ,
            "wsgi.input": request.body,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "RAW_URI": request.uri,
            "SERVER_PROTOCOL": f"HTTP/1.{request.version[1]}",
        }
