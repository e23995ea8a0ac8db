"""A scenario: what takes part in a run, what the seed chooses, and what must hold.

`run_seed` makes one run of one seed; the same seed gives the same run in every process.
"""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any, Protocol

from tests.simulation.world import Violation, World

Plan = dict[str, Any]  # numbers by name; "faults" has the probability of each fault that is on


class Scenario(Protocol):
    """One kind of run."""

    name: str

    def plan(self, random: Random) -> Plan:
        """Return what a seed chooses: how many of everything, and which faults."""

    def run(self, world: World, cleanup: ExitStack) -> None:
        """Build what takes part, run it and check what is left.  Raises Violation.

        *cleanup* restores what was replaced; it is closed after the threads have ended.
        """


def chosen_faults(random: Random, possible: dict[str, float], share: float = 0.4) -> dict[str, float]:
    """Return about a *share* of the *possible* faults, each with a probability up to the one given."""
    return {
        name: round(highest * (1 - random.random()), 4)
        for name, highest in possible.items()
        if random.random() < share
    }


def run_seed(
    scenario: Scenario,
    seed: int,
    plan: Plan | None = None,
    mutant: Callable[[ExitStack], None] | None = None,
) -> World:
    """Make the run of *seed*, or one with another *plan*; its World has the violation and the trace."""
    if plan is None:
        plan = scenario.plan(Random(f"plan {seed}"))
    world = World(seed, plan)
    with ExitStack() as cleanup:
        if mutant is not None:
            mutant(cleanup)
        cleanup.callback(world.end)
        was_enabled = gc.isenabled()
        gc.disable()  # what it ends, and when, would differ from process to process
        if was_enabled:
            cleanup.callback(gc.enable)
        try:
            scenario.run(world, cleanup)
        except Violation as ex:
            world.fail(ex.invariant, str(ex).partition(": ")[2], ex.__cause__)
        world.end()
    return world
