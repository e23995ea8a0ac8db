"""What a worker does wrong: it spins at a signal, or makes a mistake that a service like this one can make.

The stage's settings install it.  The mistakes are races, and the checker of histories must find each.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn
from uuid import uuid4

from stackmgr.database.session import Planned
from stackmgr.scheduler import Signal
from stackmgr.stacks import repository

SPIN = signal.SIGRTMIN
CONFIGURATION = """
def post_worker_init(worker):
    from tests.faults import misbehaviour
    misbehaviour.install()
"""
# Long enough for another client to come between.
_WINDOW = 0.003

Act = Callable[[Any, Planned], repository.Stack]


def _stale_copy(act: Act, run: Any, planned: Planned) -> repository.Stack:
    """Read the stack, change the copy and write all of it back."""
    copy = act(run, repository.plan_get(planned.parameters["stack_id"]))
    Signal().wait(_WINDOW)
    given = {
        name: planned.parameters[name] or getattr(copy, name) for name in ("name", "allocation", "preset")
    }
    return act(run, planned._replace(parameters={**planned.parameters, **given}))


def _response_before_commit(act: Act, run: Any, planned: Planned) -> repository.Stack:
    """Acknowledge the update while its transaction is still open."""
    session = run.__self__.session
    connections = session._connections
    connection = session._connection = session._connection or connections.acquire(float("inf"))
    connection.execute(b"BEGIN")

    def commit() -> None:
        connection.execute(b"COMMIT")
        connections.release(connection)

    try:
        return act(run, planned)
    finally:
        session._connection = None
        threading.Timer(_WINDOW, commit).start()


_UPDATES = {"stale copy": _stale_copy, "response before commit": _response_before_commit}
# Each mistake with the rule that is to find it.
MISTAKES = {"stale copy": "R1", "doubled create": "R6", "response before commit": "R4"}


def _plant(mistake: str) -> None:
    """Let this worker make the mistake of this name."""
    plan_create, get_or_update = repository.plan_create, repository.get_or_update

    def plan(key: str, configuration: Any, request_id: str) -> Planned:
        return plan_create(f"{key} {uuid4()}", configuration, request_id)

    def run(run: Any, planned: Planned) -> repository.Stack:
        if not planned.statement.writes:
            return get_or_update(run, planned)
        return _UPDATES[mistake](get_or_update, run, planned)

    if mistake == "doubled create":  # which ignores its key
        repository.plan_create = plan
    else:
        repository.get_or_update = run


def _spin(*_: object) -> NoReturn:
    """Compute for ever: the interpreter switches threads, the worker's thread never its greenlets."""
    while True:
        pass


def install() -> None:
    """Let this worker spin at the signal, and make the mistake that `FAULTS_MISTAKE` names."""
    signal.signal(SPIN, _spin)
    if mistake := os.environ.get("FAULTS_MISTAKE"):
        _plant(mistake)
