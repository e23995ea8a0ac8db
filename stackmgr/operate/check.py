"""Whether the service can serve with this environment and this database.

For operators: `stackmgr check`.  gunicorn's master runs `python -m stackmgr.operate.check`.
"""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import __version__, startup
from stackmgr.database.conninfo import completing_variables
from stackmgr.monitoring import metrics
from stackmgr.operate import preflight
from stackmgr.operate.command import EVERYTHING, FOUND, Commands, add_command, print_json, print_table
from stackmgr.operate.preflight import Findings
from stackmgr.settings import OPTIONS, Option, Secret, Settings, SettingsError
from stackmgr.start_check import StartCheck

_REDACTED = "[redacted]"


def _build(prepared: startup.Prepared) -> None:
    """Import and build all that a worker does.  What cannot be built is a traceback."""
    # Not needed under another WSGI server, and gunicorn cannot be imported with a wrong WEB_CONCURRENCY.
    import stackmgr.server.worker  # noqa: F401, PLC0415

    startup.assemble(prepared, os.environ, serves=False)


def _findings(chosen: Settings, workers: int = 0) -> Findings:
    """Return problems of the database, at a start without *workers*, and of the metrics folder."""
    findings = preflight.examine(
        chosen.database_url,
        chosen.database_timeout,
        variant=chosen.sql_variant,
        connections=chosen.database_connections * workers,
        thorough=bool(workers),
    )
    problem = metrics.folder_problem(chosen.metrics_dir) if chosen.metrics_dir else None
    findings.problems += [f"STACKMGR_METRICS_DIR: {problem}"] if problem else []
    return findings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each unknown variable that seems to be meant for the service."""
    known = {"WEB_CONCURRENCY", *(option.variable for option in OPTIONS.values())}
    known |= {f"{option.variable}_FILE" for option in OPTIONS.values() if option.is_secret}
    warnings = []
    for name in sorted(environ.keys() - known):
        similar = difflib.get_close_matches(name, known, 1, cutoff=0.8)
        if similar or name.startswith("STACKMGR_"):
            meant = "".join(f"; did you mean {each}?" for each in similar)
            warnings.append(f"{name} is no setting and is ignored{meant}")
    return warnings


def _shown(option: Option, value: Any) -> str | None:
    if not isinstance(value, Secret):
        return None if value is None else str(value)
    if option is not OPTIONS["database_url"]:
        return _REDACTED if value else None
    given = conninfo_to_dict(value)
    hidden = {name: _REDACTED for name in given if "password" in name}
    return make_conninfo("", **(given | hidden))


def _settings(chosen: Settings) -> list[dict[str, Any]]:
    return [
        {
            "variable": option.variable,
            "value": _shown(option, getattr(chosen, name)),
            "is_default": getattr(chosen, name) == option.default,
        }
        for name, option in OPTIONS.items()
    ]


def _check(arguments: argparse.Namespace) -> None:
    shown: list[dict[str, Any]] = []
    try:
        prepared = startup.prepare(os.environ)
        chosen = prepared.settings
    except SettingsError as ex:
        # The database is examined all the same, with the default in place of each wrong setting.
        chosen = Settings(**{name: option.read(os.environ, []) for name, option in OPTIONS.items()})
        findings = _findings(chosen) if chosen.database_url else Findings()
        findings.problems = ex.problems + findings.problems
    else:
        _build(prepared)
        shown, findings = _settings(chosen), _findings(chosen, int(os.environ.get("WEB_CONCURRENCY", "1")))
        findings.warnings += [
            f"{name} completes STACKMGR_DATABASE_URL"
            for name in completing_variables(chosen.database_url, os.environ)
        ]
        if problem := startup.make_verifier(chosen, None).check():
            findings.warnings.append(problem)
    findings.warnings += unknown_variables(os.environ)
    is_ok = findings.reachable and not findings.problems
    if arguments.json:
        found = {"problems": findings.problems, "warnings": findings.warnings}
        print_json({"ok": is_ok, **found, "settings": shown})
    else:
        _print_text(shown, findings)
    if not is_ok:
        sys.exit(FOUND if findings.problems else 1)


def _print_text(shown: list[dict[str, Any]], findings: Findings) -> None:
    rows = [(each["variable"], each["value"], ("set", "default")[each["is_default"]]) for each in shown]
    print_table([("VARIABLE", "VALUE", "FROM"), *rows] if rows else [])
    for problem in findings.problems if findings.reachable else findings.problems + findings.warnings:
        print(f"stackmgr: {problem}", file=sys.stderr)
    if findings.reachable:
        print("".join(f"warning: {warning}\n" for warning in findings.warnings), end="")
        print("ok\n" if not findings.problems else "", end="")


def check_start() -> None:
    """Print whether workers can start, for gunicorn's master, as one JSON document.

    `problems` is empty if they can.  All that a worker imports has been imported by then: the
    master must not do so itself, because its workers would inherit the modules, after an upgrade
    those of two releases.  The document holds secrets, so it is not printed on a terminal.
    """
    if os.isatty(1):
        sys.exit("only gunicorn's master runs this module: use 'stackmgr check'")
    log_format = OPTIONS["log_format"].read(os.environ, [])
    known = StartCheck(version=__version__, log_format=log_format, warnings=[], problems=[])
    try:
        prepared = startup.prepare(os.environ)
        _build(prepared)
        chosen = prepared.settings
        findings = _findings(chosen)
        known |= {
            "problems": findings.problems,
            "warnings": findings.warnings,
            "log_level": chosen.log_level,
            "concurrency": startup.concurrent_requests(chosen),
            "queue_timeout": chosen.queue_timeout,
            "admin_bind": chosen.admin_bind,
            "admin_port": chosen.admin_port,
            "metrics_dir": str(chosen.metrics_dir) if chosen.metrics_dir else None,
            "prepared": prepared.dump(),
        }
    except SettingsError as ex:
        known["problems"] = ex.problems
    # The master may have been stopped while it waited.
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(known).encode("ascii"))


def add_to(commands: Commands) -> None:
    add_command(
        commands,
        "check",
        "print the settings in effect, and check whether the service can serve here",
        _check,
        reads=EVERYTHING,
        more="Secrets are not printed. Every problem of the environment, the whitelist and the database is "
        "reported. The service also starts without a database that can be reached: the exit status is then "
        "1.",
        found="the service would not start",
    )


if __name__ == "__main__":
    check_start()
