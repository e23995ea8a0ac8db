"""The worker's grammar: heads and chunked bodies, valid and invalid, also beside gunicorn's parser."""

import random
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from uuid import UUID

import pytest
from gunicorn.config import Config
from gunicorn.http import message, unreader
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import NoMoreData, ParseException

from stackmgr.errors import InvalidRequest
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.server.request import CHUNKS_AT_ONCE, ChunkedDecoder, HeadLimits, ReceivedRequest, id_and_method
from tests.server.gunicorn_process import head
from tests.support.malformed import fuzz_request_count, malformed_requests

GUNICORN = Config()
GUNICORN.set("http_parser", "python")
GUNICORN.set("permit_unconventional_http_method", True)
LIMITS = HeadLimits(4094, 100, 8190)
# The few forms that gunicorn accepts and this parser does not.
REJECTED_ON_PURPOSE = {"Expect", "Content-Length", "Transfer-Encoding", "no Host", "Host", "request target"}
STRANGER = ("192.0.2.1", 1)  # gunicorn believes more of a proxy of its own host


def malformed_heads() -> Iterator[bytes]:
    for data in malformed_requests(fuzz_request_count(5000)):
        lines, end, _ = data.partition(b"\r\n\r\n")
        if end:
            yield lines + end


def parsed_by_gunicorn(head: bytes) -> tuple[object, ...] | str:
    try:
        request = message.Request(GUNICORN, unreader.IterUnreader(iter([head])), STRANGER)
    except ParseException as ex:
        return str(ex)
    fields: dict[str, str] = {}
    for name, value in request.headers:
        values = [fields[name], value] if name in fields else [value]
        fields[name] = ",".join(filter(None, values) if name == "X-REQUEST-ID" else values)
    length = getattr(request.body.reader, "length", None)
    return request.method, request.version, request.uri, request.query, fields, length


def parsed_by_us(head: bytes) -> tuple[object, ...] | str:
    try:
        request = ReceivedRequest(head, LIMITS)
    except InvalidRequest as ex:
        return ex.at
    environ = dict(request.environ)
    for name in ("REQUEST_METHOD", "PATH_INFO", "SERVER_PROTOCOL"):
        del environ[name]
    uri, query = environ.pop("RAW_URI"), environ.pop("QUERY_STRING")
    fields = {name.removeprefix("HTTP_").replace("_", "-"): value for name, value in environ.items()}
    return request.method, request.version, uri, query, fields, request.length


def test_heads_are_parsed_as_by_gunicorn():
    accepted = 0
    for data in malformed_heads():
        ours, theirs = parsed_by_us(data), parsed_by_gunicorn(data)
        if isinstance(ours, tuple):
            assert ours == theirs, data
            accepted += 1
        elif isinstance(theirs, tuple):
            assert ours in REJECTED_ON_PURPOSE, data
    assert accepted > 1000


def get(*fields: str, line: str = "GET /a HTTP/1.1", host: str = "x") -> ReceivedRequest:
    return ReceivedRequest(head(line, *fields, host=host), LIMITS)


@pytest.mark.parametrize(("target", "path", "query"), [
    ("/a?b=c?d", "/a", "b=c?d"), ("/a%20b?%20", "/a b", "%20"), ("//a//b", "//a//b", ""),
    ("http://host/a?b", "/a", "b"), ("http://host", "", ""), ("/%C3%A9", "/\xc3\xa9", ""),
    ("HTTPS://[::ffff:192.0.2.1]:8443/a", "/a", ""), ("*", "*", ""),
])  # fmt: skip
def test_request_target_is_split(target, path, query):
    environ = get(line=f"{'OPTIONS' if target == '*' else 'GET'} {target} HTTP/1.1").environ
    assert [environ[name] for name in ("RAW_URI", "PATH_INFO", "QUERY_STRING")] == [target, path, query]


@pytest.mark.parametrize("method", ["GET", "get", "foo", "A", "M-SEARCH", "a" * 300, "!#$%&'*+-.^_`|~09"])
def test_a_method_is_any_token(method):
    assert get(line=f"{method} /a HTTP/1.1").method == method


@pytest.mark.parametrize("fields", [("A: b",) * (LIMITS.fields - 1), ("A: " + "b" * (LIMITS.field - 5),)])
def test_heads_up_to_the_limits_are_accepted(fields):
    environ = get(*fields, line="GET /" + "a" * (LIMITS.line - 14) + " HTTP/1.1").environ
    assert sum(name.startswith("HTTP_") for name in environ) == 2


def test_a_repeated_idempotency_key_is_none():
    for times in (2, 3):
        assert get(*["Idempotency-Key: a"] * times).environ["HTTP_IDEMPOTENCY_KEY"] == ""


@pytest.mark.parametrize(("values", "request_id"), [
    (["a b"], "a b"), (["", " "], ""), (["", "a", " \t", "b"], "a,b"), ([","], ","), (["\xe9"], "\xe9"),
    (["a" * 8170], "a" * 8170),
])  # fmt: skip
def test_request_ids_are_joined(values, request_id):
    data = head("GET /a HTTP/1.1", *(f"X-Request-Id: {value}" for value in values))
    assert ReceivedRequest(data, LIMITS).environ["HTTP_X_REQUEST_ID"] == request_id
    found, _ = id_and_method(data, 8190)
    assert found == (request_id or str(UUID(found)))


def test_too_long_a_request_id_is_none():
    longest, longer = (head("GET a HTTP/1.1", f"X-Request-Id: {'a' * size}") for size in (16368, 16369))
    assert id_and_method(longest, 16384)[0] == "a" * 16368
    assert UUID(id_and_method(longer, 16384)[0])


@pytest.mark.parametrize(("digits", "length"), [
    ("9" * 18, 10**18 - 1), ("9" * 19, 10**19 - 1), ("1" + "0" * 4300, 10**18), ("0" * 8000 + "9" * 19, 10**19 - 1),
    ("0" * 8000 + "7", 7), ("0" * 8000, 0), ("007", 7),
])  # fmt: skip
def test_a_length_has_any_number_of_digits(digits, length):
    request = get(f"Content-Length: {digits}")
    assert (request.length, request.environ["CONTENT_LENGTH"]) == (length, str(length))


@pytest.mark.parametrize("host", ["a", "", "a:80", "a:", "127.0.0.1", "[::1]:80", "a.b-c_d", "%41", "a,b"])
def test_a_valid_host(host):
    assert get(host=host).environ["HTTP_HOST"] == host


def test_few_field_names_are_cached():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            with pytest.raises(InvalidRequest):
                get(f"{'a' * 60_000}{number}: b")
            get(f"{'a' * 8_000}{number}: b")
            get(*[f"X-{number}-{each}: b" for each in range(99)])
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
GOOD = [
    b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", b'003;a=b\r\nabc\r\nA;a;b="c;d\\""\r\n0123456789\r\n0\r\n\r\n',
    b"1\r\nx\r\n" * 5 + b"0 ;a\r\nX-A: b\r\nX-B: c\r\n\r\n",
]  # fmt: skip
_TOKENS = [
    b"\r", b"\n", b"\r\n", b";", b"0", b"a", b"=", b'"', b" ", b"\t", b"\x00", b"\xff", b"0\r\n\r\n", b"Host: a\r\n",
]  # fmt: skip


def decode(data, cuts):
    """Return the content and what follows the body, for a body that arrives in pieces; None if it is malformed."""
    decoder = ChunkedDecoder(request := ReceivedRequest(HEAD, LIMITS))
    environ, inbox, start = dict(request.environ), bytearray(), 0
    for end in (*cuts, len(data)):
        inbox += data[start:end]
        start, size = end, -1
        while size != len(inbox):
            size = len(inbox)
            try:
                is_complete = decoder.feed(inbox)
            except InvalidRequest:
                return None
            if is_complete:
                assert request.environ == environ  # no trailer becomes a field
                return bytes(decoder.content), bytes(inbox) + data[end:]
    return None


def decode_by_gunicorn(data):
    class Connection:
        limit_request_field_size, max_buffer_headers = 8190, 65536

        @staticmethod
        def parse_headers(block, **_):
            ReceivedRequest(HEAD, LIMITS).check_trailers(block + b"\r\n")

    source = unreader.IterUnreader(iter([data]))
    try:
        content = Body(ChunkedReader(Connection(), source)).read()
    except (ParseException, NoMoreData, InvalidRequest):
        return None
    rest = b""
    while piece := source.read():
        rest += piece
    return content, rest


def mutants(count):
    chance = random.Random(20261121)
    for _ in range(count):
        data = bytearray(chance.choice(GOOD) + b"next")
        for _ in range(chance.randint(0, 3)):
            at = chance.randrange(len(data))
            if chance.random() < 0.6:
                data[at:at] = chance.choice(_TOKENS)
            else:
                del data[at]
        yield bytes(data), sorted(chance.randrange(len(data)) for _ in range(chance.randint(0, 5)))


def test_bodies_are_decoded_as_by_gunicorn():
    accepted, largest = 0, b"%x\r\n%b\r\n0\r\n\r\nnext" % (BODY_LIMIT_BYTES, bytes(BODY_LIMIT_BYTES))
    whole = ((largest, [len(largest) - left]) for left in range(20))
    for data, cuts in chain(whole, mutants(fuzz_request_count(5000))):
        expected = decode_by_gunicorn(data)
        assert decode(data, ()) == expected, data
        assert decode(data, cuts) == expected, (data, cuts)
        accepted += expected is not None
    assert accepted > 500


def test_few_chunks_are_decoded_at_once():
    decoder, inbox = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS)), bytearray(b"1\r\nx\r\n" * 300)
    for left in (300 - CHUNKS_AT_ONCE, 300 - 2 * CHUNKS_AT_ONCE, 0):
        assert not decoder.feed(inbox)
        assert len(inbox) == pytest.approx(6 * left, abs=3)


def test_the_longest_size_line_may_come_in_pieces():
    decoder, inbox = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS)), bytearray()
    line = b"1;" + b"a" * 8190
    for piece in (line, b"\r", b"\n"):
        inbox += piece
        assert not decoder.feed(inbox)
    with pytest.raises(InvalidRequest):
        ChunkedDecoder(ReceivedRequest(HEAD, LIMITS)).feed(bytearray(line + b"aa"))
