"""Seven mistakes a service like this one can make; the history checker must find each."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from stackmgr.scheduler import sleep
from stackmgr.stacks import repository

# Long enough for another client to come between; the mistakes are races, and so is finding them.
_WINDOW = 0.003

Patch = Callable[..., None]


def stale_copy(patch: Patch) -> None:
    """An update that reads the stack, changes the copy and writes all of it back."""
    update = repository.update

    def wrong(session: Any, actor: Any, stack_id: str, changes: Any) -> repository.Stack:
        session.planned_read = repository.plan_get(stack_id)
        copy = repository.get(session, actor.manager_id)
        sleep(_WINDOW)
        wanted = {
            name: getattr(changes, name) or getattr(copy, name) for name in ("name", "allocation", "preset")
        }
        return update(session, actor, stack_id, dataclasses.replace(changes, **wanted))

    patch(repository, "update", wrong)


def stale_cache(patch: Patch) -> None:
    """A read from memory that no update refreshes."""
    get, cache = repository.get, {}

    def wrong(session: Any, manager_id: str) -> repository.Stack:
        stack_id = session.planned_read[1]["stack_id"]
        if (manager_id, stack_id) not in cache:
            cache[manager_id, stack_id] = get(session, manager_id)
        return cache[manager_id, stack_id]

    patch(repository, "get", wrong)


def replayed_response(patch: Patch) -> None:
    """A repeated create that returns the first response, not the current stack."""
    create, responses = repository.create, {}

    def wrong(session: Any, actor: Any, key: str, configuration: Any) -> tuple[repository.Stack, bool]:
        stack, created = create(session, actor, key, configuration)
        if created:
            responses[actor.manager_id, key] = stack
        return responses.get((actor.manager_id, key), stack), created

    patch(repository, "create", wrong)


def doubled_create(patch: Patch) -> None:
    """A create that ignores its key."""
    create = repository.create

    def wrong(session: Any, actor: Any, key: str, configuration: Any) -> tuple[repository.Stack, bool]:
        return create(session, actor, f"{key} {uuid4()}", configuration)

    patch(repository, "create", wrong)


def reread_response(patch: Patch) -> None:
    """An update whose response is a second read of the stack."""
    update = repository.update

    def wrong(session: Any, actor: Any, stack_id: str, changes: Any) -> repository.Stack:
        update(session, actor, stack_id, changes)
        sleep(_WINDOW)
        session.planned_read = repository.plan_get(stack_id)
        return repository.get(session, actor.manager_id)

    patch(repository, "update", wrong)


def response_before_commit(patch: Patch) -> None:
    """An update that is acknowledged while its transaction is still open."""
    update = repository.update

    def wrong(session: Any, actor: Any, stack_id: str, changes: Any) -> repository.Stack:
        connections = session._connections
        connection = session._connection = session._connection or connections.acquire(float("inf"))
        connection.execute(b"BEGIN")

        def commit() -> None:
            connection.execute(b"COMMIT")
            connections.release(connection)

        try:
            return update(session, actor, stack_id, changes)
        finally:
            session._connection = None
            threading.Timer(_WINDOW, commit).start()

    patch(repository, "update", wrong)


def missing_tenant_filter(patch: Patch) -> None:
    """A read by the stack's id alone."""
    text = repository._GET.text.replace(b"manager_id = $1::uuid", b"$1::uuid IS NOT NULL")
    assert text != repository._GET.text
    patch(repository, "_GET", dataclasses.replace(repository._GET, name="stack_get_of_anybody", text=text))


# Each with the rule that is to find it.
MISTAKES = (
    (stale_copy, "R1"),
    (stale_cache, "R4"),
    (replayed_response, "R8"),
    (doubled_create, "R6"),
    (reread_response, "R3"),
    (response_before_commit, "R4"),
    (missing_tenant_filter, "R7"),
)
