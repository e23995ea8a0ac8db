"""Which header fields of a W3C Trace Context are valid, and what is sent on."""

import falcon
import pytest
from falcon.testing import create_environ

from stackmgr.http.requests import parse_trace_context
from tests.support.tables import each_case

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"


def parsed(**fields: str) -> dict[str, str] | None:
    environ = create_environ() | {f"HTTP_{name.upper()}": value for name, value in fields.items()}
    return parse_trace_context(falcon.Request(environ))


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        *(
            (f"00-{TRACE}-{PARENT}-{flags}", f"00-{TRACE}-{PARENT}-{flags}")
            for flags in ("00", "01", "02", "ff")
        ),
        (f"01-{TRACE}-{PARENT}-01", VALID),
        (f"cc-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-00"),
        (f"cc-{TRACE}-{PARENT}-03-what-the-future-will-be-like", VALID),
        (f"fe-{TRACE}-{PARENT}-fe-", f"00-{TRACE}-{PARENT}-00"),
    ],
)
def test_a_field_is_sent_on_unchanged_or_as_version_00_with_its_sampled_flag(field, sent):
    assert parsed(traceparent=field) == {"traceparent": sent}


IDS = f"{TRACE}-{PARENT}"


@each_case(
    "field",
    {
        "too little": ("", "-", "00", VALID[:-1], f"00-{IDS}", f"cc-{IDS}-0"),
        "more of version 00": [VALID + more for more in ("0", "-", "-what-the-future-will-be-like", "\n")],
        "two fields": (f"{VALID},{VALID}", f"{VALID}, {VALID}", f"01-{IDS}-01-more,01-{IDS}-01-more"),
        "another version": [f"{version}-{IDS}-01" for version in ("ff", "0", "000", ".0", "0A")],
        "another separator": (VALID.replace("-", "_"), f"cc-{IDS}-01.what-the-future-will-be-like"),
        "zeros": (f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"cc-{'0' * 32}-{PARENT}-01"),
        "capitals": (f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE}-{PARENT.upper()}-01", f"00-{IDS}-0A"),
        "another trace": [
            f"00-{trace}-{PARENT}-01" for trace in (TRACE[:-1], TRACE + "0", TRACE[:-1] + ".", "٤" * 32)
        ],
        "another parent": (f"00-{TRACE}-{PARENT[:-1]}-01", f"00-{TRACE}-{PARENT}0-01"),
    },
)
def test_any_other_field_is_ignored(field):
    assert parsed(traceparent=field) is None


def test_without_a_traceparent_there_is_no_context():
    assert parsed() is None


def test_a_state_is_not_sent_on():
    assert parsed(traceparent=VALID, tracestate="rojo=1") == {"traceparent": VALID}
