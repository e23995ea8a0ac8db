"""The form of an API key.

A key is `stackmgr_`, 32 random characters of base 62 (190 bits) and their CRC-32 in 6 more: secret
scanners recognize it, and a mistyped key is rejected without a query.
"""

import hashlib
import re
import secrets
import zlib

PATTERN = r"stackmgr_[0-9A-Za-z]{38}"
_FORM = re.compile(PATTERN)
_PREFIX = "stackmgr_"
_RANDOM_LENGTH = 32
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _checksum(random_part: str) -> str:
    number = zlib.crc32(random_part.encode("ascii"))
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(5, -1, -1))


def generate() -> str:
    random_part = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return _PREFIX + random_part + _checksum(random_part)


def is_well_formed(key: str) -> bool:
    """Whether *key* has the form of a key and the checksum that belongs to it."""
    if not _FORM.fullmatch(key):
        return False
    random_part = key[len(_PREFIX) : len(_PREFIX) + _RANDOM_LENGTH]
    return key[len(_PREFIX) + _RANDOM_LENGTH :] == _checksum(random_part)


def digest(key: str) -> bytes:
    """Return what is stored of a key.  190 random bits need no slow hash."""
    return hashlib.sha256(key.encode("ascii")).digest()


def identity_of(external_id: str) -> str:
    """Return the identity id that the database verifier gives to the holder of *external_id*."""
    return f"stackmgr:{external_id}"
