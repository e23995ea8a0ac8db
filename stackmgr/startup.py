"""From the environment to the parts of a service, with every problem reported at once."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from stackmgr import settings
from stackmgr.access.verifiers import Verifier
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.access.verifiers.unkey import UnkeyVerifier
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.database.pool import Database
from stackmgr.monitoring import metrics_store
from stackmgr.operate import preflight
from stackmgr.settings import Settings, SettingsError
from stackmgr.stacks import whitelist

# By the value of STACKMGR_VERIFIER.
VERIFIERS: Mapping[str, type[Verifier]] = MappingProxyType(
    {
        "database": DatabaseVerifier,
        "unkey": UnkeyVerifier,
    }
)

# Set by gunicorn's master in the environment of each worker, after the fork: see deploy/gunicorn.conf.py.
CHECKED = "STACKMGR.CHECKED"


_WORKERS = re.compile(r"[1-9][0-9]{0,2}")


@dataclass(frozen=True)
class Prepared:
    """A configuration that passed every check."""

    settings: Settings
    spellings: Mapping[str, str]

    def dump(self) -> str:
        """Return this as JSON, secrets included."""
        return json.dumps({"settings": asdict(self.settings), "spellings": self.spellings}, default=str)


def prepare(environ: Mapping[str, str]) -> Prepared:
    """Return the checked configuration, or raise SettingsError with every problem it has.

    A worker of gunicorn finds in CHECKED what its master has checked: a file that has changed since would
    give it another configuration than the other workers have, or none.
    """
    if CHECKED in environ:
        checked = json.loads(environ[CHECKED])
        return Prepared(settings.restore(checked["settings"]), checked["spellings"])
    problems: list[str] = []
    chosen: Settings | None = None
    try:
        chosen = settings.from_environ(environ)
    except SettingsError as ex:
        problems += ex.problems
    url = settings.OPTIONS["database_url"].read(environ, [])
    if url and not is_conninfo(url):
        problems.append(INVALID_DATABASE_URL)
    # gunicorn reads it before any file of this package, and without a number it cannot start.
    if not _WORKERS.fullmatch(environ.get("WEB_CONCURRENCY", "1")):
        problems.append("WEB_CONCURRENCY must be a whole number from 1 to 999")
    spellings: Mapping[str, str] = {}
    try:
        spellings = whitelist.load_configured(environ).spellings
    except whitelist.WhitelistError as ex:
        problems += ex.problems
    if problems or chosen is None:
        raise SettingsError(problems)
    return Prepared(settings=chosen, spellings=spellings)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that has the prefix of the service's and is none of them."""
    options = settings.OPTIONS.values()
    known = {option.variable for option in options}
    known |= {f"{option.variable}_FILE" for option in options if option.is_secret}
    warnings = []
    for name in sorted(each for each in environ if each.startswith("STACKMGR_") and each not in known):
        similar = difflib.get_close_matches(name, known, 1, cutoff=0.8)
        warnings.append(f"{name} is not read" + "".join(f": is {each} meant?" for each in similar))
    return warnings


def check_database_and_metrics_folder(chosen: Settings) -> list[str]:
    """Return warnings about the database.

    Raises SettingsError with every problem of the database and the metrics folder.
    """
    findings = preflight.examine(chosen.database_url, chosen.database_timeout, variant=chosen.sql_variant)
    if problems := findings.problems + metrics_problems(chosen):
        raise SettingsError(problems)
    return findings.warnings


def metrics_problems(chosen: Settings) -> list[str]:
    """Return what is wrong with the metrics folder, if metrics are on."""
    problem = metrics_store.folder_problem(chosen.metrics_dir) if chosen.metrics_dir else None
    return [f"STACKMGR_METRICS_DIR: {problem}"] if problem else []


def make_verifier(chosen: Settings, database: Database | None) -> Verifier:
    """Return the verifier that the settings name; without a *database* it records nothing."""
    return VERIFIERS[chosen.verifier].from_settings(chosen, database)


def concurrent_requests(chosen: Settings) -> int:
    """Return how many requests a worker serves at once.

    A request whose verifier needs a connection from its start would only wait without one, and could not be
    rejected any more.
    """
    if VERIFIERS[chosen.verifier].needs_connection:
        return min(chosen.concurrency, chosen.database_connections)
    return chosen.concurrency
