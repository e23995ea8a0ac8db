"""Which texts are taken for a connection string, and what the service adds to one."""

import os
import socket
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, PGconn

from stackmgr.database.conninfo import client_settings, completed_conninfo, completing_variables, requested
from stackmgr.settings import OPTIONS

VALID = [
    "postgresql://", "postgresql://user:p%40ss%2F%3F@db.example:5433/stackmgr?sslmode=verify-full",
    "postgresql://user@first,second:5433/stackmgr?target_session_attrs=primary",
    "postgresql://[::1]:5432/stackmgr", "postgresql:///stackmgr?host=/var/run/postgresql,/run/p%40",
    "host=@abstract dbname=stackmgr", "host=localhost user=me password='a b@c/d' dbname=stackmgr",
    "host=localhost\nuser=me\n",
]  # fmt: skip
INVALID = [
    " ", "localhost:5432/stackmgr", "jdbc:postgresql://localhost/stackmgr?user=me",
    '"postgresql://localhost/stackmgr"', "postgresql://localhost/stackmgr?unknown=1",
    "postgresql://user:100%secret@localhost/stackmgr", "postgresql://user:p@ssword@localhost/stackmgr",
    "postgresql://user:p@a@first,second/stackmgr", "postgresql://user:p@first,a@second/stackmgr",
    "postgresql://user:pass/word@localhost/stackmgr", "postgresql://localhost/stackmgr\n",
    "postgresql://localhost/stack%00mgr",
    "postgresql://user:secret\udcff@localhost/stackmgr", "host=localhost user", "service=stackmgr",
]  # fmt: skip


def is_conninfo(text: str) -> bool:
    return bool(OPTIONS["database_url"].read({"STACKMGR_DATABASE_URL": text}, []))


def test_only_these_are_connection_strings():
    assert [text for text in VALID + INVALID if is_conninfo(text)] == VALID


@pytest.mark.parametrize(("given", "found"), [("", "/dev/null/none"), ("?sslcert=mine", "mine")])
def test_closed_home_costs_no_encryption(monkeypatch, given, found):
    """libpq gives TLS up if it may not look for the certificate of a client there."""
    monkeypatch.setattr("os.stat", Mock(side_effect=PermissionError))
    assert conninfo_to_dict(completed_conninfo(f"postgresql://h/d{given}", None, 5.0))["sslcert"] == found


@pytest.mark.parametrize("name", ["PGSSLCERT", "HOME"])
def test_a_clients_certificate_is_kept(monkeypatch, tmp_path, name):
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql/postgresql.crt").touch()  # libpq's default in HOME
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv(name, str(tmp_path))
    assert "sslcert" not in conninfo_to_dict(completed_conninfo("postgresql://h/d", None, 5.0))


# Of each variable of libpq, a value that changes or prevents a connection, and what it does here.
VARIABLES = {
    # Nothing: the connection string or the service says it.
    "PGHOST": ("/nowhere", "none"), "PGHOSTADDR": ("127.0.0.1", "none"), "PGPORT": ("1", "none"),
    "PGUSER": ("nobody", "none"), "PGDATABASE": ("nothing", "none"), "PGPASSWORD": ("wrong", "none"),
    "PGPASSFILE": ("/nowhere", "none"), "PGAPPNAME": ("other", "none"), "PGCONNECT_TIMEOUT": ("x", "none"),
    "PGOPTIONS": ("-c nothing.x", "none"), "PGCLIENTENCODING": ("LATIN1", "none"),
    "PGDATESTYLE": ("German", "none"), "PGTZ": ("Asia/Tokyo", "none"), "PGGEQO": ("x", "none"),
    # What the connection string leaves out, as libpq documents.
    "PGSSLCERT": (os.devnull, "named"), "PGSSLKEY": ("/nowhere", "named"), "PGSSLMODE": ("x", "named"),
    "PGSSLROOTCERT": ("/nowhere", "named"), "PGSSLCRL": ("/nowhere", "named"), "PGSSLCRLDIR": ("/", "named"),
    "PGSSLCERTMODE": ("x", "named"), "PGSSLCOMPRESSION": ("1", "named"), "PGSSLSNI": ("0", "named"),
    "PGSSLNEGOTIATION": ("direct", "named"), "PGSSLMINPROTOCOLVERSION": ("x", "named"),
    "PGSSLMAXPROTOCOLVERSION": ("x", "named"), "PGMINPROTOCOLVERSION": ("x", "named"),
    "PGMAXPROTOCOLVERSION": ("x", "named"), "PGREQUIREPEER": ("x", "named"),
    "PGREQUIREAUTH": ("md5", "named"),
    "PGCHANNELBINDING": ("require", "named"), "PGGSSENCMODE": ("x", "named"), "PGGSSLIB": ("x", "named"),
    "PGGSSDELEGATION": ("1", "named"), "PGKRBSRVNAME": ("x", "named"),
    "PGTARGETSESSIONATTRS": ("standby", "named"), "PGLOADBALANCEHOSTS": ("random", "named"),
    "PGSERVICE": ("nothing", "rejected"),
}  # fmt: skip


def test_every_variable_of_libpq_has_a_row():
    own = {each.envvar.decode() for each in Conninfo.get_defaults() if each.envvar}
    assert own | {"PGDATESTYLE", "PGTZ", "PGGEQO"} == VARIABLES.keys()


@pytest.mark.parametrize("name", VARIABLES)
def test_no_variable_overrides_the_connection_string(server_url, monkeypatch, name):
    value, effect = VARIABLES[name]
    given = server_url.replace("&port=5432", "")
    monkeypatch.setenv(name, value)
    assert is_conninfo(given) == (effect != "rejected")
    assert completing_variables(given, os.environ) == ([] if effect == "none" else [name])
    if effect == "none":
        for text in (completed_conninfo(given, None, 5.0), make_conninfo("", **client_settings(given))):
            with psycopg.connect(text) as connection:
                assert connection.execute("SHOW TimeZone").fetchone() != ("Asia/Tokyo",)
                assert connection.execute("SHOW DateStyle").fetchone()[0].startswith("ISO")
                assert connection.info.encoding == "utf-8"


def test_the_kernel_is_told_when_a_server_is_gone():
    options = [socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"host=127.0.0.1 port={server.getsockname()[1]}"
        begun = PGconn.connect_start(completed_conninfo(url, None, 5.0).encode())
        with socket.socket(fileno=os.dup(begun.socket)) as connection:
            told = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    assert told == [4000, 10, 2, 3]  # the first, of bytes that nobody confirms, within a request's 5 s


def test_service_decides_the_servers_settings():
    for name in ("host", "hostaddr"):
        assert " port='' " in f"{completed_conninfo(f'{name}=127.0.0.1', None, 5.0)} "
    given = "postgresql://h/d?application_name=mine&options=-c%20statement_timeout%3D1h"
    completed = conninfo_to_dict(completed_conninfo(given, "stackmgr_app", 5.0))
    assert completed["application_name"] == "mine"
    assert 2 * int(completed["connect_timeout"]) < 5.0  # two hosts that do not respond
    options = completed["options"].split(" -c ")
    assert options[0] == "-c plan_cache_mode=force_generic_plan"
    assert options[1:4] == ["enable_seqscan=off", "enable_sort=off", "statement_timeout=1h"]
    assert "role=stackmgr_app" in options[4:]
    assert {"statement_timeout=3000ms", "client_connection_check_interval=500ms"} <= {*options[4:]}


@pytest.mark.parametrize(
    ("role", "given"), [("stackmgr_app", "?options=-c%20plan_cache_mode%3Dauto"), ("stackmgr_owner", "")]
)
def test_citus_and_operators_sessions_may_scan_and_sort(role, given):
    completed = conninfo_to_dict(completed_conninfo(f"postgresql://h/d{given}", role, 5.0))
    settings = requested(completed["options"])
    assert (settings["enable_seqscan"], settings["enable_sort"]) == ("on", "on")
