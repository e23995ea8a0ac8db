"""The form of an API key.

A key is `stackmgr_`, 32 random characters of base 62 (190 bits) and 6 more that are the CRC-32 of the
random ones: secret scanners recognise it, and a mistyped key is rejected without a query.
"""

import hashlib
import re
import secrets
import zlib

PATTERN = r"stackmgr_[0-9A-Za-z]{38}"
_PREFIX = "stackmgr_"
_RANDOM_LENGTH, _CHECKSUM_LENGTH = 32, 6
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _checksum(random_part: str) -> str:
    number = zlib.crc32(random_part.encode("ascii"))
    return "".join(_ALPHABET[number // 62**place % 62] for place in reversed(range(_CHECKSUM_LENGTH)))


def generate() -> str:
    """Return a new key."""
    random_part = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return _PREFIX + random_part + _checksum(random_part)


def is_well_formed(key: str) -> bool:
    """Whether *key* has the form of a key and the checksum that belongs to it."""
    random_part, checksum = key[len(_PREFIX) : -_CHECKSUM_LENGTH], key[-_CHECKSUM_LENGTH:]
    return re.fullmatch(PATTERN, key) is not None and checksum == _checksum(random_part)


def digest(key: str) -> bytes:
    """Return what is stored of a key.  190 random bits need no slow hash."""
    return hashlib.sha256(key.encode("ascii")).digest()


def identity_of(external_id: str) -> str:
    """Return the identity id that the database verifier gives to the holder of *external_id*."""
    return f"stackmgr:{external_id}"
