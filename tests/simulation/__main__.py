"""Run seeds of the simulation; print each that fails, with its trace."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.database import run
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import World

_PROCESSES = 2
_CHUNK = 100


def main() -> int:
    """Run what the arguments say; return 1 if an invariant does not hold or a mutant is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, with --first or from 0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this one and print its trace")
    parser.add_argument("--mutants", action="store_true", help="print the first seed that finds each mistake")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME", help="plant this one")
    arguments = parser.parse_args()
    mutant = arguments.mutant
    if arguments.seed is not None:
        return _show(run(arguments.seed, mutant=mutant))
    if arguments.mutants:
        return _find_mutants(range(arguments.first, arguments.first + arguments.seeds))
    return _run_seeds(arguments.first, arguments.seeds, mutant)


def _show(world: World) -> int:
    print(f"seed {world.seed}, plan {world.plan}")
    for seconds, thread, what, *details in world.trace:
        print(f"{seconds:10.6f}  {thread:20}  {what}", *details)
    print(world.violation or "no violation", f"({world.steps} steps)")
    return int(world.violation is not None)


def _fails(seed: int, mutant: str | None) -> bool:
    return run(seed, mutant=mutant).violation is not None


def _run_seeds(first: int, number: int, mutant: str | None) -> int:
    started, seeds = time.monotonic(), range(first, first + number)
    with ProcessPoolExecutor(_PROCESSES) as processes:
        found = processes.map(partial(_fails, mutant=mutant), seeds, chunksize=_CHUNK)
        failing = [seed for seed, fails in zip(seeds, found, strict=True) if fails]
    for seed in failing:
        _show(run(seed, mutant=mutant))
    seconds = time.monotonic() - started
    print(f"{number} seeds in {seconds:.0f} s: {len(failing)} failed {failing or ''}")
    return int(bool(failing))


def _first_seed(name: str, seeds: range) -> tuple[int, str]:
    found = ((seed, run(seed, mutant=name).violation) for seed in seeds)
    return next(((seed, str(each)[:90]) for seed, each in found if each is not None), (-1, "not found"))


def _find_mutants(seeds: range) -> int:
    with ProcessPoolExecutor(_PROCESSES) as processes:
        found = [*processes.map(partial(_first_seed, seeds=seeds), MUTANTS)]
    for name, (seed, violation) in zip(MUTANTS, found, strict=True):
        print(f"| {name} | {seed} | {violation} |")
    return int(any(seed < 0 for seed, _ in found))


if __name__ == "__main__":
    sys.exit(main())
