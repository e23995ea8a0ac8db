"""Configuration: the environment, checked completely, with every problem reported at once.

The fields of `Settings` are the one table of options: variable, parser, default, description.
Parsing, `stackmgr check`, `stackmgr --help` and `deploy/stackmgr.env.example` follow it.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from stackmgr import extras, paths
from stackmgr.limits import LONGEST_REQUEST_SECONDS
from stackmgr.monitoring import logs

# Bounded, because int() rejects thousands of digits with an error of its own.
COUNT = re.compile(r"[0-9]{1,9}")
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_CREDENTIAL = re.compile(r"[\x21-\x7e]+")
_PORTS = re.compile(r"[0-9,]*")
_HTTP_URL = re.compile(
    r"https?://(?:[a-z0-9._-]+|\[([0-9a-f:.]+)\])(?::([0-9]{1,5}))?(?:/[a-z0-9/._~-]*)?",
    re.IGNORECASE | re.ASCII,
)


class SettingsError(Exception):
    """The service cannot start; `problems` has one sentence for each reason, without a secret."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Secret(str):
    """A string whose repr is masked, so that no log or traceback shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"


@dataclass(frozen=True)
class Option:
    """One variable.  *parse* returns the value of a text, or raises ValueError with the rule.

    *missing* says why it is required; *verifier* is the only verifier that reads it.
    """

    parse: Callable[[str], Any]
    default: Any
    description: str
    missing: str = ""
    verifier: str = ""
    variable: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether the value is not printed, and may be in the file that `<variable>_FILE` names."""
        return self.parse in (_conninfo, _credential)

    @property
    def default_text(self) -> str:
        if self.missing:
            return f"required with {self.verifier}" if self.verifier else "required"
        if isinstance(self.default, Path):
            return "the shipped one"
        if self.default is None:
            return "none"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def read(self, environ: Mapping[str, str], problems: list[str]) -> Any:
        """Return the value, or the default where the variable is unset, empty or wrong."""
        name = self.variable
        text: str = secret(environ, name, problems) if self.is_secret else environ.get(name, "")
        try:
            if text:
                return self.parse(text)
            if self.missing:
                raise ValueError(self.missing)  # noqa: TRY301 - both are the same problem to an operator
        except ValueError as ex:
            problems.append(f"{name} {ex}")
        return self.default


def secret(environ: Mapping[str, str], name: str, problems: list[str]) -> Secret:
    """Return the secret *name*, or the content of the file that `<name>_FILE` names, or "".

    The line feed that editors leave at the end of a file is not part of the secret.
    """
    value, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if value and path:
        problems.append(f"{name} and {name}_FILE are both set: unset one of them")
    if not path:
        return Secret(value)
    try:
        return Secret(Path(path).read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as ex:
        reason = getattr(ex, "strerror", None) or "not UTF-8"
        problems.append(f"{name}_FILE names a file that cannot be read: {reason}")
        return Secret("")


def _conninfo(text: str) -> Secret:
    """Return a connection string; libpq's own complaint would repeat the password.

    Reject an unescaped @ or / in a password: libpq takes the rest for a host or port and shows it.
    Reject a line feed, which libpq takes for part of a name.  Reject a service: what
    `completed_conninfo` adds would override the settings of its file.
    """
    with suppress(psycopg.ProgrammingError, UnicodeEncodeError):
        given = {name: str(value) for name, value in conninfo_to_dict(text).items()}
        hosts = [host for host in given.get("host", "").split(",") if not host.startswith("/")]
        if (
            not ("service" in given or "PGSERVICE" in os.environ or any("@" in host[1:] for host in hosts))
            and all(value.isprintable() for value in given.values())
            and _PORTS.fullmatch(given.get("port", ""))
            and text.strip()
        ):
            return Secret(text)
    raise ValueError(
        "is not a valid PostgreSQL connection string"
        " (percent-encode special characters of a password; write out what a service file or PGSERVICE adds)"
    )


def _credential(text: str) -> Secret:
    if not _CREDENTIAL.fullmatch(text):
        raise ValueError("must be printable ASCII without spaces")
    return Secret(text)


def _count(text: str) -> int:
    if not (COUNT.fullmatch(text) and 1 <= int(text) <= 1000):
        raise ValueError("must be a whole number from 1 to 1000")
    return int(text)


def _seconds(text: str) -> float:
    if not (_DECIMAL.fullmatch(text) and 0.1 <= float(text) <= 20.0):
        raise ValueError("must be a number of seconds from 0.1 to 20")
    return float(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of: {', '.join(choices)}")
        return text

    return parse


def _listener(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (COUNT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise ValueError("must be an address and a port, such as 127.0.0.1:9108")
    return text


def _unkey_url(text: str) -> str:
    with suppress(ValueError):  # of IPv6Address, whose text repeats what it was given
        match = _HTTP_URL.fullmatch(text)
        if match is not None and 1 <= int(match[2] or 443) <= 65535:
            IPv6Address(match[1] or "::")
            return text
    raise ValueError("must be an https (or http) address: host, port and path, nothing more")


def _option(parse: Callable[[str], Any], default: Any, description: str, **other: str) -> Any:
    option = Option(parse, default, description, **other)
    return dataclasses.field(default=default, metadata={"option": option})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration of a running service.  Times are in seconds.

    The variable of a field is its name in capitals after STACKMGR_, such as STACKMGR_DATABASE_URL.
    """

    database_url: Secret = _option(
        _conninfo,
        Secret(""),
        "PostgreSQL 15 to 18, as a libpq connection string; its options may set plan_cache_mode",
        missing="is not set: set it to a PostgreSQL connection string, as in stackmgr.env.example",
    )
    database_timeout: int = _option(_count, 5, "seconds that one request may wait for the database in total")
    sql_variant: str = _option(
        _one_of("plain", "citus"), "plain", "SQL statements: plain, or citus (deploy/CITUS.md)"
    )
    concurrency: int = _option(
        _count,
        64,
        "requests that each worker serves at once; one manager gets three quarters, writes seven eighths;"
        " with the verifier `database` at most 24",
    )
    database_connections: int = _option(_count, 8, "database connections of each worker, opened as needed")
    queue_timeout: float = _option(
        _seconds, 1.0, "seconds that a request may wait to be started before it gets 503, 0.1 to 20"
    )
    tokens: Path = _option(Path, paths.DEFAULT_WHITELIST, "whitelist file")
    verifier: str = _option(
        _one_of("database", "unkey"), "database", "verifier of API keys: database or unkey"
    )
    unkey_url: str = _option(
        _unkey_url, "https://api.unkey.com", "address of Unkey, in the cloud or self-hosted", verifier="unkey"
    )
    unkey_root_key: Secret = _option(
        _credential,
        Secret(""),
        "root key for Unkey",
        missing="is not set: set it to Unkey's root key, or STACKMGR_VERIFIER to database",
        verifier="unkey",
    )
    verify_timeout: float = _option(_seconds, 3.0, "seconds for one verification by Unkey, 0.1 to 20")
    log_level: str = _option(
        _one_of(*logs.LEVELS), "info", "debug, info (one line per request), warning or error"
    )
    log_format: str = _option(_one_of(*logs.FORMATS), "json", "json or text")
    admin_bind: str | None = _option(
        _listener,
        None,
        "host:port of a listener for /live, /ready and /metrics, with a port of its own; not to be published",
    )
    metrics_dir: Path | None = _option(
        Path, None, "folder for the workers' metrics, which it enables (extra 'metrics')"
    )

    @property
    def admin_port(self) -> int:
        """The port of the operator's listener, or 0 where there is none."""
        return int(self.admin_bind.rpartition(":")[2]) if self.admin_bind else 0


OPTIONS: Mapping[str, Option] = {
    field.name: dataclasses.replace(field.metadata["option"], variable=f"STACKMGR_{field.name.upper()}")
    for field in dataclasses.fields(Settings)
}


def from_environ(environ: Mapping[str, str]) -> Settings:
    """Return the settings that *environ* holds, or raise SettingsError with every problem."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        if option.verifier in ("", values.get("verifier")):
            values[name] = option.read(environ, problems)
    if environ.get("STACKMGR_METRICS_DIR"):
        if importlib.util.find_spec("prometheus_client") is None:
            problems.append(f"STACKMGR_METRICS_DIR needs packages: {extras.installation('metrics')}")
        if not environ.get("STACKMGR_ADMIN_BIND"):
            problems.append(
                "STACKMGR_METRICS_DIR is set without STACKMGR_ADMIN_BIND, the listener that serves metrics"
            )
    waits = ("queue_timeout", "verify_timeout", "database_timeout")  # of one request, one after the other
    total = sum(values[name] for name in waits)
    if total >= LONGEST_REQUEST_SECONDS:
        variables = " and ".join(OPTIONS[name].variable for name in waits)
        problems.append(
            f"{variables} are {total:g} s together: lower one, nginx waits only {LONGEST_REQUEST_SECONDS} s"
        )
    if problems:
        raise SettingsError(problems)
    return Settings(**values)


def to_environ(chosen: Settings) -> dict[str, str]:
    """Return the variables, with secrets, from which `from_environ` makes the same settings."""
    values = ((option.variable, getattr(chosen, name)) for name, option in OPTIONS.items())
    return {variable: str(value) for variable, value in values if value is not None}
