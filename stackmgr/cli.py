"""The command `stackmgr`: what an operator does to the service that is not an HTTP request."""

import argparse
import json
import os
import sys
from pathlib import Path

from stackmgr import startup
from stackmgr.commands import keys, managers, tokens, verify_key
from stackmgr.commands.common import CommandError, database_url
from stackmgr.database import migrations, preflight
from stackmgr.dev import server
from stackmgr.dev.embedded_postgres import EmbeddedError
from stackmgr.errors import DatabaseError
from stackmgr.http import openapi
from stackmgr.settings import SettingsError

# SQLSTATE undefined_table, also where the whole schema is missing.
_UNDEFINED_TABLE = "42P01"


def _dev(arguments: argparse.Namespace) -> None:
    server.run(arguments.port, arguments.data)


def _migrate(_: argparse.Namespace) -> None:
    for migration in migrations.apply(database_url()):
        print(f"applied {migration}")
    print("the schema is up to date")


def _check(_: argparse.Namespace) -> None:
    chosen = startup.prepare(os.environ).settings
    findings = preflight.examine(chosen.database_url)
    if not findings.reachable:
        raise SettingsError(findings.warnings)
    for warning in findings.warnings:
        print(f"warning: {warning}")
    if findings.problems:
        raise SettingsError(findings.problems)
    print("ok")


def _openapi(_: argparse.Namespace) -> None:
    print(json.dumps(openapi.bundle(), indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stackmgr", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("dev", help="run everything locally, with a PostgreSQL of its own")
    command.add_argument("--port", type=int, default=8000, help="where to listen on 127.0.0.1 (default 8000)")
    command.add_argument(
        "--data", type=Path, default=Path(".stackmgr"), help="where to keep data (default .stackmgr)"
    )
    command.set_defaults(run=_dev)

    command = commands.add_parser("migrate", help="bring the schema of the database up to date")
    command.set_defaults(run=_migrate)

    command = commands.add_parser(
        "check", help="tell whether the service could serve here, for people and probes"
    )
    command.set_defaults(run=_check)

    command = commands.add_parser("openapi", help="print the OpenAPI description, as one document")
    command.set_defaults(run=_openapi)

    for module in (keys, managers, verify_key, tokens):
        module.add_to(commands)
    return parser


def main() -> None:
    """Run the command; exit 1 with one line on stderr when it cannot be carried out."""
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except DatabaseError as ex:
        if ex.sqlstate == _UNDEFINED_TABLE:
            sys.exit("stackmgr: the database has no schema for this yet: run 'stackmgr migrate' first")
        reason = ex.sqlstate or "no connection"
        sys.exit(f"stackmgr: the database refused or did not answer ({reason}); see 'stackmgr check'")
    except SettingsError as ex:
        sys.exit("\n".join(f"stackmgr: {problem}" for problem in ex.problems))
    except (CommandError, server.DevError, EmbeddedError, migrations.MigrationError) as ex:
        sys.exit(f"stackmgr: {ex}")
