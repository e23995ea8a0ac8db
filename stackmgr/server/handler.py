"""From the bytes of a connection to the application and back, one request after the other."""

from datetime import timedelta
from time import monotonic
from typing import Any

from gunicorn.http.wsgi import base_environ

from stackmgr.server.connection import HEAD_LIMIT, ClientConnection, Disconnected, EndOfInput
from stackmgr.server.request import BadRequest, Limits, Request
from stackmgr.server.response import Response

MAX_PIPELINED = 16  # pipelined requests served before the other connections have their turn


def _own_hook(cfg: Any, name: str) -> Any:
    """Return a hook if the operator has set one: gunicorn's defaults only log what nobody reads."""
    setting = cfg.settings[name]
    return None if setting.get() is setting.default else setting.get()


class RequestHandler:
    """Calls the application of a worker. What the settings say is asked once: `cfg.name` is a long walk."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        cfg = worker.cfg
        self._limits = Limits(
            min(cfg.limit_request_line or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_fields or HEAD_LIMIT, HEAD_LIMIT),
            min(cfg.limit_request_field_size or HEAD_LIMIT, HEAD_LIMIT),
        )
        self._keeps_alive = bool(cfg.keepalive)
        self._pre_request = _own_hook(cfg, "pre_request")
        self._post_request = _own_hook(cfg, "post_request")
        # gunicorn says yes as soon as logging is configured at all, and would gather 60 fields for nobody.
        self._logs_access = bool(worker.log.access_log.hasHandlers() or cfg.statsd_host)
        self.reopen()

    def reopen(self) -> None:
        """Take note of new log files: `wsgi.errors` writes to them."""
        self._base_environ = {
            **base_environ(self._worker.cfg),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http",
            "SCRIPT_NAME": "",
        }

    def progress(self, conn: ClientConnection) -> None:
        """Serve the requests that have arrived on a connection, for as long as nothing has to be waited for.

        Raises Disconnected, or OSError, when there is nobody left to answer.
        """
        served = 0
        try:
            conn.flush()
            while not conn.outbox and not conn.closing and served < MAX_PIPELINED:
                request = conn.next_request(self._limits) if conn.inbox or conn.request else None
                if request is not None:
                    self._answer(conn, request)
                    served += 1
                elif served or not conn.fill():
                    break
            conn.turn_over = served == MAX_PIPELINED
        except Disconnected:
            raise
        except EndOfInput:
            if not conn.inbox and not conn.request:
                raise Disconnected from None
            conn.refuse("400 Bad Request", "invalid_request", "The request ended early.")
        except BadRequest as exc:
            self._worker.log.warning("Refused a request from %s: %s", conn.peer, exc)
            conn.refuse("400 Bad Request", "invalid_request", "The request is not valid HTTP.")
        except (Exception, SystemExit) as exc:  # noqa: BLE001  # the unexpected is a 500, the loop goes on
            self._failed(conn, exc)

    def _failed(self, conn: ClientConnection, exc: BaseException) -> None:
        """Answer 500 if the answer has not begun; log the type and the place, not the text."""
        trace = exc.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        self._worker.log.error("Error handling a request: %s at %s", type(exc).__name__, place)
        if conn.sent:
            raise Disconnected from exc  # a cut-off answer must look cut off
        conn.refuse("500 Internal Server Error", "internal_error", "The server failed.")

    def _answer(self, conn: ClientConnection, request: Request) -> None:
        conn.phase, conn.sent = "", False
        response = Response(request, conn.put)
        environ = self._environ(conn, request)
        try:
            if self._pre_request:
                self._pre_request(self._worker, request)
            self._worker.count_request()
            self._call(conn, response, environ)
            conn.closing = response.must_close
        finally:
            if self._post_request:
                self._post_request(self._worker, request, environ, response)

    def _environ(self, conn: ClientConnection, request: Request) -> dict[str, Any]:
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

    def _call(self, conn: ClientConnection, response: Response, environ: dict[str, Any]) -> None:
        started = monotonic()
        result = self._worker.wsgi(environ, response.start_response)
        try:
            if not self._worker.alive or not self._keeps_alive:
                response.must_close = True
            for item in result:
                conn.make_room()
                response.write(item)
                conn.flush()
            response.end()
            conn.flush()
        finally:
            if self._logs_access:
                self._worker.log.access(
                    response, response.request, environ, timedelta(seconds=monotonic() - started)
                )
            if hasattr(result, "close"):
                result.close()
