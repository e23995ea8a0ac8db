"""`stackmgr dev`: the service on this machine, with a PostgreSQL of its own."""

import argparse
from pathlib import Path

from stackmgr.dev import server
from stackmgr.operate.command import EVERYTHING, Command, argument


def _dev(arguments: argparse.Namespace) -> None:
    server.run(arguments.port, arguments.data)


COMMAND = Command(
    name="dev",
    summary="run everything locally, with a PostgreSQL of its own",
    reads=EVERYTHING,
    run=_dev,
    arguments=[
        argument("--port", type=int, default=8000, help="where to listen on 127.0.0.1 (default 8000)"),
        argument(
            "--data", type=Path, default=Path(".stackmgr"), help="where to keep data (default .stackmgr)"
        ),
    ],
    has_json=False,
)
