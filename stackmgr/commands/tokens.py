"""`stackmgr tokens`: the whitelist in force, whether a file is a whitelist, and what a change would affect.

Saved stacks are read as they are, whatever the whitelist.  But an update that sends a token which has left
it, and the retry of a creation that named one, are rejected with 400.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stackmgr.commands.arguments import row_limit
from stackmgr.commands.command import (
    FOUND,
    NEEDS_READER,
    NOTHING,
    TOKENS,
    TOKENS_AND_DATABASE,
    Command,
    argument,
    database_url,
)
from stackmgr.commands.output import percent, print_json, print_note, print_table, printable
from stackmgr.database import statements
from stackmgr.database.single_connection import Reader, reading
from stackmgr.errors import CommandError
from stackmgr.limits import TOKEN_COUNT
from stackmgr.stacks import whitelist
from stackmgr.stacks.whitelist import Token, Whitelist

_HOLDERS = statements.load("token_count_holders")
_STACKS = statements.load("stack_list_holding")
_RECEIPTS = statements.load("receipt_count_naming")


def _list(arguments: argparse.Namespace) -> None:
    listed = whitelist.load_configured()
    tokens = sorted(listed.tokens.values(), key=lambda token: token.symbol)
    if arguments.json:
        print_json([_document(token) for token in tokens])
        return
    print_table(("SYMBOL", "NAME", "ADDRESS"), [_row(token) for token in tokens])
    print_note(
        f"{len(tokens)} tokens of chain {whitelist.CHAIN_ID} in {listed.path}. "
        f"The settlement asset {printable(listed.settlement.symbol)} is not one of them."
    )


def _document(token: Token) -> dict[str, str]:
    return {"symbol": token.symbol, "name": token.name, "address": token.checksummed}


def _row(token: Token) -> tuple[str, ...]:
    return printable(token.symbol), printable(token.name), token.checksummed


def _check(arguments: argparse.Namespace) -> None:
    try:
        arguments.file.open("rb").close()
    except OSError as ex:
        raise CommandError(f"{arguments.file} cannot be read: {ex.strerror}") from ex
    problems: list[str] = []
    try:
        whitelist.load(arguments.file)
    except whitelist.WhitelistError as ex:
        problems = [problem.removeprefix(f"whitelist {arguments.file}: ") for problem in ex.problems]
    if arguments.json:
        print_json({"file": str(arguments.file), "problems": problems})
    elif problems:
        print("\n".join(f"{arguments.file}: {printable(problem)}" for problem in problems))
    else:
        print(
            f"{arguments.file}: {TOKEN_COUNT} tokens of chain {whitelist.CHAIN_ID}, "
            "EIP-55 checksums correct, settlement asset absent"
        )
    if problems:
        sys.exit(FOUND)


def changes(old: Whitelist, new: Whitelist) -> list[tuple[str, str, str]]:
    """Return (change, symbol, checksummed address) for each token that differs, by address."""
    found = []
    for address in sorted(old.tokens.keys() | new.tokens.keys()):
        before, after = old.tokens.get(address), new.tokens.get(address)
        if after is None and before is not None:
            found.append(("removed", before.symbol, before.checksummed))
        elif before is None and after is not None:
            found.append(("added", after.symbol, after.checksummed))
        elif before is not None and after is not None and before.symbol != after.symbol:
            found.append(("renamed", f"{before.symbol} → {after.symbol}", after.checksummed))
    return found


def _diff(arguments: argparse.Namespace) -> None:
    found = changes(whitelist.load(arguments.old), whitelist.load(arguments.new))
    if arguments.json:
        print_json([dict(zip(("change", "symbol", "address"), row, strict=True)) for row in found])
    elif found:
        rows = [(change, printable(symbol), address) for change, symbol, address in found]
        print_table(("CHANGE", "SYMBOL", "ADDRESS"), [*rows])
    else:
        print_note("The same tokens with the same symbols.")
    if found:
        sys.exit(FOUND)


def weights(allocation: str, listed: Whitelist, addresses: Iterable[str]) -> dict[str, int]:
    """Return the weights in basis points of those *addresses* that a stored allocation names, by symbol."""
    wanted = set(addresses)
    items = (item for item in json.loads(allocation) if item["token_address"] in wanted)
    return {listed.symbol(item["token_address"]): item["weight_bps"] for item in items}


def _impact_document(reader: Reader, old: Whitelist, new: Whitelist, limit: int) -> dict[str, Any]:
    leaving = sorted(old.tokens.keys() - new.tokens.keys())
    holders = {row[0]: row[1:] for row in reader.rows(_HOLDERS, {"addresses": leaving})}
    stacks = reader.rows(_STACKS, {"addresses": leaving, "manager_id": None, "row_limit": limit + 1})
    [(receipts,)] = reader.rows(_RECEIPTS, {"addresses": leaving})
    return {
        "compared_with": str(old.path),
        "leaving": [
            _document(old.tokens[address])
            | dict(zip(("stacks", "managers"), holders.get(address, (0, 0)), strict=False))
            for address in leaving
        ],
        "entering": [
            _document(new.tokens[address]) for address in sorted(new.tokens.keys() - old.tokens.keys())
        ],
        "stacks": [
            {
                "external_id": row[0],
                "stack_id": row[1],
                "name": row[2],
                "weights_bps": weights(row[3], old, leaving),
            }
            for row in stacks[:limit]
        ],
        "has_more": len(stacks) > limit,
        "retries_from_200_to_400": receipts,
    }


def _print_impact(document: dict[str, Any], file: Path) -> None:
    print_note(f"{file} compared with {document['compared_with']}, the list in force here.")
    if not document["leaving"]:
        print_note("No token leaves the list: no saved stack and no retry is affected.")
        return
    leaving = document["leaving"]
    print_table(
        ("LEAVING", "ADDRESS", "STACKS", "MANAGERS"),
        [
            (printable(token["symbol"]), token["address"], str(token["stacks"]), str(token["managers"]))
            for token in leaving
        ],
    )
    print(f"\nCreation retries that turn from 200 into 400: {document['retries_from_200_to_400']}\n")
    rows = [
        (
            stack["external_id"],
            stack["stack_id"],
            ", ".join(f"{printable(symbol)} {percent(bps)}" for symbol, bps in stack["weights_bps"].items()),
            printable(stack["name"]),
        )
        for stack in document["stacks"]
    ]
    print_table(("EXTERNAL_ID", "STACK_ID", "HOLDS", "NAME"), [*rows])
    if document["has_more"]:
        print_note(f"More stacks hold these tokens: --limit {2 * len(rows)} shows more.")


def _impact(arguments: argparse.Namespace) -> None:
    old, new = whitelist.load_configured(), whitelist.load(arguments.file)
    with reading(database_url()) as reader:
        document = _impact_document(reader, old, new, arguments.limit)
    if arguments.json:
        print_json(document)
    else:
        _print_impact(document, arguments.file)
    if document["stacks"] or document["retries_from_200_to_400"]:
        sys.exit(FOUND)


_FILE = argument("file", type=Path, metavar="FILE")

COMMAND = Command(
    name="tokens",
    summary="the token whitelist, and what a change of it would affect",
    reads=TOKENS_AND_DATABASE,
    found="something was found",
    commands=[
        Command(
            name="list",
            summary="list the tokens in force",
            description="List the tokens of the file that STACKMGR_TOKENS names, by default the shipped one.",
            reads=TOKENS,
            run=_list,
        ),
        Command(
            name="check",
            summary="check a whitelist file",
            description="Check a whitelist file: exactly 30 tokens, EIP-55 checksums, no settlement asset.",
            reads=NOTHING,
            found="the file has a problem",
            run=_check,
            arguments=[_FILE],
        ),
        Command(
            name="diff",
            summary="compare two whitelist files",
            reads=NOTHING,
            found="the lists differ",
            run=_diff,
            arguments=[argument("old", type=Path, metavar="A"), argument("new", type=Path, metavar="B")],
        ),
        Command(
            name="impact",
            summary="show which saved stacks and retries a new whitelist file would affect",
            description="Compare FILE with the list that STACKMGR_TOKENS names here. Show which saved stacks "
            "hold tokens that would leave, and how many creation retries would turn from 200 into 400. "
            f"{NEEDS_READER}",
            found="a stack or a retry is affected",
            run=_impact,
            arguments=[
                _FILE,
                argument(
                    "--limit", type=row_limit, default=100, metavar="N", help="stacks to show (default 100)"
                ),
            ],
        ),
    ],
)
