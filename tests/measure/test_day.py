"""The short form of a shortened day, without its times, and that its report sees what exceeds a bound."""

import shutil
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.measure.day import AGE_LIMIT, MULTIXACT_LIMIT, DatabaseSamples, DayReport, Vacuums, run
from tests.measure.load import Load
from tests.support.clusters import new_database
from tests.support.waiting import eventually

_WAITS = b"SELECT FROM pg_locks WHERE pid = %d AND NOT granted"
_LOG = """\
2026-11-23 03:04:46.341 UTC [17] LOG:  automatic vacuum of table "stackmgr.stackmgr.stacks": index scans: 0
\tpages: 0 removed, 55 remain, 1 scanned (1.82% of total), 0 eagerly scanned
\tsystem usage: CPU: user: 0.10 s, system: 0.00 s, elapsed: 1.25 s
2026-11-23 03:04:47.341 UTC [17] LOG:  automatic aggressive vacuum to prevent wraparound of table\
 "stackmgr.stackmgr.stacks": index scans: 0
\tsystem usage: CPU: user: 0.10 s, system: 0.00 s, elapsed: 0.75 s
2026-11-23 03:04:48.341 UTC [17] LOG:  automatic analyze of table "stackmgr.stackmgr.stacks"
\tsystem usage: CPU: user: 0.10 s, system: 0.00 s, elapsed: 9.75 s
2026-11-23 03:04:49.341 UTC [18] LOG:  process 18 still waiting for ShareLock on relation 16 after 10 ms
2026-11-23 03:04:49.341 UTC [18] DETAIL:  Process holding the lock: HOLDER. Wait queue: 18.
"""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk")
def test_a_short_day_has_its_vacuums_and_no_failed_request() -> None:
    report = run(minutes=0.15, rate=50, stacks=1000)
    assert len(report.loads) == len(report.costs) == 4
    assert all(quarter.requests and not quarter.errors for quarter in report.loads)
    assert all(report.vacuums.visits[f"stackmgr.{name}"] for name in ("stack_revisions", "creation_receipts"))
    assert report.samples.taken
    assert 0 < report.samples.age[0] <= AGE_LIMIT / 2
    assert report.samples.blocked == report.vacuums.blocking == []


def test_a_request_that_waits_for_a_vacuum_is_seen(server_url: str) -> None:
    samples = DatabaseSamples()
    with (
        new_database(server_url) as url,
        psycopg.connect(url) as holder,
        closing(psycopg.connect(url, autocommit=True)) as vacuum,  # ends while its statement runs
        closing(psycopg.connect(url)) as request,
        psycopg.connect(url, autocommit=True) as observer,
    ):
        holder.execute(b"CREATE TABLE stacks ()")
        holder.commit()
        holder.execute(b"SELECT FROM stacks")
        vacuum.pgconn.send_query(b"VACUUM FULL stacks")
        eventually(lambda: observer.execute(_WAITS % vacuum.info.backend_pid).fetchall())
        samples.take(observer)
        assert samples.blocked == []
        request.pgconn.send_query(b"SELECT FROM stacks")

        def blocked() -> list[str]:
            samples.take(observer)
            return samples.blocked

        assert eventually(blocked)[0] == "'SELECT FROM stacks' waits for 'VACUUM FULL stacks'"


@pytest.mark.parametrize(("holder", "blocking"), [("17", 1), ("16, 17", 1), ("16", 0), ("170", 0)])
def test_the_log_names_vacuums_and_those_that_others_have_waited_for(holder: str, blocking: int) -> None:
    found = Vacuums.read(_LOG.replace("HOLDER", holder))
    assert found.visits == {"stackmgr.stacks": 2}
    assert found.aggressive == {"stackmgr.stacks": 1}
    assert found.longest_seconds == 1.25
    assert found.lock_waits == {"ShareLock on relation N": 1}
    assert len(found.blocking) == blocking


def test_a_vacuum_that_ended_for_a_request_has_blocked_it() -> None:
    assert Vacuums.read("[17] ERROR:  canceling autovacuum task\n").blocking


_SOUND = Load(requests=1000, seconds=10.0, p50=2.0, p99=10.0, errors=0)


@pytest.mark.parametrize(
    ("first", "last", "samples"),
    [
        ({}, {"p99": 12.1}, {}),
        ({"errors": 1}, {}, {}),
        ({}, {}, {"age": (AGE_LIMIT // 2 + 1, "stacks")}),
        ({}, {}, {"multixact_age": (MULTIXACT_LIMIT // 2 + 1, "stacks")}),
        ({}, {}, {"blocked": ["a request"]}),
    ],
)
def test_each_bound_is_checked(first: Any, last: Any, samples: Any) -> None:
    assert DayReport([_SOUND, replace(_SOUND, p99=12.0)]).problems() == []
    report = DayReport(
        [replace(_SOUND, **first), replace(_SOUND, **last)], samples=DatabaseSamples(**samples)
    )
    assert len(report.problems()) == 1
