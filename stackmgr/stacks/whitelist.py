"""The token whitelist: the tokens an allocation may contain, and their accepted spellings.

The complete file is checked at start.  Requests use only `spellings`, at most 60 strings.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stackmgr.limits import CHAIN_ID, TOKEN_COUNT
from stackmgr.settings import OPTIONS, SettingsError
from stackmgr.stacks.eip55 import eip55

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")


@dataclass(frozen=True, slots=True)
class Token:
    """One entry; `address` is lowercase, `checksummed` its EIP-55 form."""

    symbol: str
    name: str
    address: str
    checksummed: str


@dataclass(frozen=True)
class Whitelist:
    """A valid whitelist; `spellings` maps each accepted spelling to the lowercase address."""

    path: Path
    tokens: Mapping[str, Token]
    settlement: Token
    spellings: Mapping[str, str]


def _object(problems: list[str], members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object without repeated members, on whose value readers differ."""
    counts = Counter(name for name, _ in members)
    problems.extend(f"an object repeats the member {name!a}" for name, count in counts.items() if count > 1)
    return dict(members)


def _address(entry: Any, where: str, problems: list[str]) -> str | None:
    """Return the entry's address in lowercase.  On errors append to *problems* and return None."""
    if not isinstance(entry, dict):
        problems.append(f"{where} is not an object")
        return None
    symbol = entry.get("symbol")
    if not isinstance(symbol, str) or not symbol:
        problems.append(f"{where} has no symbol")
    address = entry.get("address")
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        problems.append(f"{where} has no address of the form 0x and 40 hexadecimal digits")
        return None
    if address not in (address.lower(), eip55(address)):
        problems.append(f"{where}: the address does not match its EIP-55 checksum")
        return None
    if address == "0x" + 40 * "0":
        problems.append(f"{where} is the zero address, which is not a token")
        return None
    return address.lower()


def _check(document: Any, problems: list[str]) -> None:
    """Append what is wrong with *document* to *problems*."""
    if not isinstance(document, dict):
        problems.append("the top level must be an object with chain_id, settlement_asset and tokens")
        return
    chain_id = document.get("chain_id")
    if type(chain_id) is not int or chain_id != CHAIN_ID:
        problems.append(f"chain_id must be the integer {CHAIN_ID}")
    settlement = _address(document.get("settlement_asset"), "settlement_asset", problems)
    entries = document.get("tokens")
    if not isinstance(entries, list):
        problems.append("tokens must be an array")
        return
    if len(entries) != TOKEN_COUNT:
        problems.append(f"there must be exactly {TOKEN_COUNT} tokens, there are {len(entries)}")
    found: list[str] = []
    for number, entry in enumerate(entries, start=1):
        address = _address(entry, f"token {number}", problems)
        if address is None:
            continue
        if address in found:
            problems.append(f"token {number} repeats an earlier address")
        if address == settlement:
            problems.append(f"token {number} is the settlement asset, which is not an allocation token")
        found.append(address)


def _token(entry: dict[str, str]) -> Token:
    address = entry["address"].lower()
    return Token(entry["symbol"], entry.get("name", ""), address, eip55(address))


def load(path: Path) -> Whitelist:
    """Return the whitelist in *path*.  Raises SettingsError with every problem of the file."""
    problems: list[str] = []
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=partial(_object, problems))
    except OSError as ex:
        problems = [f"cannot be read ({ex.strerror})"]
    except (ValueError, RecursionError):
        problems = ["is not a JSON document"]
    else:
        _check(document, problems)
    if problems:
        raise SettingsError([f"whitelist {path}: {problem}" for problem in problems])
    tokens = [_token(entry) for entry in document["tokens"]]
    return Whitelist(
        path,
        {token.address: token for token in tokens},
        _token(document["settlement_asset"]),
        {spelling: token.address for token in tokens for spelling in (token.address, token.checksummed)},
    )


def load_configured(environ: Mapping[str, str] = os.environ) -> Whitelist:
    """Return the whitelist of STACKMGR_TOKENS or the shipped one.  Raises SettingsError."""
    return load(OPTIONS["tokens"].read(environ, []))
