"""`stackmgr migrate`: bring the schema of the database up to date, while the service runs."""

import argparse
import sys

from stackmgr.operate import migrations
from stackmgr.operate.command import FOUND, Commands, add_command, database_url, whole_number
from stackmgr.operate.output import print_note, print_table


def _status() -> None:
    states = migrations.status(database_url())
    print_table([("MIGRATION", "STATE"), *states])
    if any(state != "applied" for _, state in states):
        sys.exit(FOUND)


def _migrate(arguments: argparse.Namespace) -> None:
    if arguments.status:
        _status()
        return
    for migration in migrations.apply(
        database_url(), wait_seconds=arguments.wait, report=lambda text: print_note(f"stackmgr: {text}")
    ):
        print(f"applied {migration}")
    print("the schema is up to date")


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "migrate",
        "bring the schema of the database up to date",
        _migrate,
        found="with --status, a migration is not as this release has it",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="list the migrations, and apply none; needs stackmgr_reader only",
    )
    parser.add_argument(
        "--wait",
        type=whole_number(0, 999_999),
        default=migrations.DEFAULT_WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to retry while another transaction, such as pg_dump's, locks a table (default 300)",
    )
