"""`stackmgr tokens`: the whitelist in force, or that of a file."""

import argparse
from pathlib import Path

from stackmgr.limits import CHAIN_ID, TOKEN_COUNT
from stackmgr.operate import command
from stackmgr.operate.command import printable
from stackmgr.stacks import whitelist


def _list(arguments: argparse.Namespace) -> None:
    listed = whitelist.load(arguments.file) if arguments.file else whitelist.load_configured()
    documents = (
        {"symbol": printable(each.symbol), "name": printable(each.name), "address": each.checksummed}
        for each in sorted(listed.tokens.values(), key=lambda token: token.symbol)
    )
    command.print_documents(arguments, documents)
    if not arguments.json:
        command.print_note(
            f"{TOKEN_COUNT} tokens of chain {CHAIN_ID} in {listed.path}. "
            f"The settlement asset {printable(listed.settlement.symbol)} is not one of them."
        )


def add_to(commands: command.Commands) -> None:
    group = command.add_group(commands, "tokens", "the token whitelist", command.TOKENS)
    summary = "validate a whitelist and list its tokens"
    more = f"It has exactly {TOKEN_COUNT} tokens, EIP-55 checksums and no settlement asset."
    lists = command.add_command(group, "list", summary, _list, reads=command.TOKENS, more=more)
    help_text = "a file, by default the one that STACKMGR_TOKENS names, or the shipped one"
    lists.add_argument("file", type=Path, nargs="?", metavar="FILE", help=help_text)
