"""The short form of the drills: each fault once, in an order of the seed's, and then a crowd of callers."""

import tempfile
from pathlib import Path

import pytest

from tests.drills.drills import DRILLS, run
from tests.faulty_postgres import FaultyPostgres

# Seconds after which an answer is not slow but hangs; how fast it is to be, the command tells.
HANGING = 15.0


@pytest.fixture(scope="module")
def drill_server():
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-drills-") as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        yield server


@pytest.mark.parametrize("name", ["mixed", "pool-exhaustion"])
def test_faults_under_load_lose_nothing_and_double_nothing(drill_server, name):
    report = run(DRILLS[name], drill_server, seed=1, times=DRILLS[name].short)
    assert report.contradictions() == []
    assert report.slowest < HANGING
