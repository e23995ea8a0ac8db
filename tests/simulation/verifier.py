"""A simulated remote verifier, and the real code that calls it: circuit breaker, connections, names."""

import json
import socket
from math import inf
from types import ModuleType
from typing import Any, ClassVar
from uuid import UUID, uuid5

from stackmgr.access.verifiers import circuit_breaker, http_connection, remote
from stackmgr.access.verifiers.circuit_breaker import FAILURES_TO_OPEN, PROBE_INTERVAL, CircuitBreaker, Permit
from stackmgr.access.verifiers.unkey import UnkeyVerifier
from stackmgr.errors import CircuitOpen, VerificationError
from stackmgr.reasons import ReasonSlug
from stackmgr.settings import Secret
from tests.simulation.clients import Agent, Steps
from tests.simulation.names import Names, Time
from tests.simulation.sockets import LocalSocket, Network, RemoteEnd
from tests.simulation.threads import Threading
from tests.simulation.world import World, asker

PORT = 9000
TIMEOUT = 0.8
_NAMESPACE = UUID(int=1)
_NO_SESSION: Any = None  # Unkey needs none
_SLACK = 0.05  # seconds beyond a time-out


# The faults by which a call may fail for a reason.
_LATE = {"slow", "hangs", "drips", "a dropped connect", "slow resolver", "stall"}
_FAULTS: dict[str, set[str]] = {
    ReasonSlug.VERIFIER_TIMEOUT: _LATE,
    ReasonSlug.VERIFIER_DNS: {"unknown host", "no more threads"},
    ReasonSlug.VERIFIER_CONNECT: {"refused", "no descriptor"},
    ReasonSlug.VERIFIER_RESPONSE_BROKEN: {"reset", "closed"},
    ReasonSlug.VERIFIER_RESPONSE_NOT_JSON: {"malformed"},
    "verifier_http_500": {"500"}, "verifier_http_429": {"429"}, "verifier_http_408": {"408"},
}  # fmt: skip


class OutgoingSocket(LocalSocket):
    """What `socket.socket` is for the verifier's connections."""

    network_of_run: Network
    look_ups: ClassVar[list[tuple[float, float, str]]] = []  # that a fault has touched: from, to, which

    def may_raise(self) -> None:
        """Raise nothing unforeseen."""

    def __init__(self, *_: Any) -> None:
        super().__init__(self.network_of_run)


class _SocketModule(ModuleType):
    """The module `socket` for them."""

    socket = OutgoingSocket

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    @staticmethod
    def getaddrinfo(_: str, port: int, **__: Any) -> list[http_connection.Address]:
        world, started = OutgoingSocket.network_of_run.world, OutgoingSocket.network_of_run.world.now
        if world.chance("slow resolver"):
            seconds = world.between(0.1, 2.0)
            OutgoingSocket.look_ups.append((started, started + seconds, "slow resolver"))
            world.sleep(seconds)
        if world.chance("unknown host"):
            OutgoingSocket.look_ups.append((started, world.now, "unknown host"))
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


def names(world: World, network: Network) -> Names:
    """Return the simulated names of the verifier's modules."""
    OutgoingSocket.network_of_run, OutgoingSocket.look_ups = network, []
    simulated = {
        "time": Time(world),
        "monotonic": world.monotonic,
        "threading": Threading(world),
        "socket": _SocketModule("socket"),
    }
    modules = (remote, circuit_breaker, http_connection)
    found: dict[tuple[Any, str], Any] = {
        (module, name): value
        for module in modules
        for name, value in simulated.items()
        if hasattr(module, name)
    }
    return found | {(remote, "CircuitBreaker"): _WatchedBreaker}


class RemoteVerifier:
    """Responds to each request in one of the ways of the plan."""

    def __init__(self, network: Network, modes: list[str]) -> None:
        self._world = network.world
        self.modes = modes
        network.services[PORT] = self._accept

    def _accept(self, end: RemoteEnd) -> bool:
        if self._world.random.choice(self.modes) == "refused":
            return False
        agent = Agent(self._world, self._serve(end))
        end.noticed = agent.wake
        return True

    def _serve(self, end: RemoteEnd) -> Steps:
        received, is_kept = b"", False
        while True:
            while not end.has_input:
                yield None
            data = end.read()
            if not data:
                end.close()
                return
            received += data
            head, _, body = received.partition(b"\r\n\r\n")
            at = head.lower().find(b"content-length: ")
            if at < 0 or len(body) < int(head[at + 16 :].split(b"\r\n")[0]):
                continue
            received = b""
            mode = self._world.random.choice(self.modes)
            self._world.note("verifier", mode)
            if end.local is not None and not (
                is_kept and mode in ("reset", "closed")
            ):  # then it is called again
                self._world.touched[end.local.user].append(mode)
            is_kept = True
            yield from self._respond(end, mode, json.loads(body)["key"])
            if mode in ("reset", "closed"):
                return

    def _respond(self, end: RemoteEnd, mode: str, key: str) -> Steps:
        world = self._world
        yield world.between(0.0, 0.01)
        if mode == "slow":
            yield world.between(0.1, 1.5)
        elif mode == "reset":
            end.reset()
            return
        elif mode == "closed":
            end.close()
            return
        while mode == "hangs":
            if end.has_input:
                return
            yield None
        status = {"500": "500 No", "429": "429 No", "408": "408 No"}.get(mode, "200 OK")
        content = b"{" if mode == "malformed" else json.dumps(_verification(key)).encode()
        left = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        while left and not end.is_reset:
            count = end.send(left[:40] if mode == "drips" else left)
            left = left[count:]
            yield 0.2 if mode == "drips" else None if left and not count else 0.0


def _verification(key: str) -> Any:
    if key.endswith("0"):
        return {"data": {"valid": False, "code": "NOT_FOUND"}}
    identity = {"id": f"identity of {key}", "externalId": str(uuid5(_NAMESPACE, key))}
    return {"data": {"valid": True, "code": "VALID", "identity": identity, "keyId": key}}


class _WatchedBreaker(CircuitBreaker):
    """A circuit breaker whose permits are watched."""

    world: World

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.failed_in_a_row = 0
        self._quiet_since = -inf  # no probe since then

    def acquire(self) -> Permit:
        was_open, now = self.is_open, self.world.now
        try:
            permit = super().acquire()
        except CircuitOpen:
            if now - self._quiet_since > PROBE_INTERVAL + _SLACK:
                self.world.fail(
                    "a call at intervals probes an open circuit", f"{now - self._quiet_since:.3f} s"
                )
            raise
        if was_open:
            self._quiet_since = now
        return permit

    def release(self, permit: Permit, *, responded: bool) -> None:
        was_open = self.is_open
        super().release(permit, responded=responded)
        self.failed_in_a_row = (
            0 if responded else self.failed_in_a_row + (permit.started_at >= self._responded_at)
        )
        if self.is_open and not was_open:
            self._quiet_since = self.world.now
            if self.failed_in_a_row + len(self._calls) < FAILURES_TO_OPEN:
                self.world.fail("only failures open the circuit", f"{self.failed_in_a_row} did")
        if self.is_open and responded:
            self.world.fail("a response closes the circuit", "it is open")
        if self.failed_in_a_row >= FAILURES_TO_OPEN and not self.is_open:
            self.world.fail("a few failures open the circuit", f"{self.failed_in_a_row} do not")


class WatchedVerifier:
    """The verifier of a worker; checks each outcome, and that nothing is left."""

    def __init__(self, network: Network) -> None:
        self._world = network.world
        self._network = network
        _WatchedBreaker.world = self._world
        self._endpoint = remote.Endpoint(f"http://verifier.example:{PORT}", timeout=TIMEOUT)
        self._verifier = UnkeyVerifier(self._endpoint, Secret("root"))

    def verify(self, key: str) -> None:
        """Verify a key.  Raises ServiceError."""
        world = self._world
        started, stalled = world.now, world.stalled
        try:
            identity = self._verifier.verify(key, _NO_SESSION)
            if identity.external_id != str(uuid5(_NAMESPACE, key)) or key.endswith("0"):
                world.fail("no key has another's identity", f"{key}: {identity}")
        except CircuitOpen:
            if world.now - started > _SLACK + world.stalled - stalled:
                world.fail("an open circuit fails at once", f"{world.now - started:.3f} s")
            world.touched[asker()].append("verifier")
            raise
        except VerificationError as ex:
            world.note("rejected", key, ex.reason)
            self._judge(ex, started, stalled)
            world.touched[asker()].append("verifier")
            raise
        finally:
            seconds = world.now - started - (world.stalled - stalled)
            if seconds > TIMEOUT + _SLACK:
                world.fail("a call ends within its time-out", f"{seconds:.3f} s")

    def _judge(self, error: VerificationError, started: float, stalled: float) -> None:
        """Fail the run unless a fault has touched this call."""
        world = self._world
        touched = {fault for since, until, fault in OutgoingSocket.look_ups if until >= started}
        touched.update(world.touched[asker()])
        if world.stalled > stalled:
            touched.add("stall")
        if not touched & _FAULTS.get(error.reason, set()):
            world.fail("an error names a fault of its request", f"{asker()}: {error.reason} {touched}")

    def check_end(self) -> None:
        """Check that no permit and no descriptor is left."""
        breaker = self._endpoint._breaker
        if breaker._calls:
            self._world.fail("each permit is released", f"{len(breaker._calls)} are not")
        sockets = [file for file in self._network.kernel.files.values() if isinstance(file, OutgoingSocket)]
        kept = [each._socket for each in self._endpoint._idle]
        if lost := [each.number for each in sockets if each not in kept]:
            self._world.fail("no descriptor is left", f"of calls of the verifier: {lost}")
