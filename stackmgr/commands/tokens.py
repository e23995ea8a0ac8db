"""`stackmgr whitelist`: whether a whitelist file is good, and what it would leave out of what is saved.

Saved stacks are read as they are, whatever the whitelist.  But an update that sends such a token again, and
the retry of a creation that named it, are answered with 400: to be known before a token is taken off.
"""

import argparse
import os
from pathlib import Path

from stackmgr import settings, stacks, whitelist
from stackmgr.commands.common import CommandError, Commands, operator_session

# Every stack of every manager is looked at; seconds.
_DEADLINE = 600.0


def _whitelist(arguments: argparse.Namespace) -> None:
    path = arguments.file or settings.tokens_path(os.environ)
    try:
        spellings = whitelist.load(path)
    except whitelist.WhitelistError as ex:
        raise CommandError("\nstackmgr: ".join(ex.problems)) from ex
    with operator_session(deadline=_DEADLINE) as session:
        outside = stacks.list_tokens_outside(session, set(spellings.values()))
    for address, count in outside:
        print(f"warning: {address} is not in {path}, and saved stacks hold it: {count}")
    print("ok")


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "whitelist", help="check a whitelist, and tell which saved stacks hold tokens that it lacks"
    )
    command.add_argument("--file", type=Path, help="instead of the file that STACKMGR_TOKENS names")
    command.set_defaults(run=_whitelist)
