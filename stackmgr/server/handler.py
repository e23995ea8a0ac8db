"""Requests to the application, and responses back; what fails becomes an Error object of the server's own."""

from time import monotonic
from typing import Any

from gunicorn.http.wsgi import base_environ

from stackmgr.errors import IncompleteRequest, InvalidRequest, RequestTimedOut, ServiceError
from stackmgr.server import DRAINING, READING, WRITING
from stackmgr.server.connection import ClientConnection, Disconnected, EndOfInput
from stackmgr.server.request import HEAD_LIMIT, BadRequest, HeadLimits, ReceivedRequest, request_id_of
from stackmgr.server.response import Response


def log_failure(log: Any, exc: BaseException) -> None:
    """Log the type and the place of an unexpected exception, not its text, which may quote a request."""
    trace = exc.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
    log.error("Error handling a request: %s at %s", type(exc).__name__, place)


class RequestHandler:
    """Runs a worker's application. It reads gunicorn's settings once: each `cfg.name` is slow."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        cfg = worker.cfg
        self._limits = HeadLimits(
            min(cfg.limit_request_line or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_fields or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_field_size or HEAD_LIMIT, HEAD_LIMIT),
        )
        self._keeps_alive = bool(cfg.keepalive)
        self.reopen()

    def reopen(self) -> None:
        """Use the reopened log files for `wsgi.errors`."""
        self._base_environ = {
            **base_environ(self._worker.cfg),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http",
            "SCRIPT_NAME": "",
        }

    def proceed(self, conn: ClientConnection) -> ReceivedRequest | None:
        """Do what a connection is ready for; return the next request once it is complete.

        Raises BadRequest, EndOfInput, or Disconnected if the connection must be closed.
        """
        if conn.is_gone:
            raise Disconnected
        if conn.phase is WRITING:
            conn.flush()
        elif conn.phase is DRAINING:
            conn.drain()
        else:
            return conn.receive(self._limits)
        return None

    def expire(self, conn: ClientConnection) -> None:
        """End a connection whose deadline has passed, unless bytes have arrived or been read by the client.

        Raises Disconnected.
        """
        if conn.phase is WRITING and conn.note_progress():
            conn.deadline = monotonic() + WRITING.seconds
        elif conn.phase in (WRITING, DRAINING):
            raise Disconnected
        elif not conn.is_ready and not conn.has_input():
            if conn.phase is not READING:
                raise Disconnected
            self._reject(conn, RequestTimedOut, "it did not arrive in time")

    def fail(self, conn: ClientConnection, exc: BaseException) -> None:
        """Respond to what has gone wrong.  Raises Disconnected, or OSError, when no response can be sent."""
        if isinstance(exc, EndOfInput):
            if not conn.has_partial_request:
                raise Disconnected
            self._reject(conn, IncompleteRequest, "it ended early")
        elif isinstance(exc, BadRequest):
            self._reject(conn, InvalidRequest, exc)
        else:
            log_failure(self._worker.log, exc)
            if conn.sent:
                raise Disconnected  # a truncated response must look truncated
            self._reject(conn, ServiceError, "the service failed")

    def _reject(self, conn: ClientConnection, kind: type[ServiceError], why: object) -> None:
        """Respond with an error of the server's own, and log why with the id of the request."""
        request_id = request_id_of(conn.received_head())
        fields = {"request_id": request_id, "status": kind.status, "code": kind.code}
        self._worker.log.warning("Rejected a request from %s: %s", conn.peer, why, extra={"fields": fields})
        conn.send_error(kind, request_id)

    def respond(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Run the application and send what it returns.  Raises what the latter does."""
        conn.sent = False
        if conn.is_gone:
            raise Disconnected
        self._worker.count_request()
        response = Response(request)
        try:
            self._run_application(response, self._environ(conn, request))
        finally:
            if response.status.startswith("401"):
                self._worker.queue.reject(conn.place)
        # A worker that stops says so; later, the client has read that the connection stays open.
        must_close = request.must_close or not (self._keeps_alive and self._worker.alive)
        data, conn.closing = response.encode(must_close=must_close)
        conn.queue(data)
        conn.flush()

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

    def _run_application(self, response: Response, environ: dict[str, Any]) -> None:
        result = self._worker.wsgi(environ, response.start_response)
        try:
            response.pieces.extend(result)
        finally:
            if hasattr(result, "close"):
                result.close()
