"""The WSGI application behind the simulated worker: what a request's path says, it does."""

from collections.abc import Callable, Iterable
from typing import Any

from greenlet import getcurrent

from stackmgr.admission import ADMISSION
from stackmgr.errors import RateLimited, ServiceError, Unauthorized
from stackmgr.scheduler import Signal, call_in_thread, end_turn
from tests.simulation.clients import Client, Request, Response
from tests.simulation.world import World

BODY_LIMIT_BYTES = 600
OPERATOR_PORT = 8001
_OVERLOAD = {"full queue", "waited too long"}
_OPERATOR_SECONDS = 0.25  # until a response to an operator, whatever managers do

Verify = Callable[[str], object]


class DeliberateError(Exception):
    """What `/raise` raises."""


def content_of(name: str, size: int) -> bytes:
    """Return *size* bytes that belong to the request of this name."""
    text = f"{name},".encode("ascii")
    return (text * (size // len(text) + 1))[:size]


def manager_of(environ: dict[str, Any]) -> str:
    """Return whose the key of a request is: two keys are of one manager."""
    return f"manager{int(environ['HTTP_AUTHORIZATION'][-1]) // 2}"


class Application:
    """Requests are `/KIND/NUMBER`; a response names its request in `X-Request-Id` and in its body."""

    def __init__(self, world: World, threads: int, verify: Verify) -> None:
        self._world = world
        self._threads = threads
        self._shares = threads - threads // 4, max(1, threads // 4)  # of a manager, of unverified keys
        self._verify = verify
        self.turns = 0  # of the worker
        self.hangs = 0.0  # since when the thread is blocked
        self._running: list[Any] = []  # the places of those that the queue has admitted
        self._kinds = {
            "fast": self._fast, "sleep": self._sleep, "page": self._page, "raise": self._raise,
            "thread": self._thread, "spin": self._spin, "echo": self._echo, "verify": self._verified,
            "hang": self._hang,
        }  # fmt: skip

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        getcurrent().request = name = environ["HTTP_X_REQUEST_ID"]  # type: ignore[attr-defined]
        _, kind, number = environ["PATH_INFO"].split("/")
        self._world.note("starts", name)
        place = environ[ADMISSION]
        if place.retry_after:
            return _respond(start_response, "503 Service Unavailable", name, b"", place.retry_after)
        if environ["SERVER_PORT"] == str(OPERATOR_PORT):
            return list(self._kinds[kind](environ, start_response, name, int(number)))
        self._running.append(place)
        same = sum(each.group == place.group for each in self._running)
        if len(self._running) > self._threads or same > self._shares[not place.group]:
            self._world.fail(
                "nobody has more than his share", f"{same} of {len(self._running)}: {place.group}"
            )
        if kind != "verify":
            place.accept(manager_of(environ))
        try:
            return list(self._kinds[kind](environ, start_response, name, int(number)))
        finally:
            self._running.remove(place)

    def _fast(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        return _respond(start_response, "200 OK", name, content_of(name, number))

    def _sleep(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        Signal().wait(number / 1000)
        return self._fast(environ, start_response, name, 10)

    def _thread(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        def work() -> None:
            if self._world.current.name != "main":  # type: ignore[union-attr]  # there are no more threads
                self._world.sleep(number / 1000)

        call_in_thread(work)
        return self._fast(environ, start_response, name, 10)

    def _spin(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        turn = 0
        for _ in range(3):
            self._world.now += number / 1000
            end_turn()
            turn, before = self.turns, turn
            if turn == before:
                self._world.fail("whoever ends its turn lets what is ready run", name)
        return self._fast(environ, start_response, name, 10)

    def _hang(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        self.hangs = self._world.now
        self._world.sleep(number)  # blocks the thread
        self.hangs = 0.0
        return self._fast(environ, start_response, name, 10)

    def _page(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        Signal().wait(0.01)
        content = content_of(name, number)
        _respond(start_response, "200 OK", name, content)
        return [content[at : at + 400] for at in range(0, number, 400)]

    def _raise(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        raise DeliberateError

    def _echo(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        try:
            body = environ["wsgi.input"].read(BODY_LIMIT_BYTES + 1)
        except OSError:
            body = b"x" * (BODY_LIMIT_BYTES + 1)
        if len(body) > BODY_LIMIT_BYTES:
            return _respond(start_response, "413 Content Too Large", name, b"")
        if body != content_of(name, number):
            self._world.fail("no request has another's body", name)
        return self._fast(environ, start_response, name, 10)

    def _verified(self, environ: Any, start_response: Any, name: str, number: int) -> Iterable[bytes]:
        key = environ["HTTP_AUTHORIZATION"].rpartition(" ")[2]
        try:
            self._verify(key)
        except ServiceError as ex:
            status = {Unauthorized: "401 No", RateLimited: "429 No"}.get(type(ex), "503 No")
            return _respond(start_response, status, name, b"", 1)
        environ[ADMISSION].accept(manager_of(environ))
        return self._fast(environ, start_response, name, 10)


def _respond(
    start_response: Any, status: str, name: str, content: bytes, retry_after: int = 0
) -> list[bytes]:
    fields = [("X-Request-Id", name), ("Content-Length", str(len(content)))]
    if retry_after:
        fields.append(("Retry-After", str(retry_after)))
    start_response(status, fields)
    return [content]


_STATUSES = {
    "raise": {500}, "verify": {200, 401, 429}, "echo": {200, 413},
}  # fmt: skip


def judge(client: Client, request: Request, response: Response) -> None:
    """Fail the run if this is not the response of that request, or an error that no fault has caused."""
    world, status = client.world, response.status
    if response.fields.get("connection") == "close" and "server" not in response.fields:
        _judge_own(client, request, status)
        return
    if response.fields.get("x-request-id") != request.name:
        world.fail("each request has one response, in order", f"{request.name}: {response.fields}")
    if client.is_hurried:
        seconds = world.now - request.sent_at - (world.stalled - request.stalled_before)
        if seconds > _OPERATOR_SECONDS:
            world.fail("an operator waits for no manager", f"{request.name}: {seconds:.3f} s")
    if status == 503:
        _judge_unavailable(client, request, response)
    else:
        _judge_content(client, request, response)


def _judge_unavailable(client: Client, request: Request, response: Response) -> None:
    faults = _OVERLOAD | {"verifier"} if request.path.startswith("/verify") else _OVERLOAD
    if client.is_operator or not faults.intersection(client.world.touched[request.name]):
        client.world.fail("an error names a fault of its request", f"{request.name}: 503")
    if "retry-after" not in response.fields:
        client.world.fail("a rejected request is told when to retry", request.name)


def _judge_content(client: Client, request: Request, response: Response) -> None:
    world, status = client.world, response.status
    kind, number = request.path.split("/")[1:]
    if status not in _STATUSES.get(kind, {200}):
        world.fail("each request has the response of its kind", f"{request.name} {request.path}: {status}")
    if kind == "verify" and (status == 401 and not request.key.endswith("0")):
        world.fail("a key that exists is accepted", request.name)
    has_body = status == 200 and kind in ("fast", "page") and not request.is_head
    if has_body and response.body != content_of(request.name, int(number)):
        world.fail("no response has bytes of another", request.name)
    if kind == "echo" and (status == 413) != (len(request.body) > BODY_LIMIT_BYTES):
        world.fail("each request has the response of its kind", f"{request.name}: {status}")


def _judge_own(client: Client, request: Request, status: int) -> None:
    """Fail the run unless there is a reason for an error of the server's own."""
    is_partial = client.has_timed_out or client.manners.leaves == "half"
    is_due = {
        400: not request.is_valid or is_partial,
        500: request.path.startswith("/raise") or client.is_broken,
    }  # fmt: skip
    if not is_due.get(status):
        client.world.fail(
            "an error names a fault of its request", f"{request.name}: {status} of the server's"
        )
