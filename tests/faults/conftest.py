"""Fixture: a PostgreSQL for the cells of a run."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import FaultyPostgres, faulty_postgres


@pytest.fixture(scope="session")
def fault_server() -> Iterator[FaultyPostgres]:
    with faulty_postgres() as server:
        yield server
