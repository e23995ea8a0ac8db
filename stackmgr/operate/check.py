"""`stackmgr check`: the settings in effect, and whether the service can serve with them and this database."""

import argparse
import os
import sys
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import startup
from stackmgr.operate import preflight
from stackmgr.operate.command import EVERYTHING, FOUND, Command
from stackmgr.operate.output import print_json, print_table
from stackmgr.settings import OPTIONS, Option, Secret, Settings, SettingsError

_REDACTED = "[redacted]"


def _shown(option: Option, value: Any) -> str | None:
    if not isinstance(value, Secret):
        return None if value is None else str(value)
    if option is not OPTIONS["database_url"]:
        return _REDACTED if value else None
    given = conninfo_to_dict(value)
    hidden = {name: _REDACTED for name in given if "password" in name}
    return make_conninfo("", **(given | hidden))


def _settings(chosen: Settings) -> list[dict[str, Any]]:
    """Return each setting in effect, secrets redacted."""
    return [
        {
            "variable": option.variable,
            "value": _shown(option, getattr(chosen, name)),
            "is_default": getattr(chosen, name) == option.default,
        }
        for name, option in OPTIONS.items()
    ]


def _findings(chosen: Settings) -> preflight.Findings:
    findings = preflight.examine(
        chosen.database_url,
        chosen.database_timeout,
        variant=chosen.sql_variant,
        is_service_login=False,
    )
    findings.problems += startup.metrics_problems(chosen)
    return findings


def _check(arguments: argparse.Namespace) -> None:
    shown: list[dict[str, Any]] = []
    try:
        chosen = startup.prepare(os.environ).settings
    except SettingsError as ex:
        findings = preflight.Findings(problems=ex.problems)
    else:
        shown, findings = _settings(chosen), _findings(chosen)
    findings.warnings += startup.unknown_variables(os.environ)
    is_ok = findings.reachable and not findings.problems
    if arguments.json:
        document = {"ok": is_ok, "problems": findings.problems, "warnings": findings.warnings}
        print_json(document | {"settings": shown})
    else:
        _print_text(shown, findings)
    if not is_ok:
        sys.exit(FOUND if findings.reachable else 1)


def _print_text(shown: list[dict[str, Any]], findings: preflight.Findings) -> None:
    if shown:
        rows = [
            (each["variable"], each["value"], "default" if each["is_default"] else "set") for each in shown
        ]
        print_table(("VARIABLE", "VALUE", "FROM"), rows)
    for problem in findings.problems if findings.reachable else findings.problems + findings.warnings:
        print(f"stackmgr: {problem}", file=sys.stderr)
    for warning in findings.warnings if findings.reachable else ():
        print(f"warning: {warning}")
    if findings.reachable and not findings.problems:
        print("ok")


COMMAND = Command(
    name="check",
    summary="print the settings in effect, and check whether the service can serve here",
    description="Print the settings in effect, without secrets. Check the environment, the whitelist and "
    "the database, and report every problem. A database that cannot be reached keeps no service from "
    "starting: then the exit status is 1.",
    reads=EVERYTHING,
    found="the service would not start",
    run=_check,
)
