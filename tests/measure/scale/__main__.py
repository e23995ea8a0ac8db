"""`python -m tests.measure.scale`: see the package."""

import argparse
import time
from pathlib import Path

import psycopg

from tests.measure.scale import load, report, server


def _load(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    name = server.database_name(arguments.stacks)
    with server.open_server(arguments.data) as postgres:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0".encode())
        load.load(postgres.url(name), arguments.stacks, arguments.seed, arguments.share)
    print(f"{arguments.stacks} stacks in {time.monotonic() - began:.0f} s")


def _report(arguments: argparse.Namespace) -> None:
    with server.open_server(arguments.data) as postgres:
        small, large = (
            (postgres.url(server.database_name(count)), count) for count in (arguments.small, arguments.large)
        )
        for line in report.report(small, large, arguments.rounds):
            print(line, flush=True)


parser = argparse.ArgumentParser(prog="python -m tests.measure.scale", description=__doc__)
commands = parser.add_subparsers(required=True)
command = commands.add_parser("load", help="make a database with so many stacks")
command.add_argument("--data", type=Path, required=True, help="data directory, made when it is missing")
command.add_argument("--stacks", type=int, required=True)
command.add_argument("--seed", type=int, default=1)
command.add_argument(
    "--share", type=float, default=load.BIGGEST_SHARE, help="of the stacks, those of the biggest manager"
)
command.set_defaults(run=_load)
command = commands.add_parser("report", help="compare two loaded databases, statement by statement")
command.add_argument("--data", type=Path, required=True)
command.add_argument("--small", type=int, default=10_000)
command.add_argument("--large", type=int, required=True)
command.add_argument("--rounds", type=int, default=20)
command.set_defaults(run=_report)

if __name__ == "__main__":
    chosen = parser.parse_args()
    chosen.run(chosen)
