"""The short form of a long run, and that the comparison sees each kind of violation."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from stackmgr.operate import migrations
from tests.endurance import check, soak
from tests.endurance.records import (
    CONFLICT,
    CREATE,
    GET,
    UPDATE,
    Record,
    digest,
    idempotency_key,
    request_id,
    supplied,
)
from tests.endurance.run import Plan, run
from tests.support.clusters import new_database

_OURS, _THEIRS = (str(uuid4()) for _ in range(2))
_STACK, _OTHER_STACK = (UUID(int=number) for number in (1, 2))
_REVISIONS = [UUID(int=number) for number in range(10, 15)]


def test_no_write_under_faults_is_lost_or_duplicated() -> None:
    faults = ("worker-dies", "backend-dies", "network-to-the-database-dies")
    report = run(Plan(setting="plain", seed=1, writes=500, rest=0.3, connections=12, faults=faults))
    assert report.problems() == []
    assert report.writes >= 500
    assert report.faults
    outcomes = report.summary.outcomes
    assert all(outcomes[name] for name in ("creates", "replays", "updates"))
    assert report.findings.revisions == outcomes["creates"] + outcomes["updates"] + report.findings.landed


def content(numbers: list[int]) -> tuple[str, str, str]:
    """Return the columns of a stack after a create and the updates of these numbers."""
    columns = [supplied(number, complete=number == numbers[0]) for number in numbers]
    name, allocation, preset = (
        [each for each in column if each is not None][-1] for column in zip(*columns, strict=True)
    )
    return name, json.dumps(allocation, separators=(",", ":")), preset


def seen(numbers: list[int]) -> int:
    name, allocation, preset = content(numbers)
    return digest(name, json.loads(allocation), preset)


def _insert(connection: psycopg.Connection) -> None:
    """Insert what the operations 1 (create), 2 and 3 (updates) leave, and 7 (another manager's create)."""
    for external_id, stack, numbers in ((_OURS, _STACK, [1, 2, 3]), (_THEIRS, _OTHER_STACK, [7])):
        manager = uuid4()
        connection.execute(
            "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) VALUES (%s, %s, %s)",
            (manager, external_id, external_id),
        )
        revisions = _REVISIONS[len(numbers) % 3 :]
        connection.execute(
            "INSERT INTO stackmgr.stacks VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (manager, stack, revisions[len(numbers) - 1], len(numbers), *content(numbers)),
        )
        for position, number in enumerate(numbers, 1):
            connection.execute(
                "INSERT INTO stackmgr.stack_revisions VALUES (%s, %s, %s, %s, %s, %s, %s, '', %s)",
                (
                    *(manager, stack, position, revisions[position - 1]),
                    *content(numbers[:position]),
                    request_id(number),
                ),
            )
        connection.execute(
            "INSERT INTO stackmgr.creation_receipts VALUES (%s, %s, sha256(''), %s)",
            (manager, idempotency_key(numbers[0]), stack),
        )


def _record(number: int, kind: int, status: int, key: int, numbers: list[int]) -> Record:
    """Return the record of an operation that ended before the next one was sent."""
    revisions = _REVISIONS if numbers and numbers[0] == 1 else _REVISIONS[1:]
    response: tuple[Any, ...] = (
        True,
        (_STACK if numbers[0] == 1 else _OTHER_STACK).bytes,
        revisions[len(numbers) - 1].bytes,
        seen(numbers),
    )
    manager = int(numbers[0] == 7)
    return Record(number, kind, manager, status, key, number, number + 0.5, *response)


def history() -> dict[int, Record]:
    records = [
        _record(1, CREATE, 201, 1, [1]),
        _record(2, UPDATE, 200, 2, [1, 2]),
        _record(3, UPDATE, 200, 3, [1, 2, 3]),
        _record(4, CREATE, 200, 1, [1, 2, 3]),
        Record(5, CONFLICT, 0, 409, 1, 5, 5.5),
        _record(6, GET, 200, 6, [1, 2, 3]),
        _record(7, CREATE, 201, 7, [7]),
        Record(8, UPDATE, 0, 500, 8, 8, 8.5),
    ]
    return {record.number: record for record in records}


@pytest.fixture(scope="module")
def history_url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url) as connection:
            _insert(connection)
        yield url


@dataclass(frozen=True)
class Plant:
    """A violation: a statement that changes the database, and fields that change a record."""

    rule: str
    statement: str = "SELECT"
    number: int = 0
    changes: tuple[tuple[str, Any], ...] = ()


def change(rule: str, number: int, **changes: Any) -> Plant:
    return Plant(rule, number=number, changes=tuple(changes.items()))


PLANTS = [
    Plant("lost", "DELETE FROM stackmgr.stack_revisions WHERE request_id = 'endurance-3'"),
    Plant(
        "twice",
        "INSERT INTO stackmgr.stack_revisions SELECT manager_id, stack_id, 4, revision_id, name, allocation,"
        " preset, identity_id, request_id FROM stackmgr.stack_revisions WHERE request_id = 'endurance-3'",
    ),
    Plant("a key without its receipt", "DELETE FROM stackmgr.creation_receipts"),
    change("a key without its receipt", 4, stack=_OTHER_STACK.bytes),
    change("a receipt that no creation can have made", 7, status=503),
    Plant(
        "a stack without one receipt and a revision",
        "INSERT INTO stackmgr.creation_receipts"
        " SELECT manager_id, 'other', input_digest, stack_id FROM stackmgr.creation_receipts",
    ),
    change("a status that no fault explains", 3, status=404),
    change("a status that no fault explains", 5, status=201),
    change("an unknown stack", 6, stack=UUID(int=9).bytes),
    Plant(
        "out of place",
        "UPDATE stackmgr.stack_revisions SET revision_number = 5 WHERE request_id = 'endurance-3'",
    ),
    Plant(
        "a revision that no operation made",
        "UPDATE stackmgr.stack_revisions SET request_id = 'x' WHERE request_id = 'endurance-3'",
    ),
    Plant(
        "other content than was supplied",
        "UPDATE stackmgr.stack_revisions SET name = 'x' WHERE request_id = 'endurance-3'",
    ),
    change("another response than the revision", 3, digest=1),
    change("another response than the revision", 3, revision=_REVISIONS[0].bytes),
    change("made against the response", 3, status=503),
    change("made against the response", 3, status=0, reached=False),
    change("another manager's", 3, manager=1),
    change("another manager's", 6, manager=1),
    Plant("a stack that is not its last revision", "UPDATE stackmgr.stacks SET name = 'x'"),
    change("a response that no revision contains", 6, digest=1),
    change("out of order", 6, revision=_REVISIONS[1].bytes, digest=seen([1, 2])),
    change("out of order", 3, sent=0.0, completed=1.5),
    change("before it was sent", 3, sent=9.0, completed=9.5),
]


def compare(url: str, folder: Path, plant: Plant | None = None) -> check.Findings:
    records = history()
    if plant is not None and plant.changes:
        records[plant.number] = records[plant.number]._replace(**dict(plant.changes))
    path = folder / "records"
    path.write_bytes(b"".join(record.pack() for record in records.values()))
    with psycopg.connect(url) as connection:
        if plant is not None:
            connection.execute(plant.statement)
        findings = check.compare(connection, path, [_OURS, _THEIRS])
        connection.rollback()
    return findings


def test_a_sound_history_has_no_violation(history_url: str, tmp_path: Path) -> None:
    findings = compare(history_url, tmp_path)
    assert findings.examples == []
    assert findings.revisions == 4
    assert findings.landed == 0


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.rule)
def test_a_violation_is_found(history_url: str, tmp_path: Path, plant: Plant) -> None:
    assert compare(history_url, tmp_path, plant).violations[plant.rule] > 0


def test_each_rule_has_a_violation() -> None:
    assert {plant.rule for plant in PLANTS} >= set(check.RULES)


@pytest.mark.parametrize("grown", ["megabytes", "descriptors", "threads"])
def test_growth_is_found(grown: str) -> None:
    samples = soak.Samples()
    for minute in range(3):
        use = soak.Use(minute * 60.0, 100.0, 50, 5)
        samples.uses["worker"].append(use)
    assert samples.growth() == []
    more: dict[str, Any] = {"megabytes": 120.0, "descriptors": 60, "threads": 9}
    samples.uses["worker"].append(replace(use, at=180.0, **{grown: more[grown]}))
    assert len(samples.growth()) == 1
