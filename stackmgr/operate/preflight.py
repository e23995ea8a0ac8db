"""Check that the database meets the service's requirements, at start and for `stackmgr check`.

A problem stops the start.  An unreachable database is not a problem: it may become reachable, and
until then every request returns 503.
"""

import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.raw_cursor import RawCursor
from psycopg.rows import namedtuple_row

from stackmgr import paths
from stackmgr.database import conninfo, statements
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.errors import CommandError, DatabaseError
from stackmgr.limits import LONGEST_KEY_BYTES
from stackmgr.operate import migrations
from stackmgr.operate.operator import LONGEST_CONNECT_SECONDS, NO_SCHEMA, Rejected, connect, time_limit
from stackmgr.settings import Settings

_CATALOG = statements.load("catalog")
_FACTS = statements.load("server_facts")
_READINESS = statements.load("readiness")
_COMMIT = statements.load("commit_probe")

# All that a request may run, in an order in which each finds its rows, with the longest values.
_REQUESTS = (
    "api_key_verify api_key_use_record api_key_quota_consume api_key_quota_peek manager_find manager_insert"
    " stack_create receipt_find stack_list stack_list_long_names stack_update stack_get"
)
_VALUES = dict.fromkeys(("quota_seconds", "row_limit", "name_bytes", "page_bytes"), 1) | {
    "key_digest": None,
    "input_digest": bytes(32),
    "idempotency_key": "k" * LONGEST_KEY_BYTES,
    "name": secrets.token_hex(30_000),  # no btree holds it
    "allocation": f'[{{"token_address":"0x{0:040x}","weight_bps":10000}}]',
    "preset": "hourly",
    "after_created_at": "infinity",
}
_CHECK_DEFERRED = b"SET CONSTRAINTS ALL IMMEDIATE"

# Of each fact that is false.
_PROBLEMS = {
    "is_recent": "the server is older than PostgreSQL 15: upgrade it",
    "is_utf8": "the database's encoding is not UTF8: create it anew with roles.sql",
    "fsync": "fsync is off on the server: a crash could lose acknowledged writes; turn it on",
    "full_page_writes": "full_page_writes is off on the server: a crash could lose data; turn it on",
    "rejects_damage": "zero_damaged_pages or ignore_checksum_failure is on: reads may lose rows; turn it off",
    "checks_foreign_keys": "session_replication_role is not origin: foreign keys are not checked; reset it",
    "schema_exists": NO_SCHEMA,
    "role_allowed": "the login may not assume stackmgr_app: run roles.sql, or GRANT stackmgr_app TO it",
}
_WARNINGS = {
    "takes_writes": "the server accepts no writes: it is a standby, or default_transaction_read_only is on",
    "is_encrypted": "the connection to another host is not encrypted: set sslmode=verify-full",
    "hides_parameters": "the server's log gets parameters, with Idempotency-Keys: run roles.sql again",
    "is_no_superuser": "the login is a superuser: the service needs no more than stackmgr_app",
    "is_no_owner": "the login may assume stackmgr_owner: the service needs stackmgr_app only",
}
_DISTRIBUTION = {
    False: "STACKMGR_SQL_VARIANT is citus, but the tables are not distributed: run deploy/citus.sql",
    True: "the tables are distributed: set STACKMGR_SQL_VARIANT=citus, as Citus rejects the others",
}
_NO_KEPT_PLANS = "STACKMGR_SQL_VARIANT={} needs options=-c plan_cache_mode=auto in STACKMGR_DATABASE_URL"
CLOCK_TOLERANCE = timedelta(seconds=5)


@dataclass
class Findings:
    """Findings: each entry is a sentence for the operator, without a secret in it."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reachable: bool = True


def examine(
    url: str,
    deadline: float = SESSION_SECONDS,
    *,
    variant: str = Settings.sql_variant,
    connections: int = 0,
    thorough: bool = False,
) -> Findings:
    """Return the problems of the database behind *url*, examined with its login's own rights.

    *deadline*, in seconds, and *variant* are the service's, which may open *connections* from here.
    Takes at most five seconds, because gunicorn's master waits for it.  *thorough*, for no start,
    takes longer: compare the schema and who may use it with the release's, and write as requests do.
    """
    findings = Findings()
    expected = migrations.available()
    try:
        with time_limit(LONGEST_CONNECT_SECONDS if thorough else 5.0):
            plain = conninfo.completed_conninfo(url, None, deadline)
            with connect(plain, psycopg.Connection[Any], row_factory=namedtuple_row) as connection:
                facts: Any = connection.execute(_FACTS.text).fetchone()
            _examine_server(facts, connections, findings)
            if (variant == "citus") != facts.is_distributed:
                findings.problems.append(_DISTRIBUTION[facts.is_distributed])
            if facts.schema_exists and facts.role_allowed:
                own = conninfo.completed_conninfo(url, conninfo.SERVICE_ROLE, deadline)
                with connect(own, DatabaseConnection) as service:
                    conninfo.verify_settings(service)
                    is_newer = _examine_schema(service, expected, findings)
                    plans = conninfo.requested(service.pgconn.options.decode())["plan_cache_mode"]
                    if statements.load_variant(variant) and plans == "force_generic_plan":
                        findings.problems.append(_NO_KEPT_PLANS.format(variant))
                    # Another release has other objects, and Citus distributes them.
                    if thorough and not (is_newer or findings.problems or variant != Settings.sql_variant):
                        _compare_catalog(service, findings)
                        findings.problems += _probe(service, deadline) if facts.takes_writes else []
    except psycopg.errors.InsufficientPrivilege as ex:
        findings.problems.append(f"{ex.diag.message_primary}: run 'stackmgr migrate'")
    except (Rejected, conninfo.SessionSettingsError) as ex:
        findings.problems.append(str(ex))
    except CommandError as ex:
        findings.reachable = False
        findings.warnings.append(str(ex))
    except psycopg.Error as ex:
        findings.reachable = False
        reason = " ".join((ex.diag.message_primary or str(ex)).split())
        findings.warnings.append(f"the database could not be checked: {reason}")
    return findings


def _examine_server(facts: Any, connections: int, findings: Findings) -> None:
    findings.problems += [text for fact, text in _PROBLEMS.items() if not getattr(facts, fact)]
    findings.warnings += [text for fact, text in _WARNINGS.items() if not getattr(facts, fact)]
    if facts.slow_settings:
        findings.warnings.append(f"settings of the server slow requests down: {facts.slow_settings}")
    if connections > facts.connections:
        findings.warnings.append(
            f"this host opens up to {connections} connections, and the login may have {facts.connections}:"
            " lower STACKMGR_DATABASE_CONNECTIONS"
        )
    if abs(facts.clock - datetime.now(UTC)) > CLOCK_TOLERANCE:
        findings.warnings.append(
            "this machine's clock and the server's differ by more than 5 seconds: run NTP on both"
        )


def _examine_schema(
    connection: psycopg.Connection[Any], expected: list[migrations.Migration], findings: Findings
) -> bool:
    """Return whether the schema is that of a newer release."""
    applied = migrations.applied_versions(connection)
    findings.problems += migrations.differences(applied)
    for migration in expected:
        if applied.pop(migration.version, None) is None:
            findings.problems.append(
                f"migration {migration} is not applied: run 'stackmgr migrate' of this release"
            )
    row: Any = connection.execute(_READINESS.text).fetchone() or (None,)
    if row[-1]:
        findings.problems.append(f"stackmgr_app lacks {row[-1]}: run 'stackmgr migrate'")
    if applied:
        findings.warnings.append(f"the schema is newer than this version of the service: {max(applied):04d}")
    return bool(applied)


def _compare_catalog(connection: psycopg.Connection[Any], findings: Findings) -> None:
    """Report what differs, the part of an object as `relation NAME: column NAME`."""
    text = (paths.directory("sql") / "catalog.tsv").read_text(encoding="utf-8")
    released = dict(line.split("\t") for line in text.splitlines())
    found = {name: (definition, rejects) for name, definition, rejects in connection.execute(_CATALOG.text)}
    objects = found.keys() & released.keys()
    for name in sorted(found.keys() | released.keys()):
        is_now, rejects = found.get(name, ("missing", True))
        definition = released.get(name, "has none")
        object_name, _, part = name.partition(": ")
        # Of an object that only one of them has, the parts are not reported.
        if is_now != definition and (not part or object_name in objects):
            is_problem = part != "settings" if name in released else rejects
            (findings.problems if is_problem else findings.warnings).append(
                f"the schema differs from the release's: {name}: {is_now}; the release: {definition}"
            )


def _probe(connection: DatabaseConnection, seconds: float) -> list[str]:
    """Return why requests would fail: run their statements, and roll back; a commit has *seconds*.

    Nothing is left but the dead rows of a stack, and an empty message in the WAL.
    """
    made_up = str(uuid4())  # every id
    name = ""
    try:
        with connection.transaction(force_rollback=True):
            for name in _REQUESTS.split():
                statement = statements.load(name)
                parameters = [_VALUES.get(each, made_up) for each in statement.parameters]
                RawCursor(connection).execute(statement.text, parameters, prepare=False)
            name = "the commit of a write"
            connection.execute(_CHECK_DEFERRED)
    except psycopg.Error as ex:
        if connection.broken:  # that is a limit's doing, or the network's
            raise
        return [f"requests fail in {name} ({ex.sqlstate}): {ex.diag.message_primary}; see the server's log"]
    cancel = connection.pgconn.get_cancel()
    try:
        connection.run(execution(_COMMIT, {}), time.monotonic() + seconds)
    except DatabaseError as ex:
        cancel.cancel()  # the server would wait without its client
        reason = f"within {seconds:g} s ({ex.sqlstate or ex.reason})"
        return [f"no commit is confirmed {reason}: see synchronous_standby_names and pg_stat_replication"]
    return []
