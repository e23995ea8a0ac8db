"""Procedures of the pages, typed again, cut after each step and begun anew, or with a variable unset.

A row for each procedure, in a folder with a space in its name: no row that was saved is lost, doubled or
changed, and no file of the operator. `pytest -s` prints the outcomes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.debian import Host
from tests.deploy.runbook import blocks, lines
from tests.deploy.scenes import DEPLOY, Majors, Releases, Servers


class Procedure(NamedTuple):
    """Blocks of a section, all by default, where they are typed, and what they make."""

    page: str
    section: str
    scene: Callable[[Path], Any]
    made: str = ""
    blocks: tuple[int, ...] = ()


RECOVERY = ("DATABASE.md", "Point-in-time recovery", lambda _: Host())
PROCEDURES = (
    Procedure("RUNBOOK.md", "Installation", Releases),
    Procedure("RUNBOOK.md", "Upgrade", Releases, "1.1.0"),
    Procedure("RUNBOOK.md", "Backup and restore", Servers, "restored"),
    Procedure("RUNBOOK.md", "After any restore", Servers), Procedure(*RECOVERY, "setup", (0, 1)),
    Procedure(*RECOVERY, "everything", (2, 3, 5, 6, 7)), Procedure(*RECOVERY, "TIME", (2, 4, 6)),
    Procedure(*RECOVERY, "COPY_DATA", (8,)), Procedure("DATABASE.md", "Recovery of one manager", Servers),
    Procedure("DATABASE.md", "Parallel dump and restore", Servers, "parallel"),
    Procedure("DATABASE.md", "Major upgrade", Majors),
    Procedure("DATABASE.md", "Logical replication", Servers, "target"),
    Procedure("GROWTH.md", "Archive old revisions", Servers),
    Procedure("SCALING.md", "Poolers", Servers, "poolers"),
)  # fmt: skip
# Sections with more than one command that are not a procedure, or are typed elsewhere.
ELSEWHERE = {
    "RUNBOOK.md Runbook": "two functions", "RUNBOOK.md Erasing a manager": "tests/operate interrupts it",
    "RUNBOOK.md Monitoring": "changes no data; test_monitoring.py",
    "RUNBOOK.md Incidents": "commands of one step", "RUNBOOK.md Check of a host": "changes nothing",
    "SCALING.md Workers and connections": "a measurement",
}  # fmt: skip


@pytest.fixture(scope="module")
def scene_of(binaries: Path) -> Iterator[Callable[[Any], Any]]:
    made: dict[Any, Any] = {}
    yield lambda scene: made.get(scene) or made.setdefault(scene, scene(binaries))
    for scene in made.values():
        scene.close()


def ways(steps: list[str]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield of each way its name and the steps of its two attempts."""
    yield "to the end, and again", [steps, steps]
    for number in range(1, len(steps)):
        yield f"cut after step {number}, begun again", [steps[:number], steps]
    for name in sorted({*re.findall(r"\$\{?([A-Z_]+)", "".join(steps))}):
        yield f"without {name}, begun again", [[s for s in steps if not s.startswith(f"{name}=")], steps]


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda each: f"{each.section}-{each.made}")
def test_no_way_through_a_procedure_loses_a_row(scene_of, procedure):
    page, section, made = DEPLOY / procedure.page, procedure.section, procedure.made
    scene = scene_of(procedure.scene)
    printed = blocks(section, page)
    chosen = [printed[number] for number in procedure.blocks] or printed
    steps = [scene.prepare(line) for block in chosen for line in block.splitlines()]
    for way, attempts in ways(steps):
        scene.reset(made or section)
        before, outcomes = Counter(scene.kept()), []
        unset = re.findall(r"^without (\w+)", way)
        for attempt in attempts:
            if outcomes and section == "Installation":
                scene.live_on()
                before = Counter(scene.kept())
            failed, unset = scene.type("\n".join(attempt), **dict.fromkeys(unset, "")), []
            outcomes.append("; ".join(line[:40] for line in failed) or "complete")
        print(f"| {page.name} {section} {made} | {way} | {' / '.join(outcomes)} |")
        after = Counter(scene.kept())
        assert list(before - after) == [], way
        assert section == "Installation" or before == after, way
        assert (outcomes[0] == "complete") is not way.startswith("without"), way
        scene.assert_reached(made)


def test_each_section_with_commands_is_a_procedure():
    found = {
        f"{name} {section}"
        for name in ("RUNBOOK.md", "DATABASE.md", "GROWTH.md", "SCALING.md")  # no server has Citus here
        for section in re.findall(r"^##? (.*)$", (DEPLOY / name).read_text(), re.MULTILINE)
        if len(lines(section, DEPLOY / name)) > 1
    }
    assert found <= {f"{each.page} {each.section}" for each in PROCEDURES} | ELSEWHERE.keys()
