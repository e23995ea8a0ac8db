"""Verify that a new connection has the settings that its start-up options request.

PostgreSQL applies the options or rejects the connection.  PgBouncer rejects it too, unless it is
set to ignore them: then the server session behind it keeps its own role, timeouts and others.
"""

import json
import re
import time

import psycopg

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.database.conninfo import DEFAULT_SETTINGS, SERVER_SETTINGS
from stackmgr.errors import DatabaseError

_SETTINGS = statements.load("session_settings")

# What the operator's own connection string sets besides may be beyond the role's rights.
_VERIFIED = {*SERVER_SETTINGS, *DEFAULT_SETTINGS, "role", "lock_timeout", "statement_timeout"}
_OPTION = re.compile(r"-c ((?:\\.|\S)+)")
_TIMEOUT_SECONDS = 2.0


class SessionSettingsError(psycopg.OperationalError):
    """The session has other settings than it requested; the message names them."""


def requested(options: str) -> dict[str, str]:
    """Return the settings in libpq's *options* on which the service relies; the last wins."""
    pairs = (re.sub(r"\\(.)", r"\1", option).partition("=") for option in _OPTION.findall(options))
    return {name: value for name, _, value in pairs if name in _VERIFIED}


def verify(connection: DatabaseConnection) -> None:
    """Close *connection* and raise SessionSettingsError if it lacks a setting of its options."""
    settings = json.dumps(requested(connection.pgconn.options.decode()))
    try:
        rows = connection.run(
            execution(_SETTINGS, {"settings": settings}), time.monotonic() + _TIMEOUT_SECONDS
        )
    except DatabaseError as ex:
        connection.close()  # the pool only forgets it, and a traceback may keep it
        raise SessionSettingsError(f"its settings cannot be read ({ex.sqlstate or ex.reason})") from ex
    if different := [f"{name} is {now}, not {wanted}" for name, now, wanted in rows if now != wanted]:
        connection.close()
        raise SessionSettingsError(
            f"the session has other settings than it requested: {'; '.join(different)}."
            " Behind a pooler they are its connect_query's: see deploy/pgbouncer.ini"
        )
