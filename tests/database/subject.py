"""The application on a PostgreSQL that a test may damage."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database import conninfo
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError
from stackmgr.http.app import create_app
from tests.support.client import Client
from tests.support.examples import configuration
from tests.support.postgres import FaultyPostgres
from tests.support.recorder import opened
from tests.support.waiting import eventually
from tests.support.workload import new_managers

# Seconds that a session may wait for the database: where that is to end, and everywhere else.
DEADLINE = 1.0
PATIENCE = 60.0
POOL_SIZE = 4


class Watcher:
    """Sees what the service's backends wait for.  Not from within a transaction, where nothing would move."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def waiting(self) -> set[int]:
        rows = self._connection.execute(
            b"SELECT pid FROM pg_catalog.pg_stat_activity WHERE application_name = 'stackmgr'"
            b" AND (wait_event_type = 'Lock' OR wait_event = 'SyncRep')"
        )
        return {pid for (pid,) in rows}

    def waiting_one(self) -> int:
        eventually(self.waiting)
        [pid] = self.waiting()
        return pid


@contextmanager
def held_row(admin: psycopg.Connection, stack_id: str) -> Iterator[None]:
    with admin.transaction():
        admin.execute(b"SELECT FROM stackmgr.stacks WHERE stack_id = %s::text::uuid FOR UPDATE", (stack_id,))
        yield


@dataclass
class Subject:
    """The application, seen by one manager who has one stack, and what there is behind it."""

    database: Database
    client: Client
    lines: list[dict[str, Any]]  # of the log, one for each request
    stack_id: str = ""

    def operations(self) -> dict[str, Callable[[], int]]:
        client, stack_id = self.client, self.stack_id
        return {
            "create": lambda: client.create(configuration()).status_int,
            "list": lambda: client.page("limit=1").status_int,
            "get": lambda: client.get(stack_id).status_int,
            "update": lambda: client.update(stack_id, {"name": "x"}).status_int,
        }

    @contextmanager
    def every_connection(self) -> Iterator[list[DatabaseConnection]]:
        held = [eventually(self._acquire) for _ in range(POOL_SIZE)]
        try:
            yield held
        finally:
            for connection in held:
                self.database.release(connection)

    def backends(self) -> list[int]:
        with self.every_connection() as held:
            return [connection.info.backend_pid for connection in held]

    def _acquire(self) -> DatabaseConnection | None:
        with suppress(DatabaseError):
            return self.database.acquire(time.monotonic() + PATIENCE)
        return None

    def create_stack(self) -> str | None:
        """Create the one stack, or find it, and return its id; None if the deadline was too short."""
        response = self.client.create(configuration(), key="the one stack")
        return response.json["id"] if response.status_int in (200, 201) else None

    def assert_complete(self) -> None:
        """Fail if a fault has cost a connection of the pool, one of its settings, or anything but itself."""
        with self.every_connection() as held:
            assert len({connection.info.backend_pid for connection in held}) == POOL_SIZE
            for connection in held:
                conninfo.verify_settings(connection)
        # One that comes back needs no replacement any more: the pool neither leaks nor grows.
        stats = self.database._pool.get_stats
        eventually(lambda: stats()["pool_available"] == POOL_SIZE)
        assert stats()["pool_size"] == POOL_SIZE
        assert self.client.get(self.stack_id).status_int == 200


@dataclass
class SubjectMaker:
    """Makes services: on the server itself, or by way of another connection string."""

    server: FaultyPostgres
    spellings: dict[str, str]
    deadline: float
    cleanup: ExitStack

    def __call__(self, url: str | None = None) -> Subject:
        [manager] = new_managers(self.server.url(), 1)
        subject = self._open(url, manager.api_key, manager.external_id, self.deadline)
        subject.stack_id = eventually(subject.create_stack) or ""
        subject.backends()
        return subject

    def again(self, subject: Subject, url: str | None = None, deadline: float | None = None) -> Subject:
        """Return a second service for the manager of *service*, without a request to the server."""
        key, external_id = subject.client.key or "", subject.client.external_id
        twin = self._open(url, key, external_id, deadline or self.deadline)
        twin.stack_id = subject.stack_id
        return twin

    def _open(self, url: str | None, key: str, external_id: str, deadline: float) -> Subject:
        pool = opened(url or self.server.url(), pool_size=POOL_SIZE, deadline=deadline)
        database = self.cleanup.enter_context(pool)
        lines: list[dict[str, Any]] = []
        parts = {"database": database, "verifier": DatabaseVerifier(), "observers": [lines.append]}
        app = create_app(spellings=self.spellings, **parts)
        return Subject(database, Client(app, key, external_id, database.names), lines)


def at_once(calls: list[Callable[[], int]]) -> list[int]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]
