"""Request bodies of every kind, as bytes: good ones, nearly good ones, JSON of any shape, and no JSON at all.

Most are put together from JSON texts and not from values: only so can a member stand there twice, a weight
be `1e2`, or a string hold half of a surrogate pair.  The good parts are made by chance alone and not drawn
piece by piece, as there are a great many of them and it is the faults that a failure has to be reduced to.
"""

import json
import re
from itertools import pairwise
from random import Random

from hypothesis import strategies as st

from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from tests.contract.generated.strategies import Document, chances, written
from tests.support import corpus
from tests.support.examples import ADDRESSES, PRESETS

FIELDS = ["name", "allocation", "schedule"]

CORPUS = [body for bodies in corpus.BODIES.values() for body in bodies]

ODD_NUMBERS = [
    *("1.0", "1e2", "1E4", "1e-2", "-0", "-0.0", "0.0", "5000.0", "1e999", "-1e999", "NaN", "Infinity"),
    *("-Infinity", "-1", "10001", "00", "01", "+1", "1_0", ".5", "5.", "0x10", "9" * 400, "9" * 5000),
    *("18446744073709551617", "2147483648", "1e", "--1"),
]
ODD_STRINGS = [
    *('""', '" "', '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\x"'),
    *('"\\u200b"', '"\\u0085"', '"\\u00a0"', '"\\ufeff"', '"\\u001c"', '"\n"', '"\\', '"\ud800"', "'a'"),
    *('"weekly"', '"Weekly"', f'"{corpus.FIRST}"', f'"{corpus.CHECKSUMMED}"', f'"{corpus.FIRST.upper()}"'),
    f'"{corpus.SETTLEMENT_ASSET}"',
]
ODD_NAMES = [
    '"id"',
    '"Name"',
    '"name "',
    '"n\\u0061me"',
    '""',
    '"__proto__"',
    '"current_revision_id"',
    "name",
]

# Parts of names: what other layers may trip over, between letters that keep the name from being blank.
ODD_TEXTS = [
    *("\x01\x7f", "\x85\u2028", "\u200b\ufeff", "\U0001f4c8", "\uffff\U0010ffff", "\ue000"),
    '"\\/\n',
]


def good_document(chance: Random) -> Document:
    """Return a good create body or, as often, a good update body of some of its fields."""
    addresses = chance.sample(ADDRESSES, chance.choice((1, 2, 3, 30)))
    cuts = sorted(chance.choices((0, 1, 5000, chance.randint(0, 10000), 10000), k=len(addresses) - 1))
    allocation = [
        {"token_address": address, "weight_bps": end - begin}
        for address, (begin, end) in zip(addresses, pairwise([0, *cuts, 10000]), strict=True)
    ]
    document = {
        "name": "".join(("n", *chance.choices(ODD_TEXTS, k=chance.randint(0, 3)))),
        "allocation": allocation,
        "schedule": {"preset": chance.choice(PRESETS)},
    }
    kept = FIELDS if chance.random() < 0.5 else chance.sample(FIELDS, chance.randint(1, 3))
    return {field: document[field] for field in kept}


def good_members(chance: Random) -> list[str]:
    """Return the members of a valid body as JSON texts, to be mutated."""
    document = good_document(chance)
    return [written({field: value}, chance).decode().strip()[1:-1] for field, value in document.items()]


good_bodies = chances.map(lambda chance: written(good_document(chance), chance))
scalars = st.one_of(
    st.sampled_from(["null", "true", "false", *ODD_NUMBERS]),
    st.sampled_from(ODD_STRINGS),
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.text(max_size=12).map(json.dumps),
)
member_names = st.one_of(
    st.sampled_from(['"name"', '"allocation"', '"schedule"', '"preset"', '"token_address"', '"weight_bps"']),
    st.sampled_from(ODD_NAMES),
)


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{name}:{value}" for name, value in members) + "}"


any_json = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(member_names, inner), max_size=4).map(_object),
    ),
    max_leaves=8,
)
items = st.one_of(
    st.tuples(st.sampled_from(ODD_STRINGS), st.one_of(scalars, st.just("10000"))),
    st.tuples(st.just(f'"{corpus.FIRST}"'), scalars),
    st.tuples(st.just(f'"{corpus.SECOND}"'), st.sampled_from(["0", "5000", "10000"])),
).map(lambda pair: _object([('"token_address"', pair[0]), ('"weight_bps"', pair[1])]))
field_values = {
    "name": st.one_of(st.sampled_from(ODD_STRINGS), scalars, any_json),
    "allocation": st.one_of(st.lists(items, max_size=4).map(lambda texts: f"[{','.join(texts)}]"), any_json),
    "schedule": st.one_of(
        st.lists(st.tuples(st.sampled_from(['"preset"', '"cron"']), scalars), max_size=2).map(_object),
        any_json,
    ),
}


WEIGHT, ADDRESS, QUOTE = r"(?<=[:\s])-?\d{1,18}(?=[\s,}])", r"(?<=0x)[0-9a-fA-F]{40}", r'"'


def nudged(member: str, chance: Random) -> str:
    """Return *member* with one thing about it changed that is easily overlooked."""
    kinds = [kind for kind in (WEIGHT, WEIGHT, ADDRESS, QUOTE) if re.search(kind, member)]
    if not kinds:  # it was replaced before
        return member
    kind = chance.choice(kinds)
    place = chance.choice(list(re.finditer(kind, member)))
    text = place[0]
    if kind == WEIGHT:
        more = str(int(text) + 1)
        other = chance.choice((f"{text}.0", f"{text}e0", f"{text}E+0", f'"{text}"', f"0{text}", more))
    elif kind == ADDRESS:
        at = chance.randrange(40)
        other = text[:at] + text[at].swapcase() + text[at + 1 :]
    else:
        other = chance.choice(('\\u0000"', '\\ud800"', '"\\u0000', '"\\udead', '\\"', '""', ' "', '" '))
    return member[: place.start()] + other + member[place.end() :]


@st.composite
def nearly_good(draw: st.DrawFn) -> bytes:
    """Draw a good body in which one or two things were nudged, replaced, added, repeated or left out."""
    members = draw(chances.map(good_members))
    for _ in range(draw(st.integers(1, 2))):
        field = draw(st.sampled_from(FIELDS))
        fault = draw(st.sampled_from(["nudge", "nudge", "replace", "add", "repeat", "drop"]))
        place = draw(st.integers(0, len(members)))
        if fault == "add":
            members.insert(place, f"{draw(member_names)}:{draw(scalars)}")
        elif fault == "repeat" and members:
            members.insert(place, draw(st.sampled_from(members)))
        elif members and fault == "nudge":
            number = min(place, len(members) - 1)
            members[number] = nudged(members[number], draw(chances))
        elif members and fault in {"replace", "drop"}:
            members.pop(min(place, len(members) - 1))
        if fault == "replace":
            members.append(f'"{field}":{draw(field_values[field])}')
    return f"{{{','.join(members)}}}".encode("utf-8", "surrogatepass")


@st.composite
def malformed_requests(draw: st.DrawFn) -> bytes:
    """Draw a body of which some bytes were replaced, cut out, or added."""
    body = draw(st.one_of(good_bodies, st.sampled_from(CORPUS)))
    begin = draw(st.integers(0, len(body)))
    end = draw(st.integers(begin, min(len(body), begin + 8)))
    piece = st.one_of(
        st.binary(max_size=4), st.sampled_from([b"\0", b"\\u0000", b"\xed\xa0\x80", b"}", b'"', b","])
    )
    return body[:begin] + draw(piece) + body[end:]


# Rare, as each costs as much as hundreds of others.
large = st.one_of(
    st.builds(
        lambda opening, closing, depth: opening * depth + closing * depth,
        *(
            st.sampled_from(pieces)
            for pieces in ([b"[", b'{"name":', b'{"allocation":['], [b"]", b"}", b"]}", b""])
        ),
        st.integers(100, 20_000),
    ),
    st.builds(lambda body, size: body.ljust(size), good_bodies, st.integers(BODY_LIMIT - 1, BODY_LIMIT + 2)),
    st.integers(1, 6).map(lambda power: corpus.field_text("name", f'"{"n" * 10**power}"')),
)
encoded = st.tuples(
    good_bodies, st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7"])
).map(lambda pair: pair[0].decode().encode(pair[1]))

usual = st.one_of(
    good_bodies,
    nearly_good(),
    nearly_good(),
    nearly_good(),
    malformed_requests(),
    any_json.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.one_of(st.binary(max_size=64), encoded),
)
bodies = st.integers(0, 99).flatmap(lambda number: large if number == 99 else usual)
