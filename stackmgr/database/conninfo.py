"""The connection string: the operator's, completed by the settings on which the service relies."""

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.errors import DatabaseError

_SETTINGS = statements.load("session_settings")

# Shares of a session's deadline.  The server must time out before its client, so that the outcome
# is known; a lock before the statement, so that the log says what blocked it.
_LOCK_TIMEOUT = 0.3
_STATEMENT_TIMEOUT = 0.6

# Every setting on which the meaning of a statement, the form of a value or an outcome depends.
# They are start-up options, because server, database and login may each have another default.  Two
# are left to the DBA: default_transaction_read_only, which stops writes on purpose (25006), and
# session_replication_role, which an ordinary login may not set (`preflight` checks it).
SERVER_SETTINGS = {
    # What a statement means.
    "search_path": "pg_catalog",  # the files qualify every name of their own
    "standard_conforming_strings": "on",  # off: no backslash in a literal, and no U&'', means itself
    "transform_null_equals": "off",  # on: "= NULL" becomes "IS NULL"
    "row_security": "on",  # off: a policy, if a DBA adds one, makes statements fail
    "default_transaction_isolation": "read committed",  # otherwise a lost race is an error, not a retry
    "default_transaction_deferrable": "off",  # on: some transactions wait for others to end
    # What a value looks like, both ways.
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",  # on: the definitions that `check` compares are others
    # When a statement counts as done.
    "synchronous_commit": "on",
    "client_min_messages": "warning",  # error: hides that the wait for a standby was cancelled
    "exit_on_error": "off",  # on: every error ends the connection
    # A worker that died must not leave a statement that waits for a lock and then writes.
    "client_connection_check_interval": "500ms",
    "jit": "off",
}
SERVICE_ROLE = "stackmgr_app"
# What the connection string may set to another value: its options come after these.
DEFAULT_SETTINGS = {
    # A page must come from its index whatever the statistics say, and no execution pays for
    # planning.  Citus needs auto: it plans for the values of parameters (0A000).
    "plan_cache_mode": "force_generic_plan",
    # Such a plan is kept until the next ANALYZE.  Made while a table has a few pages, it reads all
    # of them, in foreign key checks too, or sorts all stacks of a manager, until then.
    "enable_seqscan": "off",
    "enable_sort": "off",
}
# Operators' statements scan and sort tables, and Citus keeps no generic plan.
_WITHOUT_KEPT_PLANS = {"enable_seqscan": "on", "enable_sort": "on"}
# libpq sends these variables' values behind the options, so that they would win.
_OVERRIDING_VARIABLES = ("PGDATESTYLE", "PGTZ", "PGGEQO")
_SECRETS = {"PGPASSWORD", "PGPASSFILE"}

# What the operator's own connection string sets besides may be beyond the role's rights.
_VERIFIED = {*SERVER_SETTINGS, *DEFAULT_SETTINGS, "role", "lock_timeout", "statement_timeout"}
_OPTION = re.compile(r"-c ((?:\\.|\S)+)")
_VERIFICATION_SECONDS = 2.0

CLIENT_SETTINGS = {
    "application_name": "stackmgr",
    "connect_timeout": "2",
    "keepalives_idle": "10",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "4000",
}


def completed_conninfo(url: str, role: str | None, deadline: float) -> str:
    """Return *url* completed by what the service relies on.

    What *url* says of the client side, or of DEFAULT_SETTINGS, stays.  Connections assume *role* if
    given.  Their statements have shares of *deadline* seconds; 0 is no limit.
    """
    server_settings = {
        **({"role": role} if role else {}),
        "lock_timeout": f"{deadline * _LOCK_TIMEOUT * 1000:.0f}ms",
        "statement_timeout": f"{deadline * _STATEMENT_TIMEOUT * 1000:.0f}ms",
        **SERVER_SETTINGS,
    }
    own = str(conninfo_to_dict(url).get("options") or "")
    keeps_plans = role == SERVICE_ROLE and "plan_cache_mode" not in own
    defaults = DEFAULT_SETTINGS | ({} if keeps_plans else _WITHOUT_KEPT_PLANS)
    options = [_options(defaults), own, _options(server_settings)]
    return make_conninfo("", **(client_settings(url) | {"options": " ".join(filter(None, options))}))


def client_settings(url: str) -> dict[str, Any]:
    """Return the parameters of *url*, completed by those of the client side.

    Where *url* names a host, no PGHOSTADDR or PGPORT leads to another server.  Variables that set
    the session are removed from the environment of this process.
    """
    for name in _OVERRIDING_VARIABLES:
        os.environ.pop(name, None)
    given = conninfo_to_dict(url)
    place = {"hostaddr": "", "port": ""} if given.keys() & {"host", "hostaddr"} else {}
    own = os.environ.get("PGSSLCERT") or os.path.expanduser("~/.postgresql/postgresql.crt")  # noqa: PTH111
    # libpq gives up TLS if the folder of this file may not be entered.
    certificate = {} if os.path.exists(own) else {"sslcert": f"{os.devnull}/none"}  # noqa: PTH110
    return CLIENT_SETTINGS | {"options": ""} | place | certificate | given | {"client_encoding": "UTF8"}


def completing_variables(url: str, environ: Mapping[str, str]) -> list[str]:
    """Return the variables by which libpq completes *url*, except those of a password."""
    known = client_settings(url)
    left = {
        str(each.envvar, "ascii")
        for each in Conninfo.get_defaults()
        if each.envvar and str(each.keyword, "ascii") not in known
    }
    return sorted((left - _SECRETS) & environ.keys())


def _options(settings: Mapping[str, str]) -> str:
    return " ".join("-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in settings.items())


class SessionSettingsError(psycopg.OperationalError):
    """The session has other settings than it requested; the message names them."""


def requested(options: str) -> dict[str, str]:
    """Return the settings in libpq's *options* on which the service relies; the last wins."""
    pairs = (re.sub(r"\\(.)", r"\1", option).partition("=") for option in _OPTION.findall(options))
    return {name: value for name, _, value in pairs if name in _VERIFIED}


def verify_settings(connection: DatabaseConnection) -> None:
    """Close *connection* and raise SessionSettingsError if it lacks a setting of its options.

    PostgreSQL applies the options or rejects the connection.  PgBouncer rejects it too, unless it
    is set to ignore them: then the server session behind it keeps its own role, timeouts and others.
    """
    settings = json.dumps(requested(connection.pgconn.options.decode()))
    try:
        rows = connection.run(
            execution(_SETTINGS, {"settings": settings}), time.monotonic() + _VERIFICATION_SECONDS
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
