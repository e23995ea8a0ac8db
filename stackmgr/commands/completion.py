"""`stackmgr completion`: a script with which bash or zsh completes commands, options and file names."""

import argparse

from stackmgr import extras
from stackmgr.commands.command import NOTHING, Command, argument
from stackmgr.errors import CommandError


def _completion(arguments: argparse.Namespace) -> None:
    try:
        import shtab  # noqa: PLC0415 - of an extra
    except ImportError as ex:
        raise CommandError(f"the generator is missing: {extras.installation('completion')}") from ex
    print(shtab.complete(arguments.make_parser(shtab.FILE), arguments.shell))


COMMAND = Command(
    name="completion",
    summary="print a completion script for a shell",
    description="Print a script with which the shell completes commands, options and file names (extra "
    "'completion'). The script itself needs nothing. For bash, save it as "
    "~/.local/share/bash-completion/completions/stackmgr, or source it. For zsh, save it as _stackmgr in "
    "a folder of fpath.",
    reads=NOTHING,
    run=_completion,
    arguments=[argument("shell", choices=("bash", "zsh"))],
    has_json=False,
)
