"""The short form of the simulation; `python -m tests.simulation` is the long one."""

import itertools
import subprocess
import sys

import pytest

from tests.simulation.scenarios import MUTANTS, SCENARIOS, run, seeds_of

SEEDS = 600
CHUNK = 100
REPEATED = range(60)
FURTHER = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first):
    violations = {seed: run(seed).violation for seed in range(first, first + CHUNK)}
    assert not {seed: str(violation) for seed, violation in violations.items() if violation}


def test_a_seed_makes_the_same_run_again():
    for seed in REPEATED:
        assert run(seed).trace == run(seed).trace


def test_a_seed_makes_the_same_run_in_every_process():
    for seed in range(len(SCENARIOS)):
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
        first, second = (
            subprocess.run(command, env={"PYTHONHASHSEED": salt}, check=True, capture_output=True, timeout=60)
            for salt in ("1", "2")
        )
        assert first.stdout == second.stdout


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name):
    seed = MUTANTS[name].seed
    seeds = itertools.islice(seeds_of(MUTANTS[name]), FURTHER)  # where the known one makes another run by now
    assert any(run(tried, mutant=name).violation for tried in itertools.chain([seed], seeds)), (
        "search its seed again: python -m tests.simulation --mutants --seeds 10000"
    )
