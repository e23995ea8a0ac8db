"""What a worker does wrong: it spins at a signal, or has a mutant.  The stage's settings install it."""

import os
import signal
from typing import NoReturn

SPIN = signal.SIGRTMIN
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
    """Let this worker spin at the signal, and make the mistake that `FAULTS_MUTANT` names."""
    signal.signal(SPIN, _spin)
    if mutant := os.environ.get("FAULTS_MUTANT"):
        from tests.faults import mutants  # noqa: PLC0415 - which no other worker needs

        mutants.plant(mutant)
