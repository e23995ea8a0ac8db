"""Where a drill takes place: PostgreSQL, the service as in production, clients, and what came of it all."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from stackmgr.access import api_keys
from stackmgr.database.pool import Database
from tests.drills import verifier
from tests.support import history
from tests.support.history import Operation, Violation
from tests.support.postgres import FaultyPostgres
from tests.support.server import RunningService, running_service
from tests.support.tcp_proxy import Proxy
from tests.support.workload import KEY_CANARY, Manager, Workload

if TYPE_CHECKING:
    from tests.support.unkey_server import UnkeyServer

# Seconds that a request may wait for the database, and that a response may take beyond that.
DATABASE_TIMEOUT = 2
GRACE = 0.5
# Seconds in which the service is back when its database is.
RETURN = 2.0
NEVER = float("inf")
# Statuses that clients may receive here: success, what they provoke themselves, and what a fault makes of it.
EXPECTED = {200, 201, 404, 409, 500, 503}

ENVIRONMENT = {
    "STACKMGR_DATABASE_TIMEOUT": str(DATABASE_TIMEOUT),
    "STACKMGR_CONCURRENCY": "8",
    "WEB_CONCURRENCY": "2",
}
_CLIENT_TIMEOUT = 30.0


def new_managers(url: str) -> list[Manager]:
    """Return three managers that the database behind *url* has not known, each with a key."""
    operator = Database(url, role="stackmgr_owner", pool_size=1)
    operator.open()
    try:
        with operator.session() as session:
            ids = [str(uuid4()) for _ in range(3)]
            return [Manager(external_id, api_keys.issue(session, external_id)) for external_id in ids]
    finally:
        operator.close()


class NoPlace(Exception):
    """A drill needs what this machine, or its user's rights, cannot give; the message says what."""


class Stage:
    """A service of its own on a given server, with a network between the two that can fail."""

    def __init__(self, server: FaultyPostgres, proxy: Proxy, seed: int, *, with_unkey: bool) -> None:
        self.server = server
        self.proxy = proxy
        self.chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self.service: RunningService
        self.healed: list[float] = []
        self.deck: list[str] = []
        self.logs: list[str] = []
        self._running = ExitStack()
        self._standby = ExitStack()
        self.login = "postgres"
        self.managers = new_managers(server.url())
        self._environment = dict(ENVIRONMENT)
        self._unkey = ExitStack()
        self.unkey: UnkeyServer | None = None
        if with_unkey:
            self.unkey = self._unkey.enter_context(verifier.unkey_for(self.managers))
            self._environment |= verifier.environment(self.unkey)

    def start_service(self) -> None:
        """Run the service, on a port of its own."""
        host, port = self.server.network_address or ("127.0.0.1", self.proxy.port)
        url = f"postgresql://{self.login}@{host}:{port}/stackmgr?target_session_attrs=read-write"
        self.service = self._running.enter_context(running_service(url, env=self._environment))

    def stop_service(self) -> None:
        """Stop the service as an operator does, if it still runs."""
        self.service.stop()
        self.logs.append(self.service.log_path.read_text())
        self._running.close()

    def replace_server(self, server: FaultyPostgres, undo: ExitStack) -> None:
        """Lead the service to another server; *undo* ends that one when its time has come."""
        self.logs.append(self.server.read_log())
        self.server = server
        self.proxy.target = server.socket_path
        self.proxy.cut()
        self._standby.close()
        self._standby = undo

    def evidence(self) -> "Evidence":
        logs = [*self.logs, *self.server.logs, self.server.read_log()]
        return Evidence(self.server.url(), self.managers, self.healed, logs)

    def close(self) -> None:
        self._running.close()
        self._standby.close()
        self._unkey.close()


@contextmanager
def staged(server: FaultyPostgres, seed: int, *, with_unkey: bool = False) -> Iterator[Stage]:
    """Set the stage on *server*, which is well again afterwards."""
    with Proxy(server.socket_path) as proxy:
        stage = Stage(server, proxy, seed, with_unkey=with_unkey)
        stage.start_service()
        try:
            yield stage
        finally:
            stage.close()
            server.restore()


@dataclass
class Report:
    """What came of a drill.  Times are in seconds."""

    drill: str
    seed: int
    faults: int
    bounded: bool
    control: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    slowest: float = 0.0
    longest_gap: float = 0.0
    longest_return: float = 0.0
    leaks: list[str] = field(default_factory=list)
    unexpected: set[int] = field(default_factory=set)

    def contradictions(self) -> list[str]:
        """Return, in words, what is wrong however slow the machine is.

        A control is a drill on a setting that is known to lose what it acknowledges: it is wrong unless it
        does.
        """
        found = [f"{what} has come into a log" for what in self.leaks]
        if self.unexpected:
            found.append(f"responses that no fault explains: {sorted(self.unexpected)}")
        if self.control:
            if not any(violation.rule == "R3" for violation in self.violations):
                found.append("nothing was lost where it had to be: the drill sees nothing")
            return found
        found += [f"{violation.rule}: {violation.what}" for violation in self.violations]
        if not self.outcomes["acknowledged"]:
            found.append("nothing was acknowledged: a drill without clients proves nothing")
        return found

    def delays(self) -> list[str]:
        """Return, in words, what came too late."""
        found = []
        if self.bounded and self.slowest > DATABASE_TIMEOUT + GRACE:
            found.append(f"a response took {self.slowest:.2f} s")
        if self.longest_return > RETURN:
            found.append(f"after a fault was over it took {self.longest_return:.2f} s to serve again")
        return found


@dataclass(frozen=True)
class Evidence:
    """What a drill leaves: its database, when each fault was over, and every log."""

    url: str
    managers: list[Manager]
    healed: list[float]
    logs: list[str]


def judged(report: Report, evidence: Evidence, workload: Workload) -> Report:
    """Complete *report* with what the recording and the database say, once all is still."""
    operations = workload.operations
    ours = {manager.external_id for manager in evidence.managers}
    with psycopg.connect(evidence.url) as connection:
        report.violations = history.check(operations, history.dump(connection, ours))
    report.outcomes = Counter(map(_outcome, operations))
    responses = [operation for operation in operations if operation.status is not None]
    report.slowest = max((operation.completed - operation.sent for operation in responses), default=0.0)
    served = sorted(operation.completed for operation in operations if operation.acknowledged)
    report.longest_gap = max((b - a for a, b in itertools.pairwise(served)), default=0.0)
    first_after = (next((later for later in served if later > healed), NEVER) for healed in evidence.healed)
    returns = [first - healed for first, healed in zip(first_after, evidence.healed, strict=True)]
    report.longest_return = max(returns, default=0.0)
    report.leaks = secrets_in(evidence.logs, evidence.managers)
    report.unexpected = {
        operation.status for operation in responses if operation.status is not None
    } - EXPECTED
    return report


def secrets_in(logs: list[str], managers: list[Manager]) -> list[str]:
    """Return, in words, which secrets of the clients stand in *logs*."""
    keys = [manager.api_key for manager in managers]
    secrets = {
        "an API key": keys,
        "the digest of an API key": [api_keys.digest(key).hex() for key in keys],
        "an Authorization": ["Bearer "],
        "an Idempotency-Key": [KEY_CANARY],
    }
    return [what for what, texts in secrets.items() if any(text in log for text in texts for log in logs)]


def _outcome(operation: Operation) -> str:
    if operation.acknowledged:
        return "acknowledged"
    if not operation.reached:
        return "not taken"
    return "rejected" if operation.rejected else "unknown"


HEADINGS = (
    *("drill", "seed", "faults"),
    *("acknowledged", "rejected", "unknown", "not connected"),
    *("lost", "duplicated", "other violations"),
    *("slowest response", "longest gap", "recovery"),
)


def row(report: Report) -> tuple[str, ...]:
    """Return the report as one row under HEADINGS."""
    rules = Counter(violation.rule for violation in report.violations)
    lost, doubled = rules["R3"], rules["R2"] + rules["R6"]
    return (
        report.drill,
        str(report.seed),
        str(report.faults),
        *(str(report.outcomes[name]) for name in ("acknowledged", "rejected", "unknown", "not taken")),
        str(lost),
        str(doubled),
        str(rules.total() - lost - doubled),
        f"{report.slowest:.2f} s",
        f"{report.longest_gap:.2f} s",
        f"{report.longest_return:.2f} s",
    )
