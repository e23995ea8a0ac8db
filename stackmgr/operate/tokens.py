"""`stackmgr tokens`: the whitelist in force, and whether a file is a whitelist."""

import argparse
import sys
from pathlib import Path

from stackmgr.errors import CommandError
from stackmgr.limits import CHAIN_ID, TOKEN_COUNT
from stackmgr.operate.command import FOUND, NOTHING, TOKENS, Commands, add_command, add_group
from stackmgr.operate.output import print_documents, print_json, print_note, printable
from stackmgr.stacks import whitelist
from stackmgr.stacks.eip55 import eip55


def _list(arguments: argparse.Namespace) -> None:
    listed = whitelist.load_configured()
    tokens = sorted(listed.tokens.values(), key=lambda token: token.symbol)
    documents = (
        {"symbol": printable(each.symbol), "name": printable(each.name), "address": each.checksummed}
        for each in tokens
    )
    print_documents(arguments, documents)
    if not arguments.json:
        print_note(
            f"{len(tokens)} tokens of chain {CHAIN_ID} in {listed.path}. "
            f"The settlement asset {printable(listed.settlement.symbol)} is not one of them."
        )


def _check(arguments: argparse.Namespace) -> None:
    try:
        document, problems = whitelist.examine(arguments.file)
    except OSError as ex:
        raise CommandError(f"the whitelist {arguments.file} cannot be read: {ex.strerror}") from ex
    if arguments.json:
        print_json({"file": str(arguments.file), "problems": problems})
    elif problems:
        print("\n".join(f"{arguments.file}: {printable(problem)}" for problem in problems))
    else:
        checked = sum(token["address"] == eip55(token["address"]) for token in document["tokens"])
        print(
            f"{arguments.file}: {TOKEN_COUNT} tokens of chain {CHAIN_ID}, "
            f"{checked} with a correct EIP-55 checksum, settlement asset absent"
        )
    if problems:
        sys.exit(FOUND)


def add_to(commands: Commands) -> None:
    """Add the commands."""
    group = add_group(commands, "tokens", "the token whitelist", TOKENS)
    add_command(
        group,
        "list",
        "list the tokens in force",
        _list,
        reads=TOKENS,
        more="They are those of the file that STACKMGR_TOKENS names, by default the shipped one.",
    )
    check = add_command(
        group,
        "check",
        "check a whitelist file",
        _check,
        reads=NOTHING,
        more=f"It has exactly {TOKEN_COUNT} tokens, EIP-55 checksums and no settlement asset.",
        found="the file has a problem",
    )
    check.add_argument("file", type=Path, metavar="FILE")
