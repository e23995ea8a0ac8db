"""The history of random concurrent clients holds; with a mutant of the service, it does not."""

import os
from uuid import uuid4

import psycopg
import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.http.app import create_app
from stackmgr.operate import issued_keys
from tests.faults.mutants import MISTAKES
from tests.support import history
from tests.support.history import Violation
from tests.support.workload import Manager, Workload, application_transport

CLIENTS = 8
OPERATIONS = 60
SEEDS = int(os.environ.get("STACKMGR_HISTORY_SEEDS", "5"))


@pytest.fixture(scope="module")
def roomy_app(database_url, spellings):
    """The application with a connection for each client and room for as many."""
    database = Database(database_url, pool_size=2 * CLIENTS)
    database.open()
    yield create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
    database.close()


@pytest.fixture
def violations(roomy_app, operator, database_url):
    """Return a function that runs a workload for a seed and returns the violations found in its history."""

    def run(seed: int) -> list[Violation]:
        managers = []
        for _ in range(2):
            with operator.session() as session:
                external_id = str(uuid4())
                managers.append(Manager(external_id, issued_keys.issue(session, external_id)))
        workload = Workload(seed, managers, application_transport(roomy_app))
        workload.start(CLIENTS, operations=OPERATIONS)
        workload.join()
        ours = {manager.external_id for manager in managers}
        with psycopg.connect(database_url) as connection:
            return history.check(workload.operations, history.dump(connection, ours))

    return run


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_history_of_random_clients_is_consistent(violations, seed):
    assert violations(seed) == []


@pytest.mark.parametrize(("mistake", "rule"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_each_planted_mistake_is_found_by_its_rule(violations, monkeypatch, mistake, rule):
    mistake(monkeypatch.setattr)
    found: set[str] = set()
    for seed in range(3):
        found |= {violation.rule for violation in violations(seed)}
        if rule in found:
            return
    pytest.fail(f"only {sorted(found)} were found broken")
