"""The command `stackmgr`: operate the service and examine its data."""

import argparse
import sys
from collections.abc import Mapping
from types import ModuleType

from stackmgr import __version__
from stackmgr.commands import (
    audit,
    check,
    completion,
    config,
    conformance,
    dev,
    docs,
    due,
    explain,
    keys,
    managers,
    migrate,
    openapi,
    output,
    stacks,
    tokens,
    verify_key,
)
from stackmgr.commands.common import exit_statuses, subcommands
from stackmgr.errors import CommandError
from stackmgr.settings import OPTIONS, SettingsError
from stackmgr.stacks.whitelist import WhitelistError

_NOTHING = "Reads no STACKMGR_* variable."
_DATABASE = "Reads STACKMGR_DATABASE_URL, or STACKMGR_DATABASE_URL_FILE."
_TOKENS = "Reads STACKMGR_TOKENS."
_BOTH = "Reads STACKMGR_TOKENS, and STACKMGR_DATABASE_URL or STACKMGR_DATABASE_URL_FILE."
_EVERYTHING = "Reads the whole environment that 'stackmgr --help' lists."

_SECRET_FILES = "Secrets may be in files, which {} name instead.".format(
    " and ".join(f"{each.variable}_FILE" for each in OPTIONS.values() if each.is_secret)
)

# What each command reads of the environment.
_COMMANDS: Mapping[ModuleType, str] = {
    dev: _EVERYTHING,
    migrate: _DATABASE,
    check: _EVERYTHING,
    config: _EVERYTHING,
    openapi: _NOTHING,
    docs: _NOTHING,
    completion: _NOTHING,
    keys: _DATABASE,
    managers: _DATABASE,
    verify_key: _EVERYTHING,
    tokens: _BOTH,
    stacks: _BOTH,
    due: _NOTHING,
    explain: _TOKENS,
    audit: _BOTH,
    conformance: _TOKENS,
}

# Commands that read less than their group.
_NARROWER = {
    "stackmgr tokens list": _TOKENS,
    "stackmgr tokens check": _NOTHING,
    "stackmgr tokens diff": _NOTHING,
}


def _options() -> str:
    """Return the table of the environment for `--help`."""
    rows = (f"  {each.variable:<31}{each.description} [{each.default_text}]" for each in OPTIONS.values())
    head = "The environment, with defaults ('stackmgr config' checks and prints it):"
    return "\n".join((head, *rows, "", _SECRET_FILES))


def _describe(parser: argparse.ArgumentParser, summary: str, environment: str) -> None:
    """Complete the `--help` of *parser* and of what is below it: purpose, exit statuses, environment."""
    environment = _NARROWER.get(parser.prog, environment)
    parser.description = parser.description or f"{summary[:1].upper()}{summary[1:]}."
    parser.epilog = f"{parser.epilog or exit_statuses()} {environment}"
    for each, command in subcommands(parser):
        _describe(command, each, environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stackmgr",
        description=__doc__,
        epilog=f"{exit_statuses('found something')}\n\n{_options()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stackmgr {__version__}")
    parser.set_defaults(parser=parser)  # for `completion`
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add_to(commands)
    for (summary, command), environment in zip(subcommands(parser), _COMMANDS.values(), strict=True):
        _describe(command, summary, environment)
    return parser


def _arguments() -> argparse.Namespace:
    parser = _parser()
    arguments, unexpected = parser.parse_known_args()
    if unexpected:
        parser.error(getattr(arguments, "unexpected", f"unrecognized arguments: {' '.join(unexpected)}"))
    if sys.stdout is None:
        sys.exit("stackmgr: standard output is closed")
    return arguments


def main() -> None:
    """Run the command; exit 1 with a line on stderr for each reason why it cannot be carried out."""
    arguments = _arguments()
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except (SettingsError, WhitelistError) as ex:
        sys.exit("\n".join(f"stackmgr: {problem}" for problem in ex.problems))
    except CommandError as ex:
        sys.exit(f"stackmgr: {ex}")
    except BrokenPipeError:
        output.discard()
        sys.exit(1)  # the reader of a pipe, such as head, has enough
    except OSError as ex:
        output.discard()
        sys.exit(f"stackmgr: {ex.filename or 'standard output'}: {ex.strerror}")
