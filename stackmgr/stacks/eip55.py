"""The EIP-55 checksum of token addresses, and Keccak-256, which it needs.

hashlib's SHA3-256 is the NIST variant with another padding.  A library for 31 hashes at start would be the
largest run-time dependency.  Source: FIPS 202 with the original padding byte 0x01.  The tests compare it with
an independent implementation.
"""

_RATE = 136
_LANE = (1 << 64) - 1
_ROTATIONS = (
    (0, 36, 3, 41, 18),
    (1, 44, 10, 45, 2),
    (62, 6, 43, 15, 61),
    (28, 55, 25, 21, 56),
    (27, 20, 39, 8, 14),
)


def _round_constants() -> list[int]:
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(constant)
    return constants


_ROUND_CONSTANTS = _round_constants()


def _rotate(lane: int, by: int) -> int:
    return ((lane << by) | (lane >> (64 - by))) & _LANE


def _permute(a: list[list[int]]) -> list[list[int]]:
    for constant in _ROUND_CONSTANTS:
        c = [a[x][0] ^ a[x][1] ^ a[x][2] ^ a[x][3] ^ a[x][4] for x in range(5)]
        d = [c[x - 1] ^ _rotate(c[(x + 1) % 5], 1) for x in range(5)]
        b = [[0] * 5 for _ in range(5)]
        for x in range(5):
            for y in range(5):
                b[y][(2 * x + 3 * y) % 5] = _rotate(a[x][y] ^ d[x], _ROTATIONS[x][y])
        a = [[b[x][y] ^ (~b[(x + 1) % 5][y] & b[(x + 2) % 5][y]) for y in range(5)] for x in range(5)]
        a[0][0] ^= constant
    return a


def keccak256(data: bytes) -> bytes:
    """Return the 32-byte Keccak-256 digest of *data*."""
    padded = bytearray(data + b"\x01")
    padded += bytes(-len(padded) % _RATE)
    padded[-1] |= 0x80
    state = [[0] * 5 for _ in range(5)]
    for start in range(0, len(padded), _RATE):
        for lane in range(_RATE // 8):
            offset = start + 8 * lane
            state[lane % 5][lane // 5] ^= int.from_bytes(padded[offset : offset + 8], "little")
        state = _permute(state)
    return b"".join(state[x][0].to_bytes(8, "little") for x in range(4))


def eip55(address: str) -> str:
    """Return *address* (0x and 40 hex digits, any case) in its checksummed spelling."""
    digits = address[2:].lower()
    checksum = keccak256(digits.encode("ascii")).hex()
    cased = (
        digit.upper() if int(nibble, 16) >= 8 else digit
        for digit, nibble in zip(digits, checksum, strict=False)
    )
    return "0x" + "".join(cased)
