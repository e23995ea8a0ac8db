"""The settings of Hypothesis, and an application that authenticates without a key.

In CI the cases are the same in every run; elsewhere each run tries others.  A failure prints the smallest
case that Hypothesis finds, and how to run it again.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

from stackmgr.access.verifiers import Identity
from stackmgr.database.pool import Database
from stackmgr.http.app import Application, create_app
from tests.support.fixed_verifier import FixedVerifier

settings.register_profile(
    "stackmgr",
    # Nothing here is about speed: the machine may be slow, and the database is a real one.
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        # A fixture of one test is shared by its cases; each case makes managers of its own instead.
        HealthCheck.function_scoped_fixture,
    ],
    # Not `explain`, which takes a minute to say what the smallest case shows.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    derandomize=os.environ.get("CI") == "true",
    database=None,
    print_blob=True,
)
settings.load_profile("stackmgr")


@dataclass(frozen=True)
class KnownClient:
    """An application that authenticates every request as one manager."""

    app: Application
    manager_id: str


@pytest.fixture
def known_client(
    database: Database, spellings: dict[str, str], admin: psycopg.Connection
) -> Iterator[Callable[[], KnownClient]]:
    """Return a function that makes such an application, with the record of its manager."""

    def make() -> KnownClient:
        manager_id, external_id = str(uuid4()), str(uuid4())
        admin.execute(
            "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) VALUES (%s, %s, %s)",
            (manager_id, external_id, external_id),
        )
        verifier = FixedVerifier(Identity(external_id, external_id, manager_id))
        return KnownClient(create_app(database=database, verifier=verifier, spellings=spellings), manager_id)

    return make
