"""Is this database one the service can be right on?  Asked at start, and by `stackmgr check`.

A problem stops the start.  A database that cannot be reached is not one: it may come back, and until it does
every request is answered with 503.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from stackmgr.database import migrations, statements

_FACTS = statements.load("server_facts")
_AS_SERVICE = b"SET ROLE stackmgr_app"

OLDEST_SERVER = 150000
CLOCK_TOLERANCE = timedelta(seconds=5)


@dataclass
class Findings:
    """What was found; each entry is a sentence for the operator, without a secret in it."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reachable: bool = True


def examine(url: str) -> Findings:
    """Return what is wrong with the database behind *url*, looked at with its login's own rights."""
    findings = Findings()
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=2) as connection:
            facts: Any = connection.cursor(row_factory=namedtuple_row).execute(_FACTS.text).fetchone()
            _examine_server(facts, findings)
            _examine_login(facts, findings)
            if facts.schema_exists and facts.role_allowed:
                connection.execute(_AS_SERVICE)
                _examine_schema(connection, findings)
    except psycopg.Error as ex:
        findings.reachable = False
        findings.warnings.append(f"the database cannot be asked: {ex.diag.message_primary or ex}")
    return findings


def _examine_server(facts: Any, findings: Findings) -> None:
    if facts.server_version < OLDEST_SERVER:
        findings.problems.append("PostgreSQL 15 or newer is needed")
    if facts.server_encoding != "UTF8":
        findings.problems.append(f"the database's encoding is {facts.server_encoding}; it must be UTF8")
    for setting in ("fsync", "full_page_writes"):
        if not getattr(facts, setting):
            findings.problems.append(f"{setting} is off: a crash could lose what was acknowledged")
    if not facts.takes_writes:
        findings.warnings.append("the server takes no writes (a standby, or default_transaction_read_only)")
    if abs(facts.clock - datetime.now(UTC)) > CLOCK_TOLERANCE:
        findings.warnings.append("this machine's clock and the server's differ by more than 5 seconds")


def _examine_login(facts: Any, findings: Findings) -> None:
    if not facts.schema_exists:
        findings.problems.append("there is no schema in the database: run 'stackmgr migrate'")
    elif not facts.role_exists or not facts.role_allowed:
        findings.problems.append("the login may not assume stackmgr_app: GRANT stackmgr_app TO it")
    if facts.login_is_superuser:
        findings.warnings.append("the login is a superuser: the service needs no more than stackmgr_app")
    elif facts.login_is_owner:
        findings.warnings.append("the login may assume stackmgr_owner: the service needs stackmgr_app only")


def _examine_schema(connection: psycopg.Connection[Any], findings: Findings) -> None:
    applied = migrations.applied_versions(connection)
    for migration in migrations.available():
        checksum = applied.pop(migration.version, None)
        if checksum is None:
            findings.problems.append(f"migration {migration} is not applied: run 'stackmgr migrate'")
        elif checksum != migration.checksum:
            findings.problems.append(f"migration {migration} differs from the one that was applied")
    if applied:
        findings.warnings.append(f"the schema is newer than this version of the service: {max(applied):04d}")
