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


def _token(entry: Any, where: str, problems: list[str]) -> Token | None:
    """Return an entry of the file.  Append what is wrong with it to *problems*."""
    if not isinstance(entry, dict):
        problems.append(f"{where} is not an object")
        return None
    symbol, name, address = entry.get("symbol"), entry.get("name", ""), entry.get("address")
    if not isinstance(symbol, str) or not symbol:
        problems.append(f"{where} has no symbol")
    if not isinstance(name, str):
        problems.append(f"{where} has a name that is not a string")
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        problems.append(f"{where} has no address of the form 0x and 40 hexadecimal digits")
        return None
    if address not in (address.lower(), checksummed := eip55(address)):
        problems.append(f"{where}: the address does not match its EIP-55 checksum")
    if address == "0x" + 40 * "0":
        problems.append(f"{where} is the zero address, which is not a token")
    return Token(str(symbol), name, address.lower(), checksummed)


def _read(document: Any, problems: list[str]) -> tuple[dict[str, Token], Token | None]:
    """Return the tokens and the settlement asset.  Append what is wrong to *problems*."""
    tokens: dict[str, Token] = {}
    if not isinstance(document, dict):
        problems.append("the top level must be an object with chain_id, settlement_asset and tokens")
        return tokens, None
    chain_id, entries = document.get("chain_id"), document.get("tokens")
    if type(chain_id) is not int or chain_id != CHAIN_ID:
        problems.append(f"chain_id must be the integer {CHAIN_ID}")
    settlement = _token(document.get("settlement_asset"), "settlement_asset", problems)
    if not isinstance(entries, list):
        problems.append("tokens must be an array")
    elif len(entries) != TOKEN_COUNT:
        problems.append(f"there must be exactly {TOKEN_COUNT} tokens, there are {len(entries)}")
    for number, entry in enumerate(entries if isinstance(entries, list) else (), start=1):
        token = _token(entry, f"token {number}", problems)
        if token is None:
            continue
        if token.address in tokens:
            problems.append(f"token {number} repeats an earlier address")
        if settlement and token.address == settlement.address:
            problems.append(f"token {number} is the settlement asset, which is not an allocation token")
        tokens[token.address] = token
    return tokens, settlement


def load(path: Path) -> Whitelist:
    """Return the whitelist in *path*.  Raises SettingsError with every problem of the file."""
    problems: list[str] = []
    tokens: dict[str, Token] = {}
    settlement: Token | None = None
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=partial(_object, problems))
        tokens, settlement = _read(document, problems)
    except OSError as ex:
        problems = [f"cannot be read ({ex.strerror})"]
    except (ValueError, RecursionError):
        problems = ["is not a JSON document"]
    if problems or settlement is None:
        raise SettingsError([f"whitelist {path}: {problem}" for problem in problems])
    spellings = {text: each.address for each in tokens.values() for text in (each.address, each.checksummed)}
    return Whitelist(path, tokens, settlement, spellings)


def load_configured(environ: Mapping[str, str] = os.environ) -> Whitelist:
    """Return the whitelist of STACKMGR_TOKENS or the shipped one.  Raises SettingsError."""
    return load(OPTIONS["tokens"].read(environ, []))
