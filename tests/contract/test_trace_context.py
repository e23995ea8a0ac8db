"""Which header fields of a W3C Trace Context are valid, and what is sent on."""

import falcon
import pytest
from falcon.testing import create_environ

from stackmgr.http.requests import parse_trace_context

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"


def parsed(**fields: str) -> dict[str, str] | None:
    environ = create_environ() | {f"HTTP_{name.upper()}": value for name, value in fields.items()}
    return parse_trace_context(falcon.Request(environ))


@pytest.mark.parametrize("flags", ["00", "01", "02", "ff"])
def test_a_field_of_version_00_is_sent_on_unchanged(flags):
    field = f"00-{TRACE}-{PARENT}-{flags}"
    assert parsed(traceparent=field) == {"traceparent": field}


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        (f"01-{TRACE}-{PARENT}-01", VALID),
        (f"cc-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-00"),
        (f"cc-{TRACE}-{PARENT}-03-what-the-future-will-be-like", VALID),
        (f"fe-{TRACE}-{PARENT}-fe-", f"00-{TRACE}-{PARENT}-00"),
    ],
)
def test_a_field_of_a_later_version_is_sent_on_as_version_00_with_its_sampled_flag(field, sent):
    assert parsed(traceparent=field) == {"traceparent": sent}


@pytest.mark.parametrize(
    "field",
    [
        "",
        "-",
        "00",
        VALID[:-1],
        VALID + "0",
        f"{VALID}-",
        f"{VALID}-what-the-future-will-be-like",
        f"{VALID},{VALID}",
        f"{VALID}, {VALID}",
        f"01-{TRACE}-{PARENT}-01-more,01-{TRACE}-{PARENT}-01-more",
        f"cc-{TRACE}-{PARENT}-01.what-the-future-will-be-like",
        f"cc-{TRACE}-{PARENT}-0",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"000-{TRACE}-{PARENT}-01",
        f".0-{TRACE}-{PARENT}-01",
        f"0A-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"cc-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"00-{TRACE}-{PARENT}-0A",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE[:-1]}.-{PARENT}-01",
        f"00-{TRACE}-{PARENT[:-1]}-01",
        f"00-{TRACE}-{PARENT}0-01",
        f"00_{TRACE}_{PARENT}_01",
        f"00-{TRACE}-{PARENT}",
        f"{VALID}\n",
        f"00-{'٤' * 32}-{PARENT}-01",
    ],
)
def test_any_other_field_is_ignored(field):
    assert parsed(traceparent=field) is None


def test_without_a_traceparent_there_is_no_context():
    assert parsed() is None


def test_a_state_is_not_sent_on():
    assert parsed(traceparent=VALID, tracestate="rojo=1") == {"traceparent": VALID}
