"""`stackmgr migrate`: apply the files of `sql/migrations` in order, each once, online.

deploy/DATABASE.md says how it waits for locks.  A file runs in one transaction, statement by
statement: Citus parses some strings a second time.

A file with the line `-- transaction: none` runs without one, for `CREATE INDEX CONCURRENTLY`, as
stackmgr_owner.  After a failure all its statements run again, so each must be repeatable: drop the
index if it exists, which also removes an invalid one, then create it.

A constraint on a large table takes two files: `ADD CONSTRAINT ... NOT VALID` locks the table for a
moment, then `VALIDATE CONSTRAINT` scans the table and blocks no request.
"""

import argparse
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from stackmgr import __version__, paths
from stackmgr.database import statements
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.errors import CommandError
from stackmgr.operate.command import Commands, add_command, database_url, print_note, whole_number
from stackmgr.operate.operator import OWNER, Rejected, assume, connect

_BLOCKERS = statements.load("migration_blockers")
_HISTORY_EXISTS = statements.load("migration_history_exists")
_LIST = statements.load("migration_list")
_LOCK = statements.load("migration_lock")
_READINESS = statements.load("readiness")
_RECORD = statements.load("migration_record")

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_NO_TRANSACTION = re.compile(rb"^-- transaction: none$", re.MULTILINE)
_COMMENT = re.compile(rb"--[^\n]*")
# All up to a semicolon outside of comments, strings, quoted names and dollar quotes.
_STATEMENT = re.compile(rb"""(?:--[^\n]*|'[^']*'|"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|[^;])+""", re.DOTALL)

# The total time of all retries.
DEFAULT_WAIT_SECONDS = 300.0
_PAUSE_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
_RETRIABLE = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_UNDEFINED = (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)

_LIMIT_WAIT_FOR_RUN = b"SET lock_timeout = '60s'"
# Far below the service's own lock_timeout, 1.5 s by default.
_LIMIT_WAIT_FOR_TABLE = b"SET lock_timeout = '250ms'"
# CONCURRENTLY waits for transactions, but no request waits for it.
_NO_WAIT_LIMIT = b"SET lock_timeout = 0"
_RESET_OWNER = b"RESET ROLE"
# Pauses and the build of an index outlast a server's limits.  Citus: an ALTER TABLE of several shards
# must not use several connections; PostgreSQL ignores that.
_SESSION = b"""
SELECT set_config(name, '0', false) FROM pg_settings
WHERE name ~ '^(idle_(in_transaction_)?session|transaction)_timeout$';
SET citus.multi_shard_modify_mode = 'sequential'
"""
_BACKEND_PID = b"SELECT pg_backend_pid()"

Connection = psycopg.Connection[TupleRow]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Migration:
    version: int
    slug: str
    text: bytes

    @property
    def checksum(self) -> bytes:
        return hashlib.sha256(self.text).digest()

    @property
    def parts(self) -> list["Migration"]:
        texts = (match[0].strip() for match in _STATEMENT.finditer(self.text))
        return [replace(self, text=text) for text in texts if _COMMENT.sub(b"", text).strip()]

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.slug}"


def available() -> list[Migration]:
    found = []
    for path in sorted((paths.directory("sql") / "migrations").glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise CommandError(
                f"the file {path.name} of this release is not named NNNN_slug.sql: install the release again"
            )
        found.append(Migration(int(match[1]), match[2], path.read_bytes()))
    return found


def has_history(connection: Connection) -> bool:
    """Whether any migration was ever applied here.  Every login may read that.  Raises Rejected."""
    row: Any = connection.execute(_HISTORY_EXISTS.text).fetchone()
    if row == (True, False):
        raise Rejected("another service has the table stackmgr.schema_migrations: name another database")
    return bool(row[0])


def applied_versions(connection: Connection) -> dict[int, bytes]:
    """Return the versions applied to this database, each with its checksum."""
    return dict(connection.execute(_LIST.text).fetchall()) if has_history(connection) else {}


def differences(applied: Mapping[int, bytes]) -> list[str]:
    """Return a sentence for the first migration that differs from the one that was applied."""
    return [
        f"migration {each} is not the one that this database has: migrate a new database and copy the data"
        for each in available()
        if applied.get(each.version, each.checksum) != each.checksum
    ][:1]


def _pending(connection: Connection) -> list[Migration]:
    brought = available()
    with connection.transaction():
        # The login may be one that has the owner's rights only while it assumes the owner's role.
        if has_history(connection):
            assume(connection, OWNER, local=True)
        applied = applied_versions(connection)
    if differing := differences(applied):
        raise CommandError(differing[0])
    if unknown := sorted(applied.keys() - {migration.version for migration in brought}):
        raise CommandError(
            f"the database has migration {unknown[-1]:04d}, which version {__version__} does not have: run"
            " 'stackmgr migrate' of the newer version, also to grant lost privileges again"
        )
    return [migration for migration in brought if migration.version not in applied]


def apply(
    url: str, *, wait_seconds: float = DEFAULT_WAIT_SECONDS, report: Report = lambda _: None
) -> list[Migration]:
    """Apply the pending migrations and return them.

    Retries for *wait_seconds* where a lock is not available, and reports each time what holds it.
    Raises CommandError; what was applied before that stays.
    """
    deadline = time.monotonic() + wait_seconds
    done: list[Migration] = []
    current = ""
    try:
        conninfo = completed_conninfo(url, None, deadline=0)
        with connect(conninfo, Connection, cursor_factory=psycopg.RawCursor) as connection:
            _require_direct(connection)
            connection.execute(_SESSION)
            _lock(connection)
            for migration in _pending(connection):
                current = f"migration {migration}: "
                if _NO_TRANSACTION.search(migration.text):
                    _apply_without_transaction(connection, migration, report)
                else:
                    _apply_in_transaction(connection, migration, deadline, report)
                done.append(migration)
            current = ""
            _restore_privileges(connection, report)
    except psycopg.Error as ex:
        applied = f" (applied before that: {', '.join(map(str, done))})" if done else ""
        reason = " ".join((ex.diag.message_primary or str(ex)).split()).rstrip(".")
        again = ": run 'stackmgr migrate' again" if connection.broken else ""
        raise CommandError(f"{current}{reason}{applied}{again}") from ex
    return done


def _require_direct(connection: Connection) -> None:
    """Raise CommandError behind a pooler, which would keep the session's lock and settings.

    A pooler gives its clients process ids of its own.
    """
    row: Any = connection.execute(_BACKEND_PID).fetchone()
    if row[0] != connection.info.backend_pid:
        raise CommandError("STACKMGR_DATABASE_URL leads to a pooler: name PostgreSQL's own host and port")


def _lock(connection: Connection) -> None:
    connection.execute(_LIMIT_WAIT_FOR_RUN)
    try:
        connection.execute(_LOCK.text)
    except psycopg.errors.LockNotAvailable as ex:
        raise CommandError(f"another session has the lock of migrations: {_blockers(connection)}") from ex


def _apply_in_transaction(
    connection: Connection, migration: Migration, deadline: float, report: Report
) -> None:
    """Apply one file, all of it or nothing, and repeat it while its locks are not available."""
    connection.execute(_LIMIT_WAIT_FOR_TABLE)
    for attempt in itertools.count():
        try:
            with connection.transaction():
                _run(connection, migration)
        except _RETRIABLE:
            pause = _PAUSE_SECONDS[min(attempt, len(_PAUSE_SECONDS) - 1)]
            gives_up = time.monotonic() + pause > deadline
            plan = "giving up, run it again later or with --wait" if gives_up else f"retrying in {pause:g} s"
            report(f"migration {migration} did not get its locks: {_blockers(connection)}; {plan}")
            if gives_up:
                raise
            time.sleep(pause)
        else:
            return


def _apply_without_transaction(connection: Connection, migration: Migration, report: Report) -> None:
    connection.execute(_NO_WAIT_LIMIT)
    report(f"migration {migration} runs without a transaction: {_blockers(connection)}")
    assume(connection, OWNER)
    _run(connection, migration)
    connection.execute(_RESET_OWNER)


def _restore_privileges(connection: Connection, report: Report) -> None:
    """Repeat the grants and revokes of the files, if the service's role lacks any privilege."""
    if not (lacked := _missing_privileges(connection)):
        return
    with connection.transaction():
        assume(connection, OWNER, local=True)
        for part in itertools.chain.from_iterable(migration.parts for migration in available()):
            if _COMMENT.sub(b"", part.text).strip().startswith((b"GRANT ", b"REVOKE ")):
                # A later file may have dropped the object.
                with suppress(*_UNDEFINED), connection.transaction():
                    connection.execute(part.text)
    if missing := _missing_privileges(connection):
        raise CommandError(f"stackmgr_app still lacks {missing}: let stackmgr_owner own it")
    report(f"stackmgr_app lacked {lacked}: it is granted again")


def _missing_privileges(connection: Connection) -> str | None:
    with connection.transaction():
        assume(connection, OWNER, local=True)
        row: Any = connection.execute(_READINESS.text).fetchone()
    return str(row[-1]) if row[-1] else None


def _run(connection: Connection, migration: Migration) -> None:
    for part in migration.parts:
        connection.execute(part.text)
    assume(connection, OWNER, local=True)
    connection.execute(_RECORD.text, [migration.version, migration.slug, migration.checksum])


def _blockers(connection: Connection) -> str:
    """Return the sessions that hold a lock of migrations or on the tables, as one clause."""
    found = ", ".join(blocker for (blocker,) in connection.execute(_BLOCKERS.text))
    return f"blocked by {found}" if found else "this login sees no other transaction on the tables"


def _migrate(arguments: argparse.Namespace) -> None:
    def report(text: str) -> None:
        print_note(f"stackmgr: {text}")

    for migration in apply(database_url(), wait_seconds=arguments.wait, report=report):
        print(f"applied {migration}")
    print("the schema is up to date")


def add_to(commands: Commands) -> None:
    summary = "bring the schema of the database up to date"
    parser = add_command(commands, "migrate", summary, _migrate, has_json=False)
    parser.add_argument(
        "--wait",
        type=whole_number(0, 999_999),
        default=DEFAULT_WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to retry while another transaction, such as pg_dump's, locks a table (default 300)",
    )
