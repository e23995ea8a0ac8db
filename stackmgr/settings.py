"""Configuration: the environment, read once, checked whole, with every problem named at the same time."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stackmgr import logs, paths

_LARGEST_COUNT = 1000
# Bounded, because int() refuses thousands of digits with an error of its own.
_COUNT = re.compile(r"[0-9]{1,9}")

# A verification must end well before gunicorn gives up on the worker, and before a proxy gives up on us.
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.1, 20.0

_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_CREDENTIAL = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[a-z0-9._:-]+", re.IGNORECASE)
_PATH = re.compile(r"[A-Za-z0-9/._~-]*")

NO_DATABASE_URL = "STACKMGR_DATABASE_URL is not set: a PostgreSQL connection string is needed"

VERIFIERS = ("database", "unkey")


class SettingsError(Exception):
    """The service cannot start; `problems` holds one sentence for each reason, none with a secret in it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Secret(str):
    """A string that does not show itself where it is printed by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"


_NO_SECRET = Secret("")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a running service needs to know.  Times are in seconds."""

    database_url: Secret
    tokens: Path
    verifier: str = "database"
    unkey_url: str = "https://api.unkey.com"
    unkey_root_key: Secret = _NO_SECRET
    verify_timeout: float = 3.0
    threads: int = 4
    database_timeout: int = 5
    log_level: str = "info"
    log_format: str = "json"
    admin_bind: str | None = None
    metrics_dir: Path | None = None

    @property
    def admin_port(self) -> int:
        """The port of the operator's listener, or 0 where there is none."""
        return int(self.admin_bind.rpartition(":")[2]) if self.admin_bind else 0


def _positive_integer(environ: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = environ.get(name) or str(default)
    if _COUNT.fullmatch(text) and 1 <= int(text) <= _LARGEST_COUNT:
        return int(text)
    problems.append(f"{name} must be a whole number from 1 to {_LARGEST_COUNT}")
    return default


def _timeout(environ: Mapping[str, str], name: str, default: float, problems: list[str]) -> float:
    text = environ.get(name) or str(default)
    if _DECIMAL.fullmatch(text) and _SHORTEST_TIMEOUT <= float(text) <= _LONGEST_TIMEOUT:
        return float(text)
    problems.append(f"{name} must be a number of seconds from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:.0f}")
    return default


def secret(environ: Mapping[str, str], name: str, problems: list[str]) -> Secret:
    """Return the secret *name*, or the content of the file that `<name>_FILE` names; empty when unset.

    The line feed that editors leave at the end of a file is not part of the secret.
    """
    value, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if value and path:
        problems.append(f"{name} and {name}_FILE are both set: one of them decides")
    if not path:
        return Secret(value)
    try:
        return Secret(Path(path).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        problems.append(f"{name}_FILE names a file that cannot be read")
        return _NO_SECRET


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(_HOST.fullmatch(host))
        and port != 0
        and not parts.netloc.endswith(":")
        and "@" not in parts.netloc
        and bool(_PATH.fullmatch(parts.path))
        and "?" not in text
        and "#" not in text
    )


def _unkey(environ: Mapping[str, str], problems: list[str]) -> tuple[str, Secret]:
    url = environ.get("STACKMGR_UNKEY_URL") or Settings.unkey_url
    if not _is_base_url(url):
        problems.append(
            "STACKMGR_UNKEY_URL must be an https (or http) address: host, port and path, nothing more"
        )
    root_key = secret(environ, "STACKMGR_UNKEY_ROOT_KEY", problems)
    if not root_key:
        problems.append("STACKMGR_UNKEY_ROOT_KEY is not set: Unkey verifies keys for a root key only")
    elif not _CREDENTIAL.fullmatch(root_key):
        problems.append("STACKMGR_UNKEY_ROOT_KEY must be printable ASCII without spaces")
    return url, root_key


def _choice(
    environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str, problems: list[str]
) -> str:
    chosen = environ.get(name) or default
    if chosen not in choices:
        problems.append(f"{name} must be one of: {', '.join(choices)}")
    return chosen


def _admin_bind(environ: Mapping[str, str], problems: list[str]) -> str | None:
    bind = environ.get("STACKMGR_ADMIN_BIND") or None
    if bind is not None:
        host, _, port = bind.rpartition(":")
        if not host or not (_COUNT.fullmatch(port) and 1 <= int(port) <= 65535):
            problems.append("STACKMGR_ADMIN_BIND must be an address and a port, such as 127.0.0.1:9100")
    return bind


def _metrics_dir(environ: Mapping[str, str], problems: list[str]) -> Path | None:
    folder = environ.get("STACKMGR_METRICS_DIR") or None
    if folder is None:
        return None
    if importlib.util.find_spec("prometheus_client") is None:
        problems.append("STACKMGR_METRICS_DIR needs the extra: pip install 'stackmgr[metrics]'")
    if not environ.get("STACKMGR_ADMIN_BIND"):
        problems.append("STACKMGR_METRICS_DIR needs STACKMGR_ADMIN_BIND, where metrics are served")
    return Path(folder)


def tokens_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the whitelist file, by default the one the package ships."""
    return Path(environ.get("STACKMGR_TOKENS") or paths.default_whitelist())


def from_environ(environ: Mapping[str, str]) -> Settings:
    """Return the settings that *environ* holds, or raise SettingsError with all that is wrong with them."""
    problems: list[str] = []
    database_url = secret(environ, "STACKMGR_DATABASE_URL", problems)
    if not database_url:
        problems.append(NO_DATABASE_URL)
    verifier = _choice(environ, "STACKMGR_VERIFIER", VERIFIERS, "database", problems)
    unkey_url, unkey_root_key = Settings.unkey_url, Settings.unkey_root_key
    if verifier == "unkey":
        unkey_url, unkey_root_key = _unkey(environ, problems)
    found = Settings(
        database_url=database_url,
        tokens=tokens_path(environ),
        verifier=verifier,
        unkey_url=unkey_url,
        unkey_root_key=unkey_root_key,
        verify_timeout=_timeout(environ, "STACKMGR_VERIFY_TIMEOUT", Settings.verify_timeout, problems),
        log_level=_choice(environ, "STACKMGR_LOG_LEVEL", logs.LEVELS, "info", problems),
        log_format=_choice(environ, "STACKMGR_LOG_FORMAT", logs.FORMATS, "json", problems),
        threads=_positive_integer(environ, "STACKMGR_THREADS", Settings.threads, problems),
        database_timeout=_positive_integer(environ, "STACKMGR_DATABASE_TIMEOUT", 5, problems),
        admin_bind=_admin_bind(environ, problems),
        metrics_dir=_metrics_dir(environ, problems),
    )
    if problems:
        raise SettingsError(problems)
    return found
