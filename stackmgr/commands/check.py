"""`stackmgr check`: whether the service can serve with this environment and this database."""

import argparse
import os
import sys

from stackmgr import startup
from stackmgr.commands.command import EVERYTHING, FOUND, Command
from stackmgr.commands.output import print_json
from stackmgr.database import preflight
from stackmgr.errors import CommandError
from stackmgr.settings import SettingsError


def _findings() -> preflight.Findings:
    try:
        chosen = startup.prepare(os.environ).settings
    except SettingsError as ex:
        return preflight.Findings(problems=ex.problems, warnings=startup.unknown_variables(os.environ))
    findings = preflight.examine(
        chosen.database_url,
        chosen.database_timeout,
        variant=chosen.sql_variant,
        is_service_login=False,
    )
    findings.problems += startup.metrics_problems(chosen)
    findings.warnings += startup.unknown_variables(os.environ)
    return findings


def _check(arguments: argparse.Namespace) -> None:
    findings = _findings()
    if arguments.json:
        is_ok = findings.reachable and not findings.problems
        print_json({"ok": is_ok, "problems": findings.problems, "warnings": findings.warnings})
    elif not findings.reachable:
        raise CommandError("\nstackmgr: ".join(findings.problems + findings.warnings))
    else:
        for warning in findings.warnings:
            print(f"warning: {warning}")
        for problem in findings.problems:
            print(f"stackmgr: {problem}", file=sys.stderr)
        if not findings.problems:
            print("ok")
    if not findings.reachable:
        sys.exit(1)
    if findings.problems:
        sys.exit(FOUND)


COMMAND = Command(
    name="check",
    summary="check whether the service can serve here",
    description="Check the environment, the whitelist and the database, and report every problem. A "
    "database that cannot be reached keeps no service from starting: then the exit status is 1.",
    reads=EVERYTHING,
    found="the service would not start",
    run=_check,
)
