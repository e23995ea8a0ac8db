"""The invariants of the scheduler, as its docstring states them."""

from math import inf

from stackmgr.scheduler import Scheduler
from tests.simulation.world import Thread, Violation, World

_SLACK = 0.001  # seconds


class Schedule:
    """Watches one Scheduler and the thread that runs it."""

    def __init__(self, world: World, scheduler: Scheduler, thread: Thread) -> None:
        self.world = world
        self.scheduler = scheduler
        self.thread = thread
        world.invariants_at_rest.append(self.check_at_rest)

    def check_at_rest(self) -> None:
        """Check what holds while the thread waits for events."""
        if self.thread.paused is not self.thread.only_waits_in:
            return  # a request blocks it for a moment
        scheduler = self.scheduler
        if scheduler._signals:
            raise Violation("a signal resumes what waits for it", f"{len(scheduler._signals)} are set")
        if scheduler._ending_turn:
            raise Violation("what can run runs", "greenlets that ended their turn wait")
        first = min(scheduler._deadlines.values(), default=inf)
        if first < self.world.now - _SLACK - self.world.last_stall:
            raise Violation("every wait ends at its deadline", f"{self.world.now - first:.3f} s ago")
        if scheduler._next_deadline > first:
            raise Violation("every wait ends at its deadline", "the thread waits beyond the first deadline")
        for descriptor, greenlet in scheduler._waiting.items():
            if greenlet not in scheduler._deadlines:
                raise Violation("a greenlet waits for one thing at a time", f"descriptor {descriptor}")

    def check_at_end(self) -> None:
        """Check that nothing waits once all requests have ended."""
        if self.scheduler._deadlines or self.scheduler._waiting:
            raise Violation("every wait has an end", f"{len(self.scheduler._deadlines)} greenlets wait")
