"""Whether writes work: do what the service does, as its role, in a transaction that is rolled back.

What such a transaction cannot show, a commit that waits for a standby, an empty message shows.
"""

import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.raw_cursor import RawCursor

from stackmgr.access import api_keys, managers
from stackmgr.access.verifiers import Identity
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection, Parameters, execution
from stackmgr.database.session import Planned
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError, ServiceError, Unauthorized
from stackmgr.limits import LONGEST_KEY_BYTES, TOKEN_COUNT, TOTAL_BPS
from stackmgr.stacks import cursor, repository
from stackmgr.stacks.configuration import Configuration

_COMMIT = statements.load("commit_probe")
_OF_KEYS = [statements.load(f"api_key_{name}") for name in ("use_record", "quota_consume", "quota_peek")]
_SHOWN = 2 + len(Configuration._fields)  # columns of a stack: ids and configuration
# What a commit checks.
_CHECK_DEFERRED = b"SET CONSTRAINTS ALL IMMEDIATE"

# A name that no btree holds, and all tokens that an allocation may have.
_LONG_NAME_BYTES = 60_000
_ITEMS = ((f"{number:040x}", 0 if number else TOTAL_BPS) for number in range(TOKEN_COUNT))
_ALLOCATION = ",".join(f'{{"token_address":"0x{token}","weight_bps":{bps}}}' for token, bps in _ITEMS)


class _Probe:
    """A manager's requests.  It has the methods of a session that the service's functions call."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._identity = Identity(f"stackmgr check {uuid4()}", str(uuid4()))
        self.operation = ""

    def rows(self, statement: Statement, parameters: Parameters, *, max_rows: Any = None) -> list[Any]:
        """Run *statement* and return its rows."""
        values = [parameters[name] for name in statement.parameters]
        return RawCursor(self._connection).execute(statement.text, values, prepare=False).fetchall()

    def row(self, statement: Statement, parameters: Parameters, *, max_rows: Any = None) -> Any:
        """Run *statement* and return its first row, or None."""
        return next(iter(self.rows(statement, parameters)), None)

    def _run(self, planned: Planned) -> list[Any]:
        rows = self.rows(planned.statement, {**planned.parameters, **self._identity.parameters()})
        return [planned.row(*row) for row in rows]

    def _create(self, key: str, sent: Configuration) -> tuple[repository.Stack, bool]:
        return repository.create(self._run, repository.plan_create(key, sent, "stackmgr check"))

    def send(self) -> None:
        """Run all operations.  Raises psycopg.Error, ServiceError, or ValueError for another result."""
        session: Any = self
        self.operation = "the verification of a key"
        with suppress(Unauthorized):
            DatabaseVerifier().verify(api_keys.generate(), session)
        key = {"key_digest": secrets.token_bytes(32), "quota_id": str(uuid4()), "quota_seconds": 1}
        for statement in _OF_KEYS:
            self.rows(statement, key)
        self.operation = "the first request of a manager"
        self._identity = replace(self._identity, manager_id=managers.bind(session, self._identity))
        self.operation = "a create"
        name = secrets.token_hex(_LONG_NAME_BYTES // 2)
        sent = Configuration(name=name, allocation=f"[{_ALLOCATION}]", preset="hourly")
        created = self._create("k" * LONGEST_KEY_BYTES, sent)
        of_same_name = self._create("another", sent)
        self._compare([created[0][2:_SHOWN], created[1], of_same_name[1]], [sent, True, True])
        self.operation = "the retry of a create"
        self._compare(self._create("k" * LONGEST_KEY_BYTES, sent)[0][:_SHOWN], created[0][:_SHOWN])
        self.operation = "an update"
        stack_id, changes = created[0].stack_id, {"name": "stackmgr check", "preset": "monthly"}
        planned = repository.plan_update(stack_id, changes, "stackmgr check")
        updated = repository.get_or_update(self._run, planned)
        self._compare(updated[2:_SHOWN], sent._replace(**changes))
        self.operation = "a get"
        found = repository.get_or_update(self._run, repository.plan_get(stack_id))
        self._compare(found[:_SHOWN], updated[:_SHOWN])
        self.operation = "a list"
        page, _ = repository.list_page(self._run, repository.plan_list(cursor.START, 2))
        self._compare(
            sorted(stack[:_SHOWN] for stack in page), sorted([updated[:_SHOWN], of_same_name[0][:_SHOWN]])
        )
        self.operation = "the commit of a write"
        self._connection.execute(_CHECK_DEFERRED)

    def _compare(self, found: Any, expected: Any) -> None:
        if found != expected:
            raise ValueError


def problems(connection: DatabaseConnection, seconds: float) -> list[str]:
    """Return why requests would fail, as the service's role on *connection*, or an empty list.

    A commit may take *seconds*.  Nothing is left but the dead rows of two stacks.
    """
    probe = _Probe(connection)
    try:
        with connection.transaction(force_rollback=True):
            probe.send()
    except psycopg.Error as ex:
        reason = f"({ex.sqlstate}): {ex.diag.message_primary or 'no connection'}"
        return [f"{probe.operation} fails {reason}; the statement and its context are in the server's log"]
    except (ServiceError, ValueError):
        return [f"{probe.operation} has another result than was sent: see the tables' triggers and rules"]
    cancel = connection.pgconn.get_cancel()
    try:
        connection.run(execution(_COMMIT, {}), time.monotonic() + seconds)
    except DatabaseError as ex:
        cancel.cancel()  # the server would wait without its client
        waited = f"within {seconds:g} s" if ex.sqlstate is None else f"({ex.sqlstate})"
        return [f"no commit is confirmed {waited}: see synchronous_standby_names and pg_stat_replication"]
    return []
