"""The EIP-55 checksum of token addresses, and Keccak-256, which it needs.

hashlib's SHA3-256 has another padding; a library would be the largest run-time dependency, for 31
hashes at start.  Source: FIPS 202 with the original padding byte 0x01.  The tests compare it with
an independent implementation.
"""

from functools import cache

_RATE = 136
_LANE = (1 << 64) - 1


def _rotate(lane: int, by: int) -> int:
    by %= 64
    return ((lane << by) | (lane >> (64 - by))) & _LANE


def _permute(a: list[list[int]]) -> list[list[int]]:
    register = 1
    for _ in range(24):
        c = [a[x][0] ^ a[x][1] ^ a[x][2] ^ a[x][3] ^ a[x][4] for x in range(5)]
        d = [c[x - 1] ^ _rotate(c[(x + 1) % 5], 1) for x in range(5)]
        b = [[a[0][0] ^ d[0]] * 5 for _ in range(5)]
        x, y = 1, 0
        for step in range(1, 25):  # visits each lane but the first
            b[y][(2 * x + 3 * y) % 5] = _rotate(a[x][y] ^ d[x], step * (step + 1) // 2)
            x, y = y, (2 * x + 3 * y) % 5
        a = [[b[x][y] ^ (~b[(x + 1) % 5][y] & b[(x + 2) % 5][y]) for y in range(5)] for x in range(5)]
        for power in range(7):  # the constant of the round
            a[0][0] ^= (register & 1) << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
    return a


def keccak256(data: bytes) -> bytes:
    """Return the 32-byte Keccak-256 digest of *data*, which is shorter than a block."""
    padded = bytearray((data + b"\x01").ljust(_RATE, b"\0"))
    padded[-1] |= 0x80
    state = [[0] * 5 for _ in range(5)]
    for lane in range(_RATE // 8):
        state[lane % 5][lane // 5] = int.from_bytes(padded[8 * lane : 8 * lane + 8], "little")
    state = _permute(state)
    return b"".join(state[x][0].to_bytes(8, "little") for x in range(4))


@cache
def eip55(address: str) -> str:
    """Return *address* (0x and 40 hex digits, any case) in its checksummed spelling."""
    digits = address[2:].lower()
    checksum = keccak256(digits.encode("ascii")).hex()
    pairs = zip(digits, checksum, strict=False)
    return "0x" + "".join(digit.upper() if nibble >= "8" else digit for digit, nibble in pairs)
