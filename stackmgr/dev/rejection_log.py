"""The reasons of each rejected body, on its line of the request log, for the log format `dev`.

Only `stackmgr dev` sets that format: the reasons quote the body, which no production log may hold.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from stackmgr.dev.explanations import CREATE, UPDATE, explain
from stackmgr.http.health import WsgiApplication
from stackmgr.stacks import whitelist

LogRequest = Callable[[Mapping[str, Any]], None]

_SCHEMAS = {"POST": CREATE, "PATCH": UPDATE}


class _Recorded:
    """A request body that keeps what is read of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.body = b""

    def read(self, *size: int) -> bytes:
        """Read from the stream."""
        data: bytes = self._stream.read(*size)
        self.body += data
        return data


class RejectionLog:
    """Adds `reasons` to the fields of a request whose body was rejected.  *tokens* is the whitelist file."""

    def __init__(self, tokens: Path) -> None:
        self._listed = whitelist.load(tokens)
        self._body: ContextVar[_Recorded] = ContextVar("body")  # of the request that runs

    def recording(self, app: WsgiApplication) -> WsgiApplication:
        """Return *app* with its request bodies kept, each as long as its request."""

        def recorded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            environ["wsgi.input"] = recorded_body = _Recorded(environ["wsgi.input"])
            self._body.set(recorded_body)
            return app(environ, start_response)

        return recorded

    def explaining(self, log: LogRequest) -> LogRequest:
        """Return *log*, with the reasons added."""

        def explained(fields: Mapping[str, Any]) -> None:
            body, schema = self._body.get().body, _SCHEMAS.get(fields["method"])
            if fields["status"] in (400, 413) and body and schema is not None:
                found = explain(body, schema, self._listed).reasons
                reasons = "; ".join(f"{reason.place}: {reason.message}" for reason in found)
                fields = {**fields, "reasons": reasons} if reasons else fields
            log(fields)

        return explained
