"""From the environment to the parts of a service, with everything that stands in the way named at once."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stackmgr import settings, whitelist
from stackmgr.database import preflight
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.database.pool import Database
from stackmgr.settings import Settings, SettingsError
from stackmgr.verifiers import Verifier
from stackmgr.verifiers.database import DatabaseVerifier
from stackmgr.verifiers.last_use import LastUse
from stackmgr.verifiers.remote import Endpoint
from stackmgr.verifiers.unkey import UnkeyVerifier


@dataclass(frozen=True)
class Prepared:
    """A configuration that was found good."""

    settings: Settings
    spellings: Mapping[str, str]


def prepare(environ: Mapping[str, str]) -> Prepared:
    """Return the checked configuration, or raise SettingsError with every problem it has."""
    problems: list[str] = []
    chosen: Settings | None = None
    try:
        chosen = settings.from_environ(environ)
    except SettingsError as ex:
        problems += ex.problems
    url = settings.secret(environ, "STACKMGR_DATABASE_URL", [])
    if url and not is_conninfo(url):
        problems.append(INVALID_DATABASE_URL)
    spellings: Mapping[str, str] = {}
    try:
        spellings = whitelist.load(settings.tokens_path(environ))
    except whitelist.WhitelistError as ex:
        problems += ex.problems
    if problems or chosen is None:
        raise SettingsError(problems)
    return Prepared(settings=chosen, spellings=spellings)


def require_usable_database(chosen: Settings) -> list[str]:
    """Return what an operator should know of the database, or raise SettingsError if it cannot be used."""
    findings = preflight.examine(chosen.database_url)
    if findings.problems:
        raise SettingsError(findings.problems)
    return findings.warnings


def make_verifier(chosen: Settings, database: Database | None) -> Verifier:
    """Return the verifier that the settings name.

    Without a *database* for notes of its own, it verifies without leaving a trace there.
    """
    if chosen.verifier == "unkey":
        endpoint = Endpoint(chosen.unkey_url, timeout=chosen.verify_timeout, connections=chosen.threads)
        return UnkeyVerifier(endpoint, chosen.unkey_root_key)
    return DatabaseVerifier(spends=False) if database is None else DatabaseVerifier(LastUse(database))


def main() -> None:
    """Check this process's environment and its database, and print as JSON what gunicorn is to know of them.

    For gunicorn's master, which must not import what its workers are to import afresh.  Exits 1, with one
    line on stderr for each problem, if nothing can be served.
    """
    try:
        chosen = prepare(os.environ).settings
        warnings = require_usable_database(chosen)
    except SettingsError as ex:
        sys.exit("\n".join(f"stackmgr: {problem}" for problem in ex.problems))
    for warning in warnings:
        print(f"stackmgr: warning: {warning}", file=sys.stderr)
    known = {
        "threads": chosen.threads,
        "log_level": chosen.log_level,
        "log_format": chosen.log_format,
        "admin_bind": chosen.admin_bind,
        "metrics_dir": chosen.metrics_dir and str(chosen.metrics_dir),
    }
    print(json.dumps(known))


if __name__ == "__main__":
    main()
