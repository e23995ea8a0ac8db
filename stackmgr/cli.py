"""The command `stackmgr`: operate the service and examine its data."""

import argparse
import sys

from stackmgr import __version__
from stackmgr.dev import server
from stackmgr.errors import CommandError
from stackmgr.operate import check, keys, managers, migrations, tokens, verify_key
from stackmgr.operate.command import accept_any_text, discard, exit_statuses
from stackmgr.settings import OPTIONS, SettingsError


def _options() -> str:
    rows = (f"  {each.variable:<31}{each.description} [{each.default_text}]" for each in OPTIONS.values())
    head = "The environment, with defaults ('stackmgr check' checks and prints it):"
    files = " and ".join(f"{each.variable}_FILE" for each in OPTIONS.values() if each.is_secret)
    return "\n".join((head, *rows, "", f"Secrets may be in files, which {files} name instead."))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stackmgr",
        description=__doc__,
        epilog=f"{exit_statuses('found something')}\n\n{_options()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stackmgr {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (server, migrations, check, keys, managers, verify_key, tokens):
        module.add_to(commands)
    return parser


def main() -> None:
    """Run the command; exit 1 with a line on stderr for each reason why it cannot run."""
    accept_any_text()
    parser = make_parser()
    arguments, unexpected = parser.parse_known_args()
    if unexpected:
        parser.error(arguments.unexpected or f"unrecognized arguments: {' '.join(unexpected)}")
    if sys.stdout is None:
        sys.exit("stackmgr: standard output is closed")
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except SettingsError as ex:
        sys.exit("\n".join(f"stackmgr: {problem}" for problem in ex.problems))
    except CommandError as ex:
        sys.exit(f"stackmgr: {ex}")
    except BrokenPipeError:
        discard()
        sys.exit(1)  # the reader of a pipe, such as head, has enough
    except OSError as ex:
        discard()
        sys.exit(f"stackmgr: {ex.filename or 'standard output'}: {ex.strerror}")
