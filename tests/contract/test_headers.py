"""The header fields of requests; the client checks those of each response."""

from uuid import UUID

import pytest

from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.tables import each_case

MISSING = "0f0e0d0c-0b0a-4988-8776-655443322110"


@each_case(
    "text",
    {
        "ordinary": ("0", "a,b", "F47AC10B-58CC-4372-A567-0E02B2C3D479", "two  spaces   inside"),
        "code": ('quotes " and \\ and {"braces":null}', "<script>alert(1)</script>", "%0d%0a%s%(x)s"),
        "Latin-1": ("caf\xe9", "\xa0", "\x85", "".join(map(chr, range(0x80, 0x100)))),
        "long": ("r" * 60000,),
    },
)
def test_a_request_id_is_echoed_exactly_but_for_white_space_around_it(client, text):
    missing = client.get(MISSING, headers={"X-Request-Id": f" {text}\t"})
    assert missing.json["request_id"] == missing.headers["X-Request-Id"] == text
    assert missing.body.isascii()
    assert client.create(configuration(), headers={"X-Request-Id": text}).headers["X-Request-Id"] == text


@pytest.mark.parametrize("text", [None, "", " ", "     ", "\t", " \t "])
def test_a_missing_or_blank_request_id_is_replaced_by_a_new_uuid(client, text):
    first, second = (client.get(MISSING, headers={"X-Request-Id": text}) for _ in range(2))
    assert str(UUID(first.json["request_id"])) == first.json["request_id"]
    assert first.json["request_id"] != second.json["request_id"]


CONDITIONS = ("current", "*", f'"{MISSING}"', "W/current", 'current, "x"', "garbage", '"')


@each_case(
    "fields",
    {name: [{name: value} for value in CONDITIONS] for name in ("If-Match", "If-None-Match", "If-Range")}
    | {
        "dates": (
            {"If-Modified-Since": "Fri, 31 Dec 2100 23:59:59 GMT"},
            {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        ),
        "parts and forms": (
            {"Range": "bytes=0-3"},
            {"Expect": "100-continue"},
            {"Accept-Encoding": "gzip"},
            {"Accept-Charset": "utf-16"},
        ),
        "claims": (
            {"X-HTTP-Method-Override": "PATCH"},
            {"X-Forwarded-Prefix": "/x", "Forwarded": "for=_;proto=https;host=x"},
            {"X-Manager-Id": MISSING},
            {"Idempotency-Key": "of an update"},
        ),
    },
)
def test_no_other_field_of_a_request_changes_anything(client, fields):
    created = client.create(configuration())
    stack_id = created.json["id"]
    headers = {name: value.replace("current", created.headers["ETag"]) for name, value in fields.items()}
    assert client.get(stack_id, headers=headers).json == created.json
    assert client.request("HEAD", f"{STACKS}/{stack_id}", headers=headers).status_int == 200
    for name in ("Second", "Third"):  # the tag is outdated then
        assert client.update(stack_id, {"name": name}, headers).json["name"] == name
    assert client.create(configuration(), headers=headers).status_int == 201
