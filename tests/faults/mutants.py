"""Cells of mistakes a service like this one can make, planted in its workers: the checker must find each."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import uuid4

from stackmgr.database.session import Planned, Session
from stackmgr.scheduler import Signal
from stackmgr.stacks import repository
from tests.faults.cell import Bound, Cell, Prepare
from tests.faults.stage import Setup

# Long enough for another client to come between; the mistakes are races, and so is finding them.
_WINDOW = 0.003

_BOUND = Bound("500")

Patch = Callable[..., None]


def _send_nothing_ahead(patch: Patch) -> None:
    """Leave the write to what takes the place of the repository's function."""
    patch(Session, "_planned_for", lambda *_: None)


def stale_copy(patch: Patch) -> None:
    """An update that reads the stack, changes the copy and writes all of it back."""
    get, update = repository.get, repository.update

    def wrong(session: Any, caller: Any) -> repository.Stack:
        planned = session.planned()
        session.plan = repository.plan_get(planned.parameters["stack_id"])
        copy = get(session, caller)
        Signal().wait(_WINDOW)
        for name in ("name", "allocation", "preset"):
            planned.parameters[name] = planned.parameters[name] or getattr(copy, name)
        session.plan = planned
        return update(session, caller)

    _send_nothing_ahead(patch)
    patch(repository, "update", wrong)


def stale_cache(patch: Patch) -> None:
    """A read from memory that no update refreshes."""
    get, cache = repository.get, {}

    def wrong(session: Any, caller: Any) -> repository.Stack:
        known = caller.manager_id, session.planned().parameters["stack_id"]
        if known not in cache:
            cache[known] = get(session, caller)
        return cache[known]

    patch(repository, "get", wrong)


def replayed_response(patch: Patch) -> None:
    """A repeated create that returns the first response, not the current stack."""
    create, responses = repository.create, {}

    def wrong(session: Any, caller: Any) -> tuple[repository.Stack, bool]:
        stack, created = create(session, caller)
        known = caller.manager_id, session.planned().parameters["idempotency_key"]
        if created:
            responses[known] = stack
        return responses.get(known, stack), created

    patch(repository, "create", wrong)


def doubled_create(patch: Patch) -> None:
    """A create that ignores its key."""
    plan = repository.plan_create

    def wrong(key: str, configuration: Any, request_id: str) -> Planned:
        return plan(f"{key} {uuid4()}", configuration, request_id)

    patch(repository, "plan_create", wrong)


def reread_response(patch: Patch) -> None:
    """An update whose response is a second read of the stack."""
    get, update = repository.get, repository.update

    def wrong(session: Any, caller: Any) -> repository.Stack:
        update(session, caller)
        Signal().wait(_WINDOW)
        session.plan = repository.plan_get(session.planned().parameters["stack_id"])
        return get(session, caller)

    patch(repository, "update", wrong)


def response_before_commit(patch: Patch) -> None:
    """An update that is acknowledged while its transaction is still open."""
    update = repository.update

    def wrong(session: Any, caller: Any) -> repository.Stack:
        connections = session._connections
        connection = session._connection = session._connection or connections.acquire(float("inf"))
        connection.execute(b"BEGIN")

        def commit() -> None:
            connection.execute(b"COMMIT")
            connections.release(connection)

        try:
            return update(session, caller)
        finally:
            session._connection = None
            threading.Timer(_WINDOW, commit).start()

    _send_nothing_ahead(patch)
    patch(repository, "update", wrong)


def missing_tenant_filter(patch: Patch) -> None:
    """A read by the stack's id alone."""
    text = repository._GET.text.replace(b"manager_id = $1::uuid", b"$1::uuid IS NOT NULL")
    assert text != repository._GET.text
    patch(repository, "_GET", dataclasses.replace(repository._GET, name="stack_get_of_anybody", text=text))


# Each with the rule that is to find it.
_MISTAKES: dict[Callable[[Patch], None], str] = {
    stale_copy: "R1",
    stale_cache: "R4",
    replayed_response: "R8",
    doubled_create: "R6",
    reread_response: "R3",
    response_before_commit: "R4",
    missing_tenant_filter: "R7",
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
