"""The whitelist as people read it: symbols and names beside the addresses that the service accepts."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stackmgr import settings
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist
from stackmgr.stacks.eip55 import eip55


@dataclass(frozen=True, slots=True)
class Token:
    """One entry; `address` is lowercase, `checksummed` its EIP-55 form."""

    symbol: str
    name: str
    address: str
    checksummed: str


@dataclass(frozen=True)
class TokenList:
    """A valid whitelist.  `spellings` is what the service validates with; `tokens` is keyed by address."""

    path: Path
    tokens: Mapping[str, Token]
    settlement: Token
    spellings: Mapping[str, str]

    def symbol(self, address: str) -> str:
        """Return the symbol of a lowercase address, or a short form of an address that is not listed."""
        token = self.tokens.get(address)
        return f"{address[:6]}…{address[-4:]}" if token is None else token.symbol

    def find(self, text: str) -> Token | None:
        """Return the token with this symbol or address, in any case."""
        wanted = text.lower()
        named = (token for token in self.tokens.values() if wanted in (token.symbol.lower(), token.address))
        return next(named, None)


def _token(entry: dict[str, str]) -> Token:
    address = entry["address"].lower()
    return Token(entry["symbol"], entry.get("name", ""), address, eip55(address))


def load(path: Path) -> TokenList:
    """Return the whitelist in *path*.  Raises WhitelistError."""
    spellings = whitelist.load(path)
    document = json.loads(path.read_bytes())
    tokens = [_token(entry) for entry in document["tokens"]]
    return TokenList(
        path, {token.address: token for token in tokens}, _token(document["settlement_asset"]), spellings
    )


def require(path: Path) -> TokenList:
    """Return the whitelist in *path*.  Raises CommandError with every problem."""
    try:
        return load(path)
    except whitelist.WhitelistError as ex:
        raise CommandError("\nstackmgr: ".join(ex.problems)) from ex


def in_force() -> TokenList:
    """Return the whitelist of the environment, by default the shipped one.  Raises CommandError."""
    return require(settings.tokens_path(os.environ))
