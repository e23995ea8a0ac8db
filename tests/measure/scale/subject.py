"""One loaded database under measurement: calls of the service's statements, and what they cost."""

import hashlib
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.statements import Statement
from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.stacks import cursor
from tests.measure.scale import load

_LIMIT = 25
_SAMPLES = 500
_DEADLINE = 60.0

_SAMPLE = b"""
SELECT manager_id::text, stack_id::text, stacks.created_at, external_id::text, identity_id
FROM stackmgr.stacks TABLESAMPLE SYSTEM (%(percent)s)
JOIN stackmgr.managers USING (manager_id)
LIMIT %(limit)s
"""
_COUNTS = b"""
SELECT
    (SELECT coalesce(sum(coalesce(hits, 0) + coalesce(reads, 0)), 0) FROM pg_stat_get_backend_io(%(pid)s)
     WHERE object = 'relation'),
    (SELECT coalesce(sum(reads), 0) FROM pg_stat_get_backend_io(%(pid)s) WHERE object = 'relation'),
    (SELECT wal_bytes FROM pg_stat_get_backend_wal(%(pid)s))
"""
_FLUSH = Statement("flush", b"SELECT pg_stat_force_next_flush()", (), writes=False)
_NOTHING = Statement("nothing", b"SELECT 1", (), writes=False)

_GET, _LIST, _UPDATE, _CREATE, _RECEIPT, _VERIFY = (
    statements.load(name)
    for name in ("stack_get", "stack_list", "stack_update", "stack_create", "receipt_find", "api_key_verify")
)

Call = tuple[Statement, dict[str, Any]]


@dataclass
class Costs:
    """What the executions of one statement have cost: seconds each, and the sums of the rest."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    buffers: int = 0
    reads: int = 0
    wal_bytes: int = 0

    def milliseconds(self, percent: int) -> float:
        return statistics.quantiles(self.seconds, n=100)[percent - 1] * 1000

    def per_call(self, total: float) -> float:
        return total / len(self.seconds)


class LoadedDatabase:
    """One database under measurement."""

    def __init__(self, url: str, stacks: int) -> None:
        self._admin = psycopg.connect(url, autocommit=True)
        self._connection = DatabaseConnection.connect(
            completed_conninfo(url, "stackmgr_app", _DEADLINE), autocommit=True
        )
        self._pid = self._connection.info.backend_pid
        percent = min(100.0, 100 * 4 * _SAMPLES / stacks)
        self._rows: list[Any] = self._admin.execute(
            _SAMPLE, {"percent": percent, "limit": 4 * _SAMPLES}
        ).fetchall()
        random.Random(1).shuffle(self._rows)  # noqa: S311 - to be repeatable
        self._rows = self._rows[:_SAMPLES]
        self._texts = [text.split("\t") for text in load.configurations(1)]
        self.costs: dict[str, Costs] = defaultdict(Costs)

    def close(self) -> None:
        self._connection.close()
        self._admin.close()

    def execute(self, statement: bytes) -> list[Any]:
        cursor = self._admin.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def calls(self, name: str, chance: random.Random, count: int) -> list[Call]:
        """Return *count* calls of an operation for stacks at random."""
        return [
            getattr(self, f"_{name.replace(' ', '_')}")(row, chance)
            for row in chance.choices(self._rows, k=count)
        ]

    def run(self, statement: Statement, parameters: dict[str, Any]) -> list[Any]:
        return self._connection.run(statement, parameters, time.monotonic() + _DEADLINE)

    def plan_buffers(self, calls: list[Call]) -> list[int]:
        """Return the buffers that the plan of each call touches, without its triggers'.  Writes stay."""
        return [self._explained(*call) for call in calls]

    def _explained(self, statement: Statement, parameters: dict[str, Any]) -> int:
        name = sql.Identifier(f"plan_{statement.name}")
        self._connection.pgconn.prepare(name.as_string()[1:-1].encode(), statement.text)
        values = (parameters[parameter] for parameter in statement.parameters)
        arguments = sql.SQL(", ").join(sql.Literal(value) for value in values)
        command = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {}({})").format(name, arguments)
        row: Any = self._connection.execute(command).fetchone()
        return buffers_of(row[0][0]["Plan"])

    def warm(self, name: str) -> None:
        """Run an operation once for each of the stacks, so that what it reads is in memory."""
        for row in self._rows:
            self.run(*getattr(self, f"_{name.replace(' ', '_')}")(row, random.Random(1)))  # noqa: S311

    def measure(self, name: str, calls: list[Call]) -> None:
        costs = self.costs[name]
        before, cpu = self._counts(), _cpu_seconds(self._pid)
        for statement, parameters in calls:
            began = time.perf_counter()
            self.run(statement, parameters)
            costs.seconds.append(time.perf_counter() - began)
        costs.cpu_seconds += _cpu_seconds(self._pid) - cpu
        after = self._counts()
        costs.buffers += after[0] - before[0]
        costs.reads += after[1] - before[1]
        costs.wal_bytes += after[2] - before[2]

    def _counts(self) -> tuple[int, int, int]:
        self.run(_FLUSH, {})
        self.run(_NOTHING, {})
        row: Any = self._admin.execute(_COUNTS, {"pid": self._pid}).fetchone()
        return int(row[0]), int(row[1]), int(row[2] or 0)

    def _get(self, row: Any, _: random.Random) -> Call:
        return _GET, {**self._caller(row), "stack_id": row[1]}

    def _first_page(self, row: Any, _: random.Random) -> Call:
        return self._page(row, cursor.START.created_at, str(cursor.START.stack_id))

    def _middle_page(self, row: Any, _: random.Random) -> Call:
        return self._page(row, row[2], row[1])

    def _page(self, row: Any, created_at: Any, stack_id: str) -> Call:
        after = {"after_created_at": created_at, "after_stack_id": stack_id}
        bounds = {"row_limit": _LIMIT + 1, "page_bytes": PAGE_NAME_BYTES}
        return _LIST, {**self._caller(row), **after, **bounds}

    def _receipt(self, row: Any, _: random.Random) -> Call:
        key = f"key-{row[1].replace('-', '')}"
        return _RECEIPT, {"manager_id": row[0], "idempotency_key": key}

    def _verify(self, row: Any, _: random.Random) -> Call:
        return _VERIFY, self._caller(row)

    def _update(self, row: Any, chance: random.Random) -> Call:
        name, allocation, preset = chance.choice(self._texts)
        given = chance.choice(({"name": name}, {"preset": preset}, {"allocation": allocation}))
        parameters = {"name": None, "allocation": None, "preset": None, **given}
        return _UPDATE, {"stack_id": row[1], **self._actor(row), **parameters, "revision_id": str(uuid4())}

    def _create(self, row: Any, chance: random.Random) -> Call:
        name, allocation, preset = chance.choice(self._texts)
        return _CREATE, {
            **self._actor(row),
            "idempotency_key": f"key-{uuid4().hex}",
            "input_digest": bytes(32),
            "stack_id": str(uuid4()),
            "revision_id": str(uuid4()),
            "name": name,
            "allocation": allocation,
            "preset": preset,
        }

    def _actor(self, row: Any) -> dict[str, Any]:
        return {**self._caller(row), "request_id": uuid4().hex, "key_id": row[0]}

    def _caller(self, row: Any) -> dict[str, Any]:
        return {
            "manager_id": row[0],
            "external_id": row[3],
            "identity_id": row[4],
            "key_digest": hashlib.sha256(row[0].encode()).digest(),
        }


def buffers_of(plan: dict[str, Any]) -> int:
    """Return the buffers of an explained plan.

    A CTE that nothing reads, as the insertion of a revision, runs after the plan and is not in its total.
    """
    nodes = list(_nodes(plan))
    read = {f"CTE {node['CTE Name']}" for node in nodes if "CTE Name" in node}
    apart = [
        node
        for node in nodes
        if node.get("Subplan Name", "").startswith("CTE ") and node["Subplan Name"] not in read
    ]
    return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in (plan, *apart))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _cpu_seconds(pid: int) -> float:
    """Return how long a process of this machine has run, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
