"""`stackmgr completion`: a script with which bash or zsh completes commands, options and file names."""

import argparse
from pathlib import Path

from stackmgr.commands.common import Commands, exit_statuses, subcommands
from stackmgr.errors import CommandError

_MISSING = "the generator is missing: pip install 'stackmgr[completion]'"


def _prepare(parser: argparse.ArgumentParser, file: object) -> None:
    """Mark the arguments that are files, and keep only the short help of each command."""
    for action in parser._actions:  # noqa: SLF001
        if action.type is Path or action.metavar == "FILE":
            action.complete = file  # type: ignore[attr-defined]
    for _, command in subcommands(parser):
        command.description = None
        _prepare(command, file)


def _completion(arguments: argparse.Namespace) -> None:
    try:
        import shtab  # noqa: PLC0415 - of an extra
    except ImportError as ex:
        raise CommandError(_MISSING) from ex
    _prepare(arguments.parser, shtab.FILE)
    print(shtab.complete(arguments.parser, arguments.shell))


def add_to(commands: Commands) -> None:
    """Add `completion`."""
    command = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a script with which the shell completes commands, options and file names (extra "
        "'completion'). The script itself needs nothing. For bash, save it as "
        "~/.local/share/bash-completion/completions/stackmgr, or source it. For zsh, save it as _stackmgr in "
        "a folder of fpath.",
        epilog=exit_statuses(),
    )
    command.add_argument("shell", choices=("bash", "zsh"))
    command.set_defaults(run=_completion)
