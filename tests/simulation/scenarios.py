"""The scenarios, the mutants, and which seed is of which scenario."""

from collections.abc import Iterator
from itertools import count

from tests.simulation import database, web
from tests.simulation.database_mutants import MUTANTS as DATABASE_MUTANTS
from tests.simulation.planting import Mutant
from tests.simulation.scenario import Plan, Scenario, run_seed
from tests.simulation.web_mutants import MUTANTS as WEB_MUTANTS
from tests.simulation.world import World

SCENARIOS: tuple[Scenario, ...] = (database, web)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in (*DATABASE_MUTANTS, *WEB_MUTANTS)}


def run(seed: int, plan: Plan | None = None, mutant: str | None = None) -> World:
    """Make the run of *seed*, or one with another *plan*, with a mistake if one is named."""
    scenario = SCENARIOS[seed % len(SCENARIOS)]
    return run_seed(scenario, seed, plan, MUTANTS[mutant].plant if mutant else None)


def seeds_of(mutant: Mutant, first: int = 0) -> Iterator[int]:
    """Yield the seeds that may find *mutant*."""
    place = [scenario.name for scenario in SCENARIOS].index(mutant.scenario)
    return count(first + (place - first) % len(SCENARIOS), len(SCENARIOS))
