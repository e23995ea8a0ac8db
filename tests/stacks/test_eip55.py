"""Keccak-256 against an independent implementation, and EIP-55 against its published examples."""

import hashlib

import pytest
from Crypto.Hash import keccak

from stackmgr.stacks.eip55 import eip55, keccak256


def independent(data):
    return keccak.new(digest_bits=256, data=data).digest()


@pytest.mark.parametrize("length", range(136))
def test_the_digest_is_the_one_of_an_independent_implementation_of_the_original_keccak(length):
    data = hashlib.shake_256(b"%d" % length).digest(length)
    assert keccak256(data) == independent(data)


@pytest.mark.parametrize(
    "address",
    [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
        "0xde709f2102306220921060314715629080e2fb77",
        "0x27b1fdb04752bbc536007a920d24acb045561c26",
    ],
)
@pytest.mark.parametrize("spell", [str.lower, lambda address: "0x" + address[2:].upper(), str])
def test_the_published_examples_of_eip55_come_out_of_any_spelling(address, spell):
    assert eip55(spell(address)) == address


def test_the_checksum_of_any_address_follows_the_independent_digest():
    for number in range(200):
        digits = hashlib.sha256(b"%d" % number).hexdigest()[:40]
        nibbles = independent(digits.encode()).hex()
        expected = "".join(d.upper() if n in "89abcdef" else d for d, n in zip(digits, nibbles, strict=False))
        assert eip55("0x" + digits) == "0x" + expected
