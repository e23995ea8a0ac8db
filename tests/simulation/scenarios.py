"""A run: what takes part, what the seed chooses, and what must hold."""

import gc
from contextlib import ExitStack
from random import Random

from tests.simulation import database
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import Violation, World


def run(seed: int, mutant: str | None = None) -> World:
    """Make the run of *seed*, with a mistake if one is named."""
    world = World(seed, database.plan(Random(f"plan {seed}")))
    with ExitStack() as cleanup:
        if mutant is not None:
            MUTANTS[mutant].plant(cleanup)
        cleanup.callback(world.end)
        if gc.isenabled():
            gc.disable()  # what it ends, and when, would differ from process to process
            cleanup.callback(gc.enable)
        try:
            database.run(world, cleanup)
        except Violation as ex:
            world.fail(ex.invariant, str(ex).partition(": ")[2], ex.__cause__)
        world.end()
    return world
