"""`stackmgr migrate`: bring the schema of the database up to date, while the service runs."""

import argparse
import sys

from stackmgr.operate import migrations
from stackmgr.operate.arguments import whole_number
from stackmgr.operate.command import DATABASE, FOUND, Command, argument, database_url
from stackmgr.operate.output import print_table


def _report(text: str) -> None:
    print(f"stackmgr: {text}", file=sys.stderr, flush=True)


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


COMMAND = Command(
    name="migrate",
    summary="bring the schema of the database up to date",
    reads=DATABASE,
    found="with --status, a migration is not as this release has it",
    run=_migrate,
    arguments=[
        argument(
            "--status",
            action="store_true",
            help="list the migrations, and apply none; needs stackmgr_reader only",
        ),
        argument(
            "--wait",
            type=whole_number(0, 999_999),
            default=migrations.DEFAULT_WAIT_SECONDS,
            metavar="SECONDS",
            help="how long to retry while another transaction, such as pg_dump's, locks a table "
            "(default 300)",
        ),
    ],
    has_json=False,
)
