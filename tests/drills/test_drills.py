"""The short form of the drills: each fault once, in an order given by the seed, and then many clients."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.drills import DRILLS, run
from tests.drills.stage import NoPlace, Report
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres

# Seconds after which a response counts as hanging; only the command measures how fast it is.
HANGING = 15.0


@pytest.fixture(scope="module")
def drill_server() -> Iterator[FaultyPostgres]:
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-drills-", dir=memory()) as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        yield server


def short(name: str, server: FaultyPostgres) -> Report:
    try:
        return run(DRILLS[name], server, seed=1, times=DRILLS[name].short)
    except NoPlace as ex:
        pytest.skip(str(ex))


@pytest.mark.parametrize(
    "name", ["mixed", "pool-exhaustion", "lost-packets", "full-volume", "verifier-outage"]
)
def test_faults_under_load_lose_nothing_and_double_nothing(drill_server: FaultyPostgres, name: str) -> None:
    report = short(name, drill_server)
    assert report.contradictions() == []
    assert report.slowest < HANGING


def test_the_loss_by_a_failover_to_a_lagging_standby_is_detected(
    drill_server: FaultyPostgres,
) -> None:
    assert short("control-lagging-standby", drill_server).contradictions() == []


def test_every_fault_is_injected() -> None:
    assert DRILLS["mixed"].short >= sum(drill.mixes for drill in DRILLS.values())
