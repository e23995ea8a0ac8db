"""The short form of the simulation; `python -m tests.simulation` is the long one."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.database import run
from tests.simulation.mutants import MUTANTS

# Those of the mistakes too: a run that one of them breaks is a run where the code without it is tried.
SEEDS = sorted({*range(300), *(mutant.seed for mutant in MUTANTS.values())})
CHUNK = 100
FURTHER = 100


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A process of its own: threads that other tests have left here would call what is simulated."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def violations(seeds: Iterable[int]) -> dict[int, str]:
    found = {seed: run(seed).violation for seed in seeds}
    return {seed: str(violation) for seed, violation in found.items() if violation}


def finds(name: str) -> bool:
    seeds = (MUTANTS[name].seed, *range(FURTHER))  # the known one may make another run by now
    return any(run(seed, mutant=name).violation for seed in seeds)


@pytest.mark.parametrize("first", range(0, len(SEEDS), CHUNK))
def test_no_seed_breaks_an_invariant(process, first):
    assert process.submit(violations, SEEDS[first : first + CHUNK]).result() == {}


def test_a_seed_is_the_same_in_every_process():
    command = [sys.executable, "-m", "tests.simulation", "--seed", "0"]
    first, second = (
        subprocess.run(command, env={"PYTHONHASHSEED": salt}, check=True, capture_output=True, timeout=60)
        for salt in ("1", "2")
    )
    assert first.stdout == second.stdout


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(process, name):
    assert process.submit(finds, name).result(), (
        "search its seed again: python -m tests.simulation --mutants --seeds 10000"
    )
