"""Serving a connection: requests from its bytes to the application, and responses back, in order."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import ceil, inf
from random import randint
from time import monotonic
from typing import Any

from gunicorn.http.wsgi import base_environ

from stackmgr.capacity import Capacity
from stackmgr.errors import IncompleteRequest, InvalidRequest, ServiceError
from stackmgr.server import SERVING
from stackmgr.server.connection import ClientConnection, Disconnected, EndOfInput
from stackmgr.server.request import HEAD_LIMIT, BadRequest, HeadLimits, ReceivedRequest
from stackmgr.server.response import ResponseWriter
from stackmgr.server.shares import Shares

RETRY_SPREAD_SECONDS = 4  # clients that are rejected together must not return together


def _configured_hook(cfg: Any, name: str) -> Any:
    """Return a hook if the operator has set one: gunicorn's defaults only write debug messages."""
    setting = cfg.settings[name]
    return None if setting.get() is setting.default else setting.get()


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
        self.shares = Shares(cfg.threads)
        self._queue_seconds: int = ceil(worker.queue_seconds)
        self._pre_request = _configured_hook(cfg, "pre_request")
        self._post_request = _configured_hook(cfg, "post_request")
        # gunicorn's own test is true with any logging configuration: 60 fields would be collected in vain.
        self._logs_access = bool(worker.log.access_log.hasHandlers() or cfg.statsd_host)
        self.reopen()

    def reopen(self) -> None:
        """Use the reopened log files for `wsgi.errors`."""
        self._base_environ = {
            **base_environ(self._worker.cfg),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http",
            "SCRIPT_NAME": "",
        }

    def reject(self, conn: ClientConnection) -> None:
        """Let the application respond 503 to the requests that have arrived, which it does at once."""
        self._reject(conn, partial(self.serve, conn))

    def _reject(self, conn: ClientConnection, step: Callable[[], None]) -> None:
        conn.capacity.retry_after = self._retry_after()
        try:
            step()
        finally:
            conn.capacity.retry_after = 0

    def _retry_after(self) -> int:
        return self._queue_seconds + randint(0, RETRY_SPREAD_SECONDS)  # noqa: S311 - no secret

    def wait_for_room(self, capacity: Capacity, size: int) -> int:
        """Return 0 once a response of *size* bytes has room, or the seconds after which to retry."""
        if self._worker.memory.wait_for_room(capacity, size):
            return 0
        return self._retry_after()

    def serve(self, conn: ClientConnection) -> None:
        """Serve the next request of a connection, as far as it has arrived.

        One request at a time, and some chunks of one, so that the other connections have their turn.

        Raises Disconnected, or OSError, when no response can be sent.
        """
        try:
            conn.flush()
            self._serve_arrived(conn)
        except Disconnected:
            raise
        except EndOfInput:
            if not conn.has_partial_request:
                raise Disconnected from None
            conn.send_error(IncompleteRequest)
        except BadRequest as exc:
            self._worker.log.warning("Rejected a request from %s: %s", conn.peer, exc)
            conn.send_error(InvalidRequest)
        except BaseException as exc:  # the unexpected is a 500, and no reason for the thread to end
            log_failure(self._worker.log, exc)
            if conn.sent:
                raise Disconnected from exc  # a truncated response must look truncated
            conn.send_error(ServiceError)

    def _serve_arrived(self, conn: ClientConnection) -> None:
        if conn.yielded:
            conn.has_input()  # or the client has reset the connection
            conn.yielded = False
        while not conn.outbox.size and not conn.closing:
            request = conn.next_request(self._limits) if conn.inbox or conn.request else None
            if request is not None:
                self._respond_in_turn(conn, request)
                conn.yielded = bool(conn.inbox)
                return
            if conn.is_decoding:
                conn.yielded = True
                return
            if not conn.fill():
                return

    def _respond_in_turn(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        """Respond once this request may run, or 503 if that takes too long."""
        if conn.capacity.retry_after or not conn.capacity.is_limited:
            self._respond(conn, request)
            return
        # The credential alone, however its scheme is spelled.
        key = request.environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
        if not self.shares.enter(key, self._worker.queue_seconds or inf):
            self._worker.rejected += 1
            self._reject(conn, partial(self._respond, conn, request))
            return
        try:
            self._respond(conn, request)
        finally:
            self.shares.leave(key)

    def _respond(self, conn: ClientConnection, request: ReceivedRequest) -> None:
        conn.phase, conn.sent = SERVING, False
        response = ResponseWriter(request, conn, self._worker)
        if not self._keeps_alive:
            response.must_close = True
        environ = self._environ(conn, request)
        try:
            if self._pre_request:
                self._pre_request(self._worker, request)
            self._worker.count_request()
            self._run_application(response, conn, environ)
            conn.closing = response.must_close
        finally:
            conn.capacity.reserved = 0
            if self._post_request:
                self._post_request(self._worker, request, environ, response)

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

    def _run_application(
        self, response: ResponseWriter, conn: ClientConnection, environ: dict[str, Any]
    ) -> None:
        started = monotonic()
        result = self._worker.wsgi(environ, response.start_response)
        try:
            for item in result:
                conn.wait_for_client()
                response.write(item)
                conn.flush()
            response.end()
            conn.flush()
        finally:
            try:
                if self._logs_access:
                    duration = timedelta(seconds=monotonic() - started)
                    self._worker.log.access(response, response.request, environ, duration)
            finally:
                if hasattr(result, "close"):
                    result.close()
