"""nginx slows down, and then rejects, the requests of one key or one address, and of no other."""

import functools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from stackmgr.errors import ServiceUnavailable
from tests.support.client import STACKS, check_response
from tests.support.http_server import http_server, respond
from tests.support.nginx import SITE, NginxProxy, nginx_before, parse_responses
from tests.support.server import Response
from tests.support.waiting import eventually

KEY, OTHER = f"stackmgr_{'a' * 38}", f"stackmgr_{'b' * 38}"
# The same limits, reached by the third request: two pass at once, and the next is allowed a minute later.
TWO_KEYS = {"rate=1000r/s": "rate=1r/m", "stackmgr_key_rate burst=200": "stackmgr_key_rate burst=1 nodelay"}
TWO_ADDRESSES = {"rate=4000r/s": "rate=1r/m", "burst=1000": "burst=1 nodelay"}
TWO_LARGE = {"rate=100r/s": "rate=1r/m", "large_body_rate burst=200": "large_body_rate burst=1 nodelay"}
REAL_IP = "set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;"
BEHIND_A_PROXY = {"server_tokens off;": f"server_tokens off; {REAL_IP}"}


def send_request(proxy: NginxProxy, authorization=f"Bearer {KEY}", method="GET", body=b"", **headers: str):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return proxy.request(method, STACKS, {"Authorization": authorization} | given, body)


def check_rejected(response: Response, method: str = "GET") -> None:
    assert response.status == 429
    assert response.headers["Retry-After"] == "1"
    assert method == "HEAD" or response.json["message"] == "Too many requests."  # it may have no key
    check_response(method, STACKS, response.status, response.headers, response.body)


well = respond(200, {}, "Content-Type: application/json")


@contextmanager
def limited(folder, changes: dict[str, str]) -> Iterator[NginxProxy]:
    with http_server(well) as upstream, nginx_before(folder, upstream.port, changes=changes) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def two_a_key(tmp_path_factory) -> Iterator[NginxProxy]:
    """An nginx whose rate of a key the third request reaches: each test has keys of its own."""
    with limited(tmp_path_factory.mktemp("nginx"), TWO_KEYS) as proxy:
        yield proxy


def test_key_over_its_rate_is_rejected(two_a_key):
    secret = f"Bearer {'DO-NOT-LOG' * 30}"
    assert [send_request(two_a_key, secret).status for _ in range(2)] == [200, 200]
    response = send_request(two_a_key, secret, X_Request_Id="run-7")
    check_rejected(response)
    assert response.headers["X-Request-Id"] == "run-7"
    check_rejected(send_request(two_a_key, secret, "POST", b"{}"), "POST")
    assert send_request(two_a_key, f"{secret}x").status == 200
    access, failures = (two_a_key.folder / name for name in ("stackmgr.log", "stackmgr.error.log"))
    eventually(lambda: '"429"' in access.read_text())
    assert "DO-NOT-LOG" not in access.read_text() + failures.read_text()


@pytest.mark.parametrize("key", [KEY, "short", "k" * 40, "l" * 300, "m" * 16000], ids=len)
def test_a_key_has_one_rate_however_its_field_is_spelled(two_a_key, key):
    spellings = ["Bearer {}", "bEARER {}", "Bearer   {}", "\tBearer {}", "Bearer {}\t", "Bearer {}   "]
    statuses = [send_request(two_a_key, spelling.format(key)).status for spelling in spellings]
    assert statuses == [200, 200, 429, 429, 429, 429]


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer a b", "Basic abc", "a" * 16000, f"Bearer {'a ' * 8000}b"]
)
def test_malformed_credentials_share_no_rate(two_a_key, authorization):
    assert [send_request(two_a_key, authorization).status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize(("same", "other"), [
    (["192.0.2.1"] * 3, "192.0.2.2"),
    (["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::1"], "2001:db8:0:1::1"),
    (["2001:db8:a0a:a00::1"] * 3, "2001:db8:a0a:a01::1"),
], ids=["IPv4", "a network of IPv6", "line feeds among its bytes"])  # fmt: skip
def test_address_over_its_rate_is_rejected(tmp_path, same, other):
    with limited(tmp_path, TWO_ADDRESSES | BEHIND_A_PROXY) as proxy:
        responses = [send_request(proxy, f"Bearer key-{n}", X_Real_IP=of) for n, of in enumerate(same)]
        assert [response.status for response in responses] == [200, 200, 429]
        check_rejected(responses[-1])
        assert send_request(proxy, X_Real_IP=other).status == 200


def test_large_bodies_have_a_rate_of_their_own(tmp_path):
    large, small = b"x" * 10000, b"x" * 9999
    with limited(tmp_path, TWO_LARGE) as proxy:
        assert [send_request(proxy, method="POST", body=large).status for _ in range(3)] == [200, 200, 429]
        for coding in ("chunked", "Chunked"):
            chunked = send_request(proxy, method="POST", body=iter([small]), Transfer_Encoding=coding)
            check_rejected(chunked, "POST")
        assert send_request(proxy, method="POST", body=small).status == 200
        assert send_request(proxy, f"Bearer {OTHER}", method="POST", body=large).status == 200


@pytest.mark.parametrize(("authorization", "most"), [(f"Bearer {KEY}", 48), ("Basic abc", 64)])
def test_concurrent_requests_are_limited(tmp_path, authorization, most):
    released = threading.Event()

    def behave(connection, request):
        released.wait(60)
        return well(connection, request)

    with ExitStack() as stack:
        upstream = stack.enter_context(http_server(behave))
        proxy = stack.enter_context(nginx_before(tmp_path, upstream.port))
        pool = stack.enter_context(ThreadPoolExecutor(most + 2))
        stack.callback(released.set)
        held = [pool.submit(send_request, proxy, authorization) for _ in range(most)]
        eventually(lambda: len(upstream.requests) == most)
        check_rejected(send_request(proxy, authorization))
        other = pool.submit(send_request, proxy, f"Bearer {OTHER}")
        eventually(lambda: len(upstream.requests) == most + 1)
        released.set()
        assert [future.result().status for future in [*held, other]] == [200] * (most + 1)
        assert send_request(proxy, authorization).status == 200


@pytest.mark.parametrize("authorization", ["", "Basic abc", f"Bearer {KEY[:-3]}{{:03}}"])
def test_unfinished_requests_reject_no_read(tmp_path, authorization):
    head = f"POST {STACKS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nAuthorization: "
    with ExitStack() as stack:
        upstream = stack.enter_context(http_server(well))
        proxy = stack.enter_context(nginx_before(tmp_path, upstream.port))
        held = [stack.enter_context(proxy.connect()) for _ in range(256)]
        for number, connection in enumerate(held):
            connection.sendall(f"{head}{authorization.format(number)}\r\n\r\n{{".encode())
        write = functools.partial(send_request, proxy, authorization.format(999), "POST", b"{}")
        eventually(lambda: write().status == 429)
        check_rejected(write(), "POST")
        assert [send_request(proxy).status for _ in range(10)] == [200] * 10
        for connection in held:
            connection.close()
        eventually(lambda: write().status == 200)


def test_the_page_has_the_limits_of_the_file():
    text = (SITE.parent / "SCALING.md").read_text()
    assert f"`STACKMGR_QUEUE_TIMEOUT` gets {ServiceUnavailable.status} " in text
    page = text.partition("## Limits of nginx\n")[2].partition("\n## ")[0]
    limits = re.findall(r"(?:rate=|burst=|_status |limit_conn \w+ )(\d+)", SITE.read_text())
    # A body of five digits is one of 10 kB and more.
    assert {each.replace(",", "") for each in re.findall(r"\d[\d,]*", page)} == {*limits, "10"}


def test_32_connections_are_never_rejected(proxy, new_key):
    fields = f"GET {STACKS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {new_key()}\r\n"
    requests = (f"{fields}\r\n" * 63 + f"{fields}Connection: close\r\n\r\n").encode()
    with ThreadPoolExecutor(32) as pool:
        received = list(pool.map(lambda _: proxy.send(requests), range(32)))
    responses = [response for data in received for response in parse_responses(data, head=False)]
    assert Counter(response.status for response in responses) == {200: 32 * 64}
