"""Applying the schema: the files of `sql/migrations`, in order, each once, each in its own transaction.

Run by the operator, never at the start of a worker.  An advisory lock lets one run at a time into a
database; a checksum of each applied file tells whether the history on disk is still the one in the database.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from stackmgr import paths
from stackmgr.database import statements

_HISTORY_EXISTS = statements.load("migration_history_exists")
_LIST = statements.load("migration_list")
_LOCK = statements.load("migration_lock")
_RECORD = statements.load("migration_record")

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

# How long to wait for another run, and then for the lock on any one table.
_WAIT_FOR_TURN = b"SET lock_timeout = '60s'"
_WAIT_FOR_TABLE = b"SET lock_timeout = '5s'"
_AS_OWNER = b"SET LOCAL ROLE stackmgr_owner"

Connection = psycopg.Connection[TupleRow]


class MigrationError(Exception):
    """The schema could not be brought up to date; the message is for the operator."""


@dataclass(frozen=True)
class Migration:
    """One file of `sql/migrations`."""

    version: int
    slug: str
    text: bytes

    @property
    def checksum(self) -> bytes:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.text).digest()

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.slug}"


def available() -> list[Migration]:
    """Return the migrations that this version of the service brings, in order."""
    found = []
    for path in sorted((paths.directory("sql") / "migrations").glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named NNNN_slug.sql")
        found.append(Migration(int(match[1]), match[2], path.read_bytes()))
    return found


def has_history(connection: Connection) -> bool:
    """Whether any migration was ever applied to this database.  Every login may ask."""
    row: Any = connection.execute(_HISTORY_EXISTS.text).fetchone()
    return bool(row[0])


def applied_versions(connection: Connection) -> dict[int, bytes]:
    """Return the versions applied to this database, each with its checksum."""
    return dict(connection.execute(_LIST.text).fetchall()) if has_history(connection) else {}


def _pending(connection: Connection) -> list[Migration]:
    brought = available()
    with connection.transaction():
        # The login may be one that has the owner's rights only while it assumes the owner's role.
        if has_history(connection):
            connection.execute(_AS_OWNER)
        applied = applied_versions(connection)
    unknown = sorted(applied.keys() - {migration.version for migration in brought})
    if unknown:
        raise MigrationError(
            f"the database has migration {unknown[-1]:04d}, which this version does not know"
        )
    for migration in brought:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise MigrationError(f"migration {migration} differs from the one that was applied")
    return [migration for migration in brought if migration.version not in applied]


def apply(url: str) -> list[Migration]:
    """Apply what is pending and return it.  Raises MigrationError; what was applied before that stays."""
    done: list[Migration] = []
    doing = ""
    try:
        with psycopg.connect(
            url, autocommit=True, connect_timeout=5, cursor_factory=psycopg.RawCursor
        ) as connection:
            connection.execute(_WAIT_FOR_TURN)
            connection.execute(_LOCK.text)
            connection.execute(_WAIT_FOR_TABLE)
            for migration in _pending(connection):
                doing = f"migration {migration}: "
                with connection.transaction():
                    connection.execute(migration.text)
                    connection.execute(_AS_OWNER)
                    connection.execute(_RECORD.text, [migration.version, migration.slug, migration.checksum])
                done.append(migration)
    except psycopg.Error as ex:
        applied = f" (applied before that: {', '.join(map(str, done))})" if done else ""
        raise MigrationError(f"{doing}{ex.diag.message_primary or ex}{applied}") from ex
    return done
