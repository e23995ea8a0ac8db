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
        return _find_mutants(arguments.first, arguments.seeds)
    return _run_seeds(arguments.first, arguments.seeds, mutant)


def _show(world: World) -> int:
    print(f"seed {world.seed}, plan {world.plan}")
    for seconds, thread, what, *details in world.trace:
        print(f"{seconds:10.6f}  {thread:20}  {what}", *details)
    print(world.violation or "no violation", f"({world.steps} steps)")
    return int(world.violation is not None)


def _failing(seeds: range, mutant: str | None = None) -> list[int]:
    return [seed for seed in seeds if run(seed, mutant=mutant).violation is not None]


def _run_seeds(first: int, number: int, mutant: str | None) -> int:
    started, failing = time.monotonic(), []
    chunks = [range(at, min(at + _CHUNK, first + number)) for at in range(first, first + number, _CHUNK)]
    with ProcessPoolExecutor(_PROCESSES) as processes:
        for found in processes.map(partial(_failing, mutant=mutant), chunks):
            for seed in found:
                failing.append(seed)
                _show(run(seed, mutant=mutant))
                sys.stdout.flush()
    seconds = time.monotonic() - started
    print(f"{number} seeds in {seconds:.0f} s: {len(failing)} failed {failing or ''}")
    return int(bool(failing))


def _first_seed(name: str, first: int, number: int) -> tuple[int, str] | None:
    for seed in range(first, first + number):
        violation = run(seed, mutant=name).violation
        if violation is not None:
            return seed, str(violation)
    return None


def _find_mutants(first: int, number: int) -> int:
    missed = 0
    with ProcessPoolExecutor(_PROCESSES) as processes:
        results = processes.map(partial(_first_seed, first=first, number=number), MUTANTS)
        for mutant, found in zip(MUTANTS.values(), results, strict=True):
            seed, violation = found or ("none", f"not found in {number} seeds")
            missed += found is None
            print(f"| {mutant.name} | {mutant.function} | {seed} | {violation[:90]} |", flush=True)
    print(f"{len(MUTANTS)} mutants, {missed} not found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
