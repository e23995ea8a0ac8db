"""`stackmgr dev`: the service on this machine, with a PostgreSQL of its own."""

import argparse
from pathlib import Path

from stackmgr.commands.common import Commands, exit_statuses
from stackmgr.dev import server


def _dev(arguments: argparse.Namespace) -> None:
    server.run(arguments.port, arguments.data)


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
