"""The header fields of requests, the trace context among them; the client checks those of each response."""

import falcon
import pytest
from falcon.testing import create_environ

from stackmgr.http.requests import parse_trace_context
from tests.support.client import STACKS
from tests.support.examples import MISSING, configuration
from tests.support.tables import each_case


@each_case("text", {
    "ordinary": ("0", "a,b", "F47AC10B-58CC-4372-A567-0E02B2C3D479", "two  spaces   inside"),
    "code": ('quotes " and \\ and {"braces":null}', "<script>alert(1)</script>", "%0d%0a%s%(x)s"),
    "Latin-1": ("caf\xe9", "\xa0", "\x85", "".join(map(chr, range(0x80, 0x100)))),
    "long": ("r" * 60000,),
})  # fmt: skip
def test_a_request_id_is_echoed(client, text):
    missing = client.get(MISSING, headers={"X-Request-Id": f" {text}\t"})
    assert missing.json["request_id"] == missing.headers["X-Request-Id"] == text
    assert missing.body.isascii()
    assert client.create(configuration(), headers={"X-Request-Id": text}).headers["X-Request-Id"] == text


@pytest.mark.parametrize("text", [None, "", " ", "     ", "\t", " \t "])
def test_a_blank_request_id_is_replaced(client, text):
    first, second = (client.get(MISSING, headers={"X-Request-Id": text}) for _ in range(2))
    assert first.json["request_id"] != second.json["request_id"]


ACCEPTS = ("application/xml", "text/html", "image/*", "*/*;q=0", "application/json;q=0", ";;,\xff", "")
REJECTED = [
    (400, "GET", f"{STACKS}?limit=0", {}), (401, "GET", STACKS, {"Authorization": None}),
    (404, "GET", f"{STACKS}/{MISSING}", {}), (404, "GET", "/nowhere", {}), (405, "DELETE", STACKS, {}),
]  # fmt: skip
CONDITIONS = ("current", "*", f'"{MISSING}"', "W/current", 'current, "x"', "garbage", '"')


@each_case(
    "fields",
    {name: [{name: value} for value in CONDITIONS] for name in ("If-Match", "If-None-Match", "If-Range")}
    | {
        "forms": [{"Accept": accept} for accept in ACCEPTS],
        "others": [
            {"If-Modified-Since": "Fri, 31 Dec 2100 23:59:59 GMT", "Range": "bytes=0-3"},
            {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT", "Accept-Charset": "utf-16"},
            {"X-HTTP-Method-Override": "PATCH", "Idempotency-Key": "of an update", "Accept-Encoding": "gzip"},
            {"X-Forwarded-Prefix": "/x", "Forwarded": "for=_;proto=https;host=x", "Expect": "100-continue"},
            {"X-Manager-Id": MISSING, "Manager-Id": MISSING, "Cookie": f"manager={MISSING}"},
        ],
    },
)  # fmt: skip
def test_no_other_field_changes_anything(client, fields):
    created = client.create(configuration())
    stack_id = created.json["id"]
    headers = {name: value.replace("current", created.headers["ETag"]) for name, value in fields.items()}
    assert client.get(stack_id, headers=headers).json == created.json
    assert client.request("HEAD", f"{STACKS}/{stack_id}", headers=headers).status_int == 200
    for name in ("Second", "Third"):  # the tag is outdated then
        assert client.update(stack_id, {"name": name}, headers).json["name"] == name
    assert client.create(configuration(), headers=headers).status_int == 201
    for status, method, path, more in REJECTED:
        assert client.request(method, path, headers=headers | more).status_int == status


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IDS = f"{TRACE}-{PARENT}"
VALID = f"00-{IDS}-01"
SENT = {
    **{f"00-{IDS}-{flags}": f"00-{IDS}-{flags}" for flags in ("00", "01", "02", "ff")},
    f"01-{IDS}-01": VALID, f"cc-{IDS}-00": f"00-{IDS}-00", f"fe-{IDS}-fe-": f"00-{IDS}-00",
    f"cc-{IDS}-03-what-the-future-will-be-like": VALID,
}  # fmt: skip


def parsed(**fields: str) -> dict[str, str] | None:
    environ = create_environ() | {f"HTTP_{name.upper()}": value for name, value in fields.items()}
    return parse_trace_context(falcon.Request(environ))


def test_a_traceparent_is_sent_as_version_00_without_a_state():
    for field, sent in SENT.items():
        assert parsed(traceparent=field, tracestate="rojo=1") == {"traceparent": sent}
    assert parsed() is None


@each_case("field", {
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
})  # fmt: skip
def test_any_other_traceparent_is_ignored(field):
    assert parsed(traceparent=field) is None
