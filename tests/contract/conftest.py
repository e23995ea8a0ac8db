"""Fixtures of the contract tests: rejected requests, unchanged tables, concurrent transactions."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from webtest.response import TestResponse

from stackmgr.database.pool import Database
from stackmgr.http.app import create_app
from tests.support.client import Client
from tests.support.examples import configuration
from tests.support.waiting import eventually

RowCounts = Callable[[], dict[str, int]]
BLOCKED = b"SELECT FROM pg_stat_activity WHERE %s::integer = ANY (pg_blocking_pids(pid))"
# On Citus the wait may be on another node.
BLOCKED_ON_ANY_NODE = b"SELECT FROM citus_lock_waits WHERE citus_pid_for_gpid(blocking_gpid) = %s::integer"


class Rival(psycopg.Connection[Any]):
    """A connection that keeps its transaction and locks open until the test ends it."""

    def ended_before(self, send: Callable[..., TestResponse], *args: Any, watcher, end) -> TestResponse:
        """Return the response to a request that waits for the transaction until *end* is called."""
        query = BLOCKED_ON_ANY_NODE if os.environ.get("STACKMGR_TEST_CITUS") else BLOCKED
        with ThreadPoolExecutor(1) as thread:
            response = thread.submit(send, *args)
            eventually(lambda: watcher.execute(query, [self.info.backend_pid]).fetchone() is not None)
            end()
            return response.result()


@pytest.fixture
def unchanged(row_counts: RowCounts):
    """Return a function that makes a request and asserts that it left every table as it was.

    The one row that any authenticated request may add is the record of its manager.
    """

    def check(send: Callable[..., TestResponse], *args: Any, **kwargs: Any) -> TestResponse:
        before = row_counts()
        response = send(*args, **kwargs)
        after = row_counts()
        assert after["managers"] - before["managers"] in (0, 1)
        assert after | {"managers": before["managers"]} == before
        return response

    return check


@pytest.fixture
def rejected(unchanged):
    """Return a function that asserts of a request that it ends in an error, and changes nothing."""

    def check(status: int, code: str, send: Callable[..., TestResponse], *args, **kwargs) -> TestResponse:
        response = unchanged(send, *args, **kwargs)
        assert (response.status_int, response.json["code"]) == (status, code)
        return response

    return check


@pytest.fixture
def serving(database: Database, spellings: dict[str, str]):
    return lambda verifier: create_app(database=database, verifier=verifier, spellings=spellings)


@pytest.fixture
def stack(client: Client) -> dict[str, Any]:
    return client.create(configuration()).json


@pytest.fixture
def other(database_url: str) -> Iterator[Rival]:
    with Rival.connect(database_url) as connection:
        yield connection
