"""`stackmgr migrate`: bring the schema of the database up to date, while the service runs."""

import argparse
import sys

from stackmgr.commands.common import FOUND, Commands, database_url, exit_statuses
from stackmgr.commands.output import print_table
from stackmgr.database import migrations


def _report(text: str) -> None:
    print(f"stackmgr: {text}", file=sys.stderr, flush=True)


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError("must be a whole number of seconds, at most 999999")
    return float(text)


def _status() -> None:
    states = migrations.status(database_url())
    print_table(("MIGRATION", "STATE"), [*states])
    if any(state != "applied" for _, state in states):
        sys.exit(FOUND)


def _migrate(arguments: argparse.Namespace) -> None:
    if arguments.status:
        _status()
        return
    for migration in migrations.apply(database_url(), wait_seconds=arguments.wait, report=_report):
        print(f"applied {migration}")
    print("the schema is up to date")


def add_to(commands: Commands) -> None:
    """Add `migrate`."""
    command = commands.add_parser(
        "migrate",
        help="bring the schema of the database up to date",
        epilog=exit_statuses("with --status, a migration is not as this release has it"),
    )
    command.add_argument(
        "--status",
        action="store_true",
        help="list the migrations, and apply none; needs stackmgr_reader only",
    )
    command.add_argument(
        "--wait",
        type=_seconds,
        default=migrations.DEFAULT_WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to retry while another transaction, such as pg_dump's, locks a table (default 300)",
    )
    command.set_defaults(run=_migrate)
