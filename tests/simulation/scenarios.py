"""The scenarios: what takes part in a run, what the seed chooses, and what must hold."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from random import Random

from tests.simulation import database, web
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import Plan, Violation, World

SCENARIOS = database, web  # `plan` returns what a seed chooses; `run` checks what takes part, and is left


def run(seed: int, plan: Plan | None = None, mutant: str | None = None) -> World:
    """Make the run of *seed*, or one with another *plan*, with a mistake if one is named."""
    scenario = SCENARIOS[seed % len(SCENARIOS)]
    world = World(seed, scenario.plan(Random(f"plan {seed}")) if plan is None else plan)
    with ExitStack() as cleanup:
        if mutant is not None:
            MUTANTS[mutant].plant(cleanup)
        cleanup.callback(world.end)
        if gc.isenabled():
            gc.disable()  # what it ends, and when, would differ from process to process
            cleanup.callback(gc.enable)
        try:
            scenario.run(world, cleanup)
        except Violation as ex:
            world.fail(ex.invariant, str(ex).partition(": ")[2], ex.__cause__)
        world.end()
    return world


def seeds_of(mutant: Mutant, first: int = 0) -> Iterator[int]:
    """Yield the seeds that may find *mutant*."""
    place = [scenario.name for scenario in SCENARIOS].index(mutant.scenario)
    return count(first + (place - first) % len(SCENARIOS), len(SCENARIOS))
