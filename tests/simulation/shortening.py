"""Make a failing run short: leave out what it does not need to fail in the same way."""

from collections.abc import Callable, Iterator

from tests.simulation.scenario import Plan
from tests.simulation.world import World

_COUNTS = ("clients", "requests", "threads", "keys")
_LISTS = ("events", "kinds", "paths")
_MAX_RUNS = 300


def shortened(world: World, run: Callable[[Plan], World]) -> World:
    """Return the run with the smallest plan found that breaks the same invariant."""
    assert world.violation is not None
    invariant, runs = world.violation.invariant, 0
    candidates = _smaller(world.plan)
    while runs < _MAX_RUNS and (plan := next(candidates, None)) is not None:
        runs += 1
        shorter = run(plan)
        if shorter.violation is not None and shorter.violation.invariant == invariant:
            world, candidates = shorter, _smaller(plan)
    return world


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, those with the least first."""
    faults = plan.get("faults", {})
    for fault in faults:
        yield {**plan, "faults": {name: chance for name, chance in faults.items() if name != fault}}
    for name in _LISTS:
        parts = plan.get(name, [])
        for place in range(len(parts)):
            yield {**plan, name: parts[:place] + parts[place + 1 :]}
    for name in _COUNTS:
        number = plan.get(name, 0)
        for fewer in dict.fromkeys((number // 2, number - 1)):
            if 0 < fewer < number or (fewer == 0 and name == "threads" and number):
                yield {**plan, name: fewer}
