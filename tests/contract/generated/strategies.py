"""Strategies of Hypothesis: configurations, spellings of one, and different ones."""

import json
import unicodedata
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES, PRESETS

Document = dict[str, Any]
CHECKSUMMED = {address: eip55(address) for address in ADDRESSES}

# Anything PostgreSQL and JSON can both hold.
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30
).filter(lambda name: not name.isspace())
presets = st.sampled_from(PRESETS)
# A source of chance that is drawn in one go: the cases stay the same for the same seed.
chances = st.randoms(use_true_random=True)


@st.composite
def allocations(draw: st.DrawFn) -> list[Document]:
    """Draw a good allocation of 1 to 30 tokens in any order, with lowercase addresses."""
    addresses = draw(st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=30, unique=True))
    cuts = st.lists(st.integers(0, 10000), min_size=len(addresses) - 1, max_size=len(addresses) - 1)
    ends = [0, *sorted(draw(cuts)), 10000]
    weights = [end - begin for begin, end in pairwise(ends)]
    return [
        {"token_address": address, "weight_bps": weight}
        for address, weight in zip(addresses, weights, strict=True)
    ]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": names,
    "allocation": allocations(),
    "schedule": st.fixed_dictionaries({"preset": presets}),
}


# Good bodies of a create and of an update, as documents.
configurations = st.fixed_dictionaries(FIELDS)
changes = st.fixed_dictionaries({}, optional=FIELDS).filter(bool)


def normal(document: Document) -> Document:
    """Return a good body, or part of one, as the contract says it is saved."""
    saved = dict(document)
    if "allocation" in document:
        items = [item | {"token_address": item["token_address"].lower()} for item in document["allocation"]]
        saved["allocation"] = sorted(items, key=lambda item: item["token_address"])
    return saved


@st.composite
def unlike(draw: st.DrawFn, document: Document) -> Document:
    """Draw a good create body that differs from *document* in one field."""
    strategies = FIELDS | {
        "name": st.one_of(names, st.sampled_from(nearly_the_same_names(document["name"]))),
        "allocation": st.one_of(allocations(), reweighted(document["allocation"])),
    }
    field = draw(st.sampled_from(sorted(strategies)))
    other = strategies[field].map(lambda value: document | {field: value})
    return draw(other.filter(lambda changed: normal(changed) != normal(document)))


def nearly_the_same_names(name: str) -> list[str]:
    """Return *name*, and names that a normalization would confuse with it."""
    cases = [name.lower(), name.upper(), name.casefold(), name.strip()]
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC")]
    return [name, f"{name} ", f" {name}", f"{name}\u200b", f'{name}","daily', *cases, *forms]


@st.composite
def reweighted(draw: st.DrawFn, allocation: list[Document]) -> list[Document]:
    """Draw an allocation of the same tokens, between two of which some weight has moved."""
    changed = [dict(item) for item in allocation]
    giver, taker = draw(st.tuples(st.sampled_from(changed), st.sampled_from(changed)))
    moved = draw(st.integers(0, giver["weight_bps"]))
    giver["weight_bps"] -= moved
    taker["weight_bps"] += moved
    return changed


def written(document: Document, chance: Random) -> bytes:
    """Return *document* as JSON in any order, accepted spelling, whitespace and escapes."""
    return _value(document, chance).encode()


def _value(value: Any, chance: Random) -> str:
    if isinstance(value, dict):
        members = [(name, _respelled(name, member, chance)) for name, member in value.items()]
        chance.shuffle(members)
        pieces = [
            f"{_value(name, chance)}{_gap(chance)}:{_value(member, chance)}" for name, member in members
        ]
        text = f"{{{','.join(pieces) or _gap(chance)}}}"
    elif isinstance(value, list):
        pieces = [_value(item, chance) for item in chance.sample(value, len(value))]
        text = f"[{','.join(pieces) or _gap(chance)}]"
    elif isinstance(value, str):
        text = _string(value, chance)
    else:
        text = "-0" if value == 0 and chance.random() < 0.5 else json.dumps(value)
    return _gap(chance) + text + _gap(chance)


def _respelled(name: str, member: Any, chance: Random) -> Any:
    return CHECKSUMMED[member] if name == "token_address" and chance.random() < 0.5 else member


def _gap(chance: Random) -> str:
    return "" if chance.random() < 0.8 else "".join(chance.choices(" \t\r\n", k=chance.randint(1, 3)))


def _string(text: str, chance: Random) -> str:
    escaped_share = chance.choice((0.0, 0.0, 0.0, 0.1, 1.0))
    return f'"{"".join(_character(character, chance, escaped_share) for character in text)}"'


def _character(character: str, chance: Random, escaped_share: float) -> str:
    if chance.random() >= escaped_share:
        return json.dumps(character, ensure_ascii=False)[1:-1]
    if character == "/" and chance.random() < 0.5:
        return r"\/"
    units = character.encode("utf-16-be")
    digits = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
    return "".join(f"\\u{chance.choice((unit, unit.upper()))}" for unit in digits)
