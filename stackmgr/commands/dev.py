"""`stackmgr dev`: the service on this machine, with a PostgreSQL of its own."""

import argparse
from pathlib import Path

from stackmgr.commands.common import CommandError, Commands, exit_statuses
from stackmgr.database.migrations import MigrationError
from stackmgr.dev import server
from stackmgr.dev.embedded_postgres import EmbeddedError


def _dev(arguments: argparse.Namespace) -> None:
    try:
        server.run(arguments.port, arguments.data)
    except (server.DevError, EmbeddedError, MigrationError) as ex:
        raise CommandError(str(ex)) from ex


def add_to(commands: Commands) -> None:
    """Add `dev`."""
    command = commands.add_parser(
        "dev", help="run everything locally, with a PostgreSQL of its own", epilog=exit_statuses()
    )
    command.add_argument("--port", type=int, default=8000, help="where to listen on 127.0.0.1 (default 8000)")
    command.add_argument(
        "--data", type=Path, default=Path(".stackmgr"), help="where to keep data (default .stackmgr)"
    )
    command.set_defaults(run=_dev)
