"""What each statement costs on a large database, beside a small one, in one interleaved run.

The statements are the service's own, prepared on its own kind of connection.  *plan* is what EXPLAIN
counts in the mean, without the triggers of the constraints, *most* the greatest of these counts; *buffers*,
reads and WAL are PostgreSQL's counts for the session (version 18), the triggers included; CPU is the server
process's.  Reads are warm: each round takes the same stacks.
"""

import random
import statistics
from collections.abc import Iterator

from tests.measure.scale.subject import LoadedDatabase

_PER_ROUND = 100
_PLANS = 100

# Most buffers that the plan of a statement may touch, at any size.
BOUNDS = {
    "first page": 30,
    "middle page": 30,
    "get": 5,
    "verify": 6,
    "receipt": 10,
    "update": 25,
    "create": 25,
}

_COLUMNS = (
    "bound   plan  most buffers  reads    WAL   p50 ms        p99 ms         CPU us         CPU x p50 x p99 x"
)
_LINE = (
    "{:12} {:5} {:6.1f} {:5} {:7.1f} {:6.2f} {:6.0f}  {:6.3f} {:6.3f}  {:6.3f} {:6.3f}  {:6.0f} {:6.0f}"
    "  {:5.2f} {:5.2f} {:5.2f}"
)
_READS = ("first page", "middle page", "get", "verify", "receipt")
_FORGET = b"""
SET allow_system_table_mods = on;
DELETE FROM pg_statistic
WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'stackmgr'::regnamespace);
UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE relnamespace = 'stackmgr'::regnamespace;
"""
_SIZES = b"""
SELECT relname, pg_relation_size(oid) + coalesce(pg_total_relation_size(nullif(reltoastrelid, 0)), 0)
FROM pg_class
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind IN ('r', 'i') AND pg_relation_size(oid) > 8192
ORDER BY 2 DESC
"""
_COMPRESSIONS = b"SELECT enumvals FROM pg_settings WHERE name = 'wal_compression'"


def report(small: tuple[str, int], large: tuple[str, int], rounds: int) -> Iterator[str]:
    """Yield the lines of the report on two databases: connection strings with their numbers of stacks."""
    subjects = [LoadedDatabase(*small), LoadedDatabase(*large)]
    try:
        yield from _sizes(subjects[1], large[1])
        for statistics_are in ("missing", "fresh"):
            for subject in subjects:
                subject.execute(_FORGET if statistics_are == "missing" else b"ANALYZE")
                subject.costs.clear()
            for subject in subjects:
                for name in _READS:
                    subject.warm(name)
            plans = _plan_buffers(subjects[1])
            _measure(subjects, rounds if statistics_are == "fresh" else 3)
            yield from _table(subjects, statistics_are, plans)
        yield from _wal(subjects[1])
    finally:
        for subject in subjects:
            subject.close()


def _measure(subjects: list[LoadedDatabase], rounds: int) -> None:
    chance = random.Random(2)  # noqa: S311 - to be repeatable
    for number in range(rounds + 2):
        if number == 2:  # warm
            for subject in subjects:
                subject.costs.clear()
        for name in BOUNDS:
            for subject in chance.sample(subjects, len(subjects)):
                subject.measure(name, subject.calls(name, chance, _PER_ROUND))


def _table(subjects: list[LoadedDatabase], statistics_are: str, plans: dict[str, list[int]]) -> Iterator[str]:
    small, large = subjects
    yield f"statistics {statistics_are}:"
    yield f"{'':12} {_COLUMNS}"
    for name, b in large.costs.items():
        a = small.costs[name]
        p50, p99 = ([costs.milliseconds(percent) for costs in (a, b)] for percent in (50, 99))
        cpu = [1e6 * costs.per_call(costs.cpu_seconds) for costs in (a, b)]
        yield _LINE.format(
            name,
            BOUNDS[name],
            statistics.fmean(plans[name]),
            max(plans[name]),
            *(b.per_call(total) for total in (b.buffers, b.reads, b.wal_bytes)),
            *(*p50, *p99, *cpu),
            *(pair[1] / pair[0] for pair in (cpu, p50, p99)),
        )


def _wal(subject: LoadedDatabase) -> Iterator[str]:
    """Yield the WAL of writes to pages untouched since a checkpoint, and again to the same pages."""
    built_in = subject.execute(_COMPRESSIONS)[0][0]
    for compression in (b"off", b"lz4" if "lz4" in built_in else b"pglz"):
        subject.execute(b"ALTER SYSTEM SET wal_compression = " + compression)
        subject.execute(b"SELECT pg_reload_conf()")
        for name in ("update", "create"):
            subject.execute(b"CHECKPOINT")
            for moment in ("after a checkpoint", "again"):
                subject.costs.clear()
                chance = random.Random(5)  # noqa: S311 - to be repeatable
                subject.measure(name, subject.calls(name, chance, 3 * _PER_ROUND))
                costs = subject.costs[name]
                bytes_each = costs.per_call(costs.wal_bytes)
                yield f"WAL of {name} {moment}, compression {compression.decode()}: {bytes_each:.0f} bytes"
    subject.execute(b"ALTER SYSTEM RESET wal_compression")
    subject.execute(b"SELECT pg_reload_conf()")


def _plan_buffers(subject: LoadedDatabase) -> dict[str, list[int]]:
    chance = random.Random(3)  # noqa: S311 - to be repeatable
    plans = {}
    for name in BOUNDS:
        subject.plan_buffers(subject.calls(name, chance, 1))  # a session's first call reads catalogs too
        plans[name] = subject.plan_buffers(subject.calls(name, chance, _PLANS))
    return plans


def _sizes(subject: LoadedDatabase, stacks: int) -> Iterator[str]:
    rows = subject.execute(_SIZES)
    yield f"bytes per stack: {sum(size for _, size in rows) / stacks:.0f}"
    yield from (f"  {name:28} {size / stacks:7.1f}" for name, size in rows)
