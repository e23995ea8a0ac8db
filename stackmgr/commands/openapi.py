"""`stackmgr openapi`: the OpenAPI document, as one."""

import argparse

from stackmgr.commands.common import Commands, exit_statuses
from stackmgr.commands.output import print_json
from stackmgr.http import openapi


def _openapi(_: argparse.Namespace) -> None:
    print_json(openapi.bundle())


def add_to(commands: Commands) -> None:
    """Add `openapi`."""
    command = commands.add_parser("openapi", help="print the OpenAPI document", epilog=exit_statuses())
    command.set_defaults(run=_openapi)
