"""Cells of mistakes a service like this one can make, planted in its workers: the checker must find each."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import uuid4

from stackmgr.database.session import Planned
from stackmgr.scheduler import Signal
from stackmgr.stacks import repository
from tests.faults.cell import Bound, Cell, Prepare
from tests.faults.stage import Setup

# Long enough for another client to come between; the mistakes are races, and so is finding them.
_WINDOW = 0.003

_BOUND = Bound("500")

Patch = Callable[..., None]


def stale_copy(patch: Patch) -> None:
    """An update that reads the stack, changes the copy and writes all of it back."""
    run_planned = repository.get_or_update

    def wrong(run: Any, planned: Planned) -> repository.Stack:
        if not planned.statement.writes:
            return run_planned(run, planned)
        copy = run_planned(run, repository.plan_get(planned.parameters["stack_id"]))
        Signal().wait(_WINDOW)
        given = {
            name: planned.parameters[name] or getattr(copy, name) for name in ("name", "allocation", "preset")
        }
        return run_planned(run, planned._replace(parameters={**planned.parameters, **given}))

    patch(repository, "get_or_update", wrong)


def doubled_create(patch: Patch) -> None:
    """A create that ignores its key."""
    plan = repository.plan_create

    def wrong(key: str, configuration: Any, request_id: str) -> Planned:
        return plan(f"{key} {uuid4()}", configuration, request_id)

    patch(repository, "plan_create", wrong)


def response_before_commit(patch: Patch) -> None:
    """An update that is acknowledged while its transaction is still open."""
    run_planned = repository.get_or_update

    def wrong(run: Any, planned: Planned) -> repository.Stack:
        if not planned.statement.writes:
            return run_planned(run, planned)
        session = run.__self__.session
        connections = session._connections
        connection = session._connection = session._connection or connections.acquire(float("inf"))
        connection.execute(b"BEGIN")

        def commit() -> None:
            connection.execute(b"COMMIT")
            connections.release(connection)

        try:
            return run_planned(run, planned)
        finally:
            session._connection = None
            threading.Timer(_WINDOW, commit).start()

    patch(repository, "get_or_update", wrong)


# Each with the rule that is to find it.
_MISTAKES: dict[Callable[[Patch], None], str] = {
    stale_copy: "R1",
    doubled_create: "R6",
    response_before_commit: "R4",
}


def plant(name: str) -> None:
    """Make the mistake of this name in this process."""
    for mistake in _MISTAKES:
        if mistake.__name__ == name:
            mistake(setattr)


def _with(name: str) -> Prepare:
    @contextmanager
    def prepare(setup: Setup) -> Iterator[None]:
        setup.environment["FAULTS_MUTANT"] = name
        yield

    return prepare


CELLS = [
    Cell(
        *(f"{mistake.__name__.replace('_', ' ')} (control)", "lies", lambda _: nullcontext(), _BOUND),
        setup=_with(mistake.__name__),
        control=rule,
        clients=12,
        lasts=2.0,
        short=mistake is doubled_create,
    )
    for mistake, rule in _MISTAKES.items()
]
