"""The connection string: what the operator gives, completed by what the service relies on."""

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

# Shares of a session's deadline.  The server is to give up before its client does, so that the outcome is
# known; and waiting for a lock before it gives up the statement, so that the log says what was in the way.
_LOCK_TIMEOUT = 0.3
_STATEMENT_TIMEOUT = 0.6

# Given as start-up options, because defaults of the login or of the database would otherwise win.
_SERVER_SETTINGS = {
    "search_path": "pg_catalog",
    "TimeZone": "UTC",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read\\ committed",
    # A worker that died must not leave its statement waiting for a lock and then writing, unobserved.
    "client_connection_check_interval": "500ms",
    # A page must come from its index whatever the statistics say, and no execution pays for planning.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
INVALID_DATABASE_URL = (
    "STACKMGR_DATABASE_URL is not a valid PostgreSQL connection string"
    " (in a URL, percent-encode what is special in a password)"
)

_PORTS = re.compile(r"[0-9,]*")

_CLIENT_SETTINGS = {
    "application_name": "stackmgr",
    "client_encoding": "UTF8",
    "connect_timeout": "2",
    "keepalives_idle": "10",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "4000",
}


def is_conninfo(url: str) -> bool:
    """Whether *url* is a connection string.  libpq's own complaint would repeat the text, password included.

    libpq also accepts a password with a bare @ or / in it, takes the rest of it for a host or a port, and
    shows that in every message about the connection; and a stray line feed, for part of a name.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.ProgrammingError, UnicodeEncodeError):
        return False
    return (
        bool(url.strip())
        and all(value.isprintable() for value in given.values())
        and not any("@" in host[1:] for host in given.get("host", "").split(",") if not host.startswith("/"))
        and bool(_PORTS.fullmatch(given.get("port", "")))
    )


def completed_conninfo(url: str, role: str, deadline: float) -> str:
    """Return *url* completed by what the service relies on; what *url* says of the client side stays."""
    given = conninfo_to_dict(url)
    server_settings = {
        "role": role,
        "lock_timeout": f"{deadline * _LOCK_TIMEOUT * 1000:.0f}ms",
        "statement_timeout": f"{deadline * _STATEMENT_TIMEOUT * 1000:.0f}ms",
    } | _SERVER_SETTINGS
    options = " ".join(f"-c {name}={value}" for name, value in server_settings.items())
    merged = _CLIENT_SETTINGS | given | {"options": f"{given.get('options') or ''} {options}".strip()}
    return make_conninfo("", **merged)
