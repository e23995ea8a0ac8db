"""Mistakes that must be found: a worker spins at a signal, or ignores the key of a create."""

import os
import signal
from typing import Any, NoReturn
from uuid import uuid4

from stackmgr.database.session import Operation
from stackmgr.stacks import repository

SPIN = signal.SIGRTMIN
# The name of the variable that selects the mistake.
DOUBLES_CREATES = "FAULTS_DOUBLES_CREATES"
CONFIGURATION = """
def post_worker_init(worker):
    from tests.faults import misbehaviour
    misbehaviour.install()
"""


def _spin(*_: object) -> NoReturn:
    """Compute for ever: the interpreter switches threads, the worker's thread never its greenlets."""
    while True:
        pass


def install() -> None:
    signal.signal(SPIN, _spin)
    create_operation = repository.create_operation

    def operation(key: str, configuration: Any, request_id: str) -> Operation:
        return create_operation(f"{key} {uuid4()}", configuration, request_id)

    if DOUBLES_CREATES in os.environ:
        repository.create_operation = operation
