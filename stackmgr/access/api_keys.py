"""The form of an API key.

A key is `stackmgr_`, 32 random characters of base 62 (190 bits) and their CRC-32 in 6 more: secret
scanners recognize it, and a mistyped key is rejected without a query.
"""

import hashlib
import re
import secrets
import zlib

_FORM = re.compile(r"stackmgr_([0-9A-Za-z]{32})([0-9A-Za-z]{6})")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _checksum(random_part: str) -> str:
    number = zlib.crc32(random_part.encode("ascii"))
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(5, -1, -1))


def generate() -> str:
    random_part = "".join(secrets.choice(_ALPHABET) for _ in range(32))
    return f"stackmgr_{random_part}{_checksum(random_part)}"


def is_well_formed(key: str) -> bool:
    """Whether *key* has the form of a key and the checksum that belongs to it."""
    form = _FORM.fullmatch(key)
    return form is not None and form[2] == _checksum(form[1])


def digest(key: str) -> bytes:
    """Return what is stored of a key.  190 random bits need no slow hash."""
    return hashlib.sha256(key.encode("ascii")).digest()


def identity_of(external_id: str) -> str:
    """Return the identity id that the database verifier gives to the holder of *external_id*."""
    return f"stackmgr:{external_id}"
