"""`stackmgr migrate`: bring the schema of the database up to date, while the service runs."""

import argparse

from stackmgr.operate import migrations
from stackmgr.operate.command import Commands, add_command, database_url, whole_number
from stackmgr.operate.output import print_note


def _migrate(arguments: argparse.Namespace) -> None:
    for migration in migrations.apply(
        database_url(), wait_seconds=arguments.wait, report=lambda text: print_note(f"stackmgr: {text}")
    ):
        print(f"applied {migration}")
    print("the schema is up to date")


def add_to(commands: Commands) -> None:
    """Add the command."""
    summary = "bring the schema of the database up to date"
    parser = add_command(commands, "migrate", summary, _migrate, has_json=False)
    parser.add_argument(
        "--wait",
        type=whole_number(0, 999_999),
        default=migrations.DEFAULT_WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to retry while another transaction, such as pg_dump's, locks a table (default 300)",
    )
