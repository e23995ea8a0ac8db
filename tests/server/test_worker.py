"""The worker class, met over loopback: real gunicorn processes, raw sockets.

Each test starts from what a client can do to a server. Deadlines are shortened by the configuration file the
servers are started with, so that the whole file stays under a minute.
"""

import contextlib
import hashlib
import importlib
import inspect
import random
import re
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http import body, unreader
from gunicorn.http.errors import NoMoreData

from stackmgr.server.body import Inbox
from stackmgr.server.worker import LENIENT
from tests.server.gunicorn_process import (
    Answer,
    Server,
    assert_error_object,
    chunked,
    closed_within,
    get,
    post,
    wait_until,
)
from tests.support.malformed import A_KEY, A_STACK, good_requests, requests_asked_for, spoiled

FUZZ_REQUESTS = requests_asked_for(5000)
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    assert server.stop() == 0
    assert server.boots == 1, server.log  # no test has cost a worker
    assert "Traceback" not in server.log


@pytest.fixture
def start(tmp_path):
    servers = []

    def start(config="", **options):
        servers.append(Server(tmp_path, config, **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()


# What ordinary clients do.


def test_kept_connection_serves_request_after_request(server):
    with server.connect() as sock:
        for number in range(50):
            sock.sendall(get(f"/{number}"))
            answer = Answer(sock)
            assert (answer.status, answer.json["path"]) == (200, f"/{number}")
            assert answer.headers["connection"] == "keep-alive"
            assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", answer.headers["date"])


def test_head_and_body_leave_in_one_packet(server):
    with server.connect(get("/one")) as sock:
        assert b"/one" in sock.recv(65536).partition(b"\r\n\r\n")[2]


def test_http10_and_connection_close_close(server):
    for request in (b"GET / HTTP/1.0\r\n\r\n", get("/", "Connection: close")):
        with server.connect(request) as sock:
            assert Answer(sock).headers["connection"] == "close"
            assert closed_within(sock, 3) < 0.5


def test_answer_of_unknown_length_is_chunked(server):
    answer = server.ask(get("/pieces"))
    assert answer.body == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"


def test_environ_is_that_of_pep_3333(server):
    environ = server.ask(
        get("/environ?a=1&b=%20", "X-A: 1", "x-a: 2", "Content-Type: text/x", "X-B: \xe9")
    ).json
    expected = {
        "REQUEST_METHOD": "GET", "QUERY_STRING": "a=1&b=%20", "PATH_INFO": "/environ", "SCRIPT_NAME": "",
        "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": str(server.port),
        "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "x", "HTTP_X_A": "1,2", "HTTP_X_B": "\xe9",
        "CONTENT_TYPE": "text/x", "wsgi.url_scheme": "http", "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
    }  # fmt: skip
    assert {key: environ.get(key) for key in expected} == expected
    assert "CONTENT_LENGTH" not in environ and "HTTP_CONTENT_TYPE" not in environ
    assert server.ask(get("/%C3%A9%20")).headers["x-path"] == b"/\xc3\xa9 ".hex()


def test_forwarding_headers_change_nothing(server):
    spoof = ("SCRIPT_NAME: /evil", "Script-Name: /evil", "PATH_INFO: /evil", "X-Forwarded-Proto: https",
             "X-Forwarded-Ssl: off", "X-Forwarded-Protocol: ssl", "X-Forwarded-For: 6.6.6.6")  # fmt: skip
    environ = server.ask(get("/environ", *spoof)).json
    kept = [environ[key] for key in ("SCRIPT_NAME", "PATH_INFO", "wsgi.url_scheme", "REMOTE_ADDR")]
    assert kept == ["", "/environ", "http", "127.0.0.1"]


@pytest.mark.parametrize("length", [0, 1, 8192, 65536, 262_144])
def test_body_arrives_whole(server, length):
    body = random.Random(length).randbytes(length)
    digest = hashlib.sha256(body).hexdigest()
    half = length // 2
    for request in (post("/echo", body), chunked("/echo", *(p for p in (body[:half], body[half:]) if p))):
        assert server.ask(request).json == {"length": length, "sha256": digest}


def test_tiny_chunks_with_extensions_and_trailers_arrive_whole(server):
    body = b"0123456789" * 2000
    head, _, _ = chunked("/echo").partition(b"\r\n\r\n")
    data = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-T: 1\r\n\r\n"
    with server.connect(head + b"\r\n\r\n" + data + get("/next")) as sock:
        answer = Answer(sock)
        assert answer.json == {"length": 20000, "sha256": hashlib.sha256(body).hexdigest()}
        assert Answer(sock, rest=answer.rest).json == {"path": "/next"}


@pytest.mark.parametrize("request_", [
    post("/echo", b"x" * 262_145), chunked("/echo", b"x" * 262_145), chunked("/echo", *[b"x" * 4000] * 80)
], ids=["length", "chunk", "chunks"])  # fmt: skip
def test_body_over_the_limit_is_the_applications_to_refuse(server, request_):
    answer = server.ask(request_)
    assert (answer.status, answer.json) == (413, {"read": "too large"})


def test_byte_by_byte_request_is_served(server):
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in chunked("/echo", b"abc"):
            sock.sendall(bytes([byte]))
        assert Answer(sock).json["length"] == 3


def test_pipelined_requests_are_all_answered_in_order(server):
    requests = b"".join(
        get(f"/{n}") + post("/echo", b"x" * n) + chunked("/echo", b"y" * (n + 1)) for n in range(40)
    )
    for cut in (len(requests), 1000):
        with server.connect(requests[:cut]) as sock:
            time.sleep(0.05)
            sock.sendall(requests[cut:])
            rest = b""
            for n in range(40):
                found = []
                for _ in range(3):
                    answer = Answer(sock, rest=rest)
                    found.append(answer.json.get("path", answer.json.get("length")))
                    rest = answer.rest
                assert found == [f"/{n}", n, n + 1]


def test_half_closed_client_gets_its_answer(server):
    with server.connect(get("/half")) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert Answer(sock).status == 200


def test_expect_100_continue(server):
    head, _, body = post("/echo", b"x" * 10, "Expect: 100-continue").partition(b"\r\n\r\n")
    with server.connect(head + b"\r\n\r\n") as sock:
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert Answer(sock).json["length"] == 10
    large = b"POST /refuse HTTP/1.1\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n\r\n"
    assert server.ask(large).status == 413
    with server.connect(large.replace(b"/refuse", b"/echo")) as sock:  # read by the application: invited then
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"x" * 300_000)
        assert Answer(sock).status == 413


def test_early_answer_to_a_large_upload_reaches_the_client(server):
    for size in (1_000_000, 10_000_000):
        assert server.ask(post("/refuse", b"x" * size)).status == 413


def test_an_unread_large_body_is_never_taken_for_a_request(server):
    with server.connect(post("/refuse", get("/smuggled") * 9000)) as sock:
        assert Answer(sock).headers["connection"] == "close"
        assert b"HTTP/1.1" not in read_all(sock)


# What the server itself refuses.

BAD = {
    "garbage": b"GARBAGE\r\n\r\n",
    "version": b"GET / HTTP/2.0\r\n\r\n",
    "method": b"G{T / HTTP/1.1\r\n\r\n",
    "target": b"GET /\xff HTTP/1.1\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: x\n\n",
    "bare LF in a header": b"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
    "folded line": b"GET / HTTP/1.1\r\nX-A: a\r\n b\r\n\r\n",
    "colon forgotten": b"GET / HTTP/1.1\r\nAuthorization Bearer SECRET\r\n\r\n",
    "space in a name": b"GET / HTTP/1.1\r\nX A: SECRET\r\n\r\n",
    "control": b"GET / HTTP/1.1\r\nX-A: a\x01SECRET\r\n\r\n",
    "long line": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    "long field": b"GET / HTTP/1.1\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\n" + b"X-A: a\r\n" * 101 + b"\r\n",
    "endless head": b"GET / HTTP/1.1\r\n" + b"X-A: aaaaaaa\r\n" * 10000,
    "endless line": b"GET /" + b"a" * 100_000,
    "lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "length": b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx",
    "huge length": b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx",
    "length and chunked": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding": b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "gzip alone": b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    "chunked 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "expectation": b"GET / HTTP/1.1\r\nExpect: SECRET\r\n\r\n",
    "chunk size": chunked("/echo", b"abc", end=b"SECRET\r\n\r\n"),
    "negative chunk": chunked("/echo", b"abc", end=b"-1\r\n\r\n"),
    "no chunk size": chunked("/echo", b"abc", end=b"\r\n\r\n"),
    "chunk end": chunked("/echo", end=b"3\r\nabcd\r\n0\r\n\r\n"),
    "chunk extension": chunked("/echo", end=b"3;\x01\r\nabc\r\n0\r\n\r\n"),
    "trailer": chunked("/echo", b"abc", end=b"0\r\nSECRET\r\n\r\n"),
    "forbidden trailer": chunked("/echo", b"abc", end=b"0\r\nContent-Length: 3\r\n\r\n"),
    "long chunk line": chunked("/echo", end=b"1;" + b"a" * 20_000),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_request_gets_an_error_object(server, name):
    answer = server.ask(BAD[name])
    assert_error_object(answer)
    assert "not valid HTTP" in answer.json["message"]  # refused for what it is, not for its deadline
    assert b"SECRET" not in answer.body
    assert "SECRET" not in server.log


@pytest.mark.parametrize("rest", [b'{"a":1}', b""])
def test_truncated_body_never_reaches_the_application(server, rest):
    head = b"POST /echo HTTP/1.1\r\nX-Request-Id: cut\r\n"
    for framing in (b"Content-Length: 50\r\n\r\n" + rest, b"Transfer-Encoding: chunked\r\n\r\n7\r\n" + rest):
        with server.connect(head + framing) as sock:
            sock.shutdown(socket.SHUT_WR)
            assert_error_object(Answer(sock), request_id="cut")


def test_truncated_or_broken_large_body_is_an_oserror_to_the_application(server):
    head = b"POST /echo HTTP/1.1\r\nContent-Length: 270000\r\n\r\n"
    with server.connect(head + b"x" * 200_000) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert Answer(sock).json == {"read": "NoMoreData"}
    broken = chunked("/echo", end=b"3\r\nabcXX" + b"fa0\r\n%s\r\n" % (b"SECRET" + b"x" * 3994) * 80)
    assert server.ask(broken).json == {"read": "IncompleteBody"}
    assert "SECRET" not in server.log


@pytest.mark.parametrize(("lines", "expected"), [
    (b"X-Request-Id: abc-1", "abc-1"),
    (b"x-REQUEST-id: \t a b\t ", "a b"),
    (b"X-Request-Id: \xc3\xa9\xff\x80", "\xc3\xa9\xff\x80"),
    (b"X-Request-Id: a\r\nX-Request-Id: b", "a,b"),
    (b'X-Request-Id: "}\\', '"}\\'),
    (b"X-Request-Id:   ", None),
    (b"X-Request-Id: a\x00b", None),
    (b"X-Request-Id: a\nX-Inj: b", None),
    (b"X_Request_Id: a", None),
    (b"", None),
])  # fmt: skip
def test_request_id_of_an_error(server, lines, expected):
    head = b"HTTP? / nonsense\r\n" + (lines + b"\r\n" if lines else b"")
    for request in (head + b"\r\n", b"GET / HTTP/1.1\r\nBroken\r\n" + lines + b"\r\n\r\n"):
        answer = server.ask(request)
        assert_error_object(answer, request_id=expected)
        if expected is None:
            assert UUID4.fullmatch(answer.headers["x-request-id"])
            assert "x-inj" not in answer.headers


def test_request_id_is_not_that_of_an_earlier_request(server):
    with server.connect(get("/", "X-Request-Id: first")) as sock:
        assert Answer(sock).status == 200
        sock.sendall(b"GET /\n\n")
        assert UUID4.fullmatch(Answer(sock).headers["x-request-id"])


def test_head_gets_no_error_body(server):
    with server.connect(b"HEAD / HTTP/1.1\r\nExpect: x\r\n\r\n") as sock:
        answer = Answer(sock, head_only=True)
        assert_error_object(answer, body=False)
        assert int(answer.headers["content-length"]) > 0
        assert answer.rest == b"" and sock.recv(10) == b""


@pytest.mark.parametrize("path", ["/raise", "/oserror", "/eof", "/exit", "/bad-header"])
def test_unexpected_exception_is_a_500_error_object(server, path):
    for _ in range(4):  # more than there are threads
        answer = server.ask(get(path, "X-Request-Id: mine"))
        assert_error_object(answer, 500, "internal_error", "mine")
    assert "SECRET" not in server.log + answer.body.decode()


def test_failure_after_the_answer_has_begun_cuts_the_connection(server):
    answer = server.ask(get("/late"))
    assert answer.ended and answer.body == b"first"


def test_fuzz(server):
    """Whatever comes: a valid answer, an Error object with its id, or a closed connection."""
    outcomes = Counter()
    for number, data in enumerate(spoiled(good_requests(A_KEY, A_STACK), FUZZ_REQUESTS)):
        head_only = data.lstrip(b"\r\n").startswith(b"HEAD ")
        with server.connect(data) as sock:
            sock.shutdown(socket.SHUT_WR)
            answer = Answer(sock, head_only=head_only)
        outcomes[answer.status or "closed"] += 1
        assert answer.status in (0, 200, 400), (number, data)
        if answer.status == 400 and "x-path" not in answer.headers:
            outcomes["refused by the server"] += 1
            assert_error_object(answer, body=not head_only)
    print(outcomes)
    assert outcomes["refused by the server"] > FUZZ_REQUESTS / 4
    assert server.probe(3) < 1


# What hostile or broken clients do.


def test_connections_that_hold_their_tongue_cost_no_thread(server):
    half_body = post("/echo", b"x" * 200_000)[:100_000]
    kinds = [(b"", 300), (b"G", 60), (half_body, 60), (chunked("/echo", b"x", end=b"5\r\nab"), 60),
             (get("/", "Connection: close"), 60)]  # fmt: skip
    socks = [server.connect(data) for data, count in kinds for _ in range(count)]
    assert server.probe() < 0.9
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("start_of_request", [b"G", get("/")[:-2], post("/echo", b"x" * 9)[:-1]])
def test_a_request_has_a_deadline_that_a_trickle_does_not_move(server, start_of_request):
    with server.connect(start_of_request[:-1]) as sock:
        start = time.monotonic()
        sock.settimeout(0.2)
        data = b""
        while not data and time.monotonic() - start < 5:
            try:
                data = sock.recv(65536)
            except TimeoutError:
                sock.sendall(b"x" if b"POST" not in start_of_request else b"")
        assert 0.9 < time.monotonic() - start < 2.5
        assert_error_object(Answer(sock, rest=data))


def test_a_large_body_that_stalls_frees_its_thread_at_the_deadline(server):
    head = b"POST /echo HTTP/1.1\r\nContent-Length: 270000\r\n\r\n"
    socks = [server.connect(head) for _ in range(4)]
    start = time.monotonic()
    assert [Answer(sock).json for sock in socks] == [{"read": "IncompleteBody"}] * 4
    assert time.monotonic() - start < 4
    for sock in socks:
        sock.close()


def test_a_client_that_does_not_read_costs_no_thread(server):
    socks = []
    for _ in range(6):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(get("/big?9000000"))
        socks.append(sock)
    assert server.probe() < 0.9
    time.sleep(2.5)  # the write deadline and a sweep
    for sock in socks:
        sock.settimeout(5)
        assert len(read_all(sock)) < 9_000_000
        sock.close()


def read_all(sock):
    data = b""
    try:
        while piece := sock.recv(1_000_000):
            data += piece
    except ConnectionError:
        pass
    return data


def test_a_slow_reader_gets_a_large_answer_whole(server):
    with server.connect(get("/big?9000000") + get("/next")) as sock:
        time.sleep(0.5)
        answer = Answer(sock)
        assert len(answer.json["filler"]) == 9_000_000
        assert Answer(sock, rest=answer.rest).json == {"path": "/next"}


def test_an_endless_answer_nobody_reads_is_cut_off(server):
    with server.connect(get("/endless")) as sock:
        time.sleep(2.5)
        assert len(read_all(sock)) < 30_000_000
    assert server.ask(get("/produced")).json["pieces"] < 400  # 25 MB: its producer had to wait
    assert server.probe(5) < 0.9


def test_an_answer_in_pieces_is_sent_as_it_is_made(server):
    with server.connect(get("/drip")) as sock:
        sock.settimeout(0.6)
        data = b""
        while b"first" not in data:
            data += sock.recv(65536)


def test_a_client_that_does_not_close_is_closed(server):
    with server.connect(get("/", "Connection: close")) as sock:
        assert Answer(sock).status == 200 and sock.recv(1) == b""  # the server's FIN
        time.sleep(2)
        with pytest.raises(ConnectionError):
            for _ in range(3):
                sock.sendall(b"x")
                time.sleep(0.05)


def test_idle_connections_are_closed_after_keepalive(server):
    with server.connect(get("/")) as sock:
        Answer(sock)
        assert 2.5 < closed_within(sock, 6) < 4.2


def test_one_busy_connection_does_not_starve_the_others(start):
    server = start("threads = 1")
    with server.connect() as busy:
        busy.sendall(get("/sleep?0.01") * 250)
        assert server.probe(3) < 1  # the whole burst takes 2.5 s


def test_worker_connections_is_a_bound_and_the_longest_idle_goes(start):
    server = start("worker_connections = 10\nkeepalive = 30")
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(25):  # one after the other, so that the first has waited longest
            socks.append(stack.enter_context(server.connect(get("/"))))
            assert Answer(socks[-1]).status == 200
        assert server.probe(3) < 0.9
        assert closed_within(socks[0], 1) < 1
        assert count_connections(server.port) <= 10


def count_connections(port):
    """Count the server's ends of established connections."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


# Life and death of the process.


def test_sigterm_finishes_what_is_in_flight_and_answers_latecomers(start):
    server = start()
    slow, late, idle = server.connect(get("/sleep?1.5")), server.connect(get("/")), server.connect()
    assert Answer(late).status == 200
    time.sleep(0.2)
    server.process.terminate()
    time.sleep(0.5)
    late.sendall(get("/late-but-fine"))
    answer = Answer(late)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    answer = Answer(slow)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    start_of_end = time.monotonic()
    for sock in (slow, late, idle):
        sock.close()
    assert server.process.wait(10) == 0
    assert time.monotonic() - start_of_end < 2


def test_sigterm_does_not_wait_for_ever(start):
    server = start("graceful_timeout = 1")
    with server.connect(get("/sleep?30")):
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5


def test_a_stuck_request_does_not_keep_a_retired_worker(start):
    server = start("graceful_timeout = 1\nmax_requests = 2")
    with server.connect(get("/sleep?30")):
        time.sleep(0.2)
        assert server.ask(get("/")).status == 200
        wait_until(lambda: server.boots == 2, 4)


def test_reload_loses_no_request(start):
    server = start("workers = 2")
    answered = 0
    for number in range(150):
        if number in (20, 80):
            server.process.send_signal(signal.SIGHUP)
        answered += server.ask(get("/", "Connection: close")).status == 200
        time.sleep(0.01)
    assert answered == 150
    wait_until(lambda: server.boots == 6, 5)


def test_max_requests_replaces_the_worker_without_losing_a_request(start):
    server = start("max_requests = 20")
    answers = [server.ask(get("/")) for _ in range(50)]
    assert all(answer.status == 200 for answer in answers)
    assert answers[19].headers["connection"] == "close"
    wait_until(lambda: server.boots >= 3, 5)


def test_hooks_and_access_log(start):
    server = start(
        'accesslog = "-"\n'
        "def pre_request(worker, req): worker.log.info('PRE %s', req.path)\n"
        "def post_request(worker, req, environ, resp): worker.log.info('POST %s', resp.status)\n"
    )
    assert server.ask(get("/hooked")).status == 200
    wait_until(lambda: "POST 200 OK" in server.log, 2)
    assert "PRE /hooked" in server.log
    assert '"GET /hooked HTTP/1.1" 200' in server.log


def test_several_listeners_and_processes(start):
    server = start("workers = 2", binds=2)
    for port in server.ports:
        with server.connect(get("/environ"), port) as sock:
            environ = Answer(sock).json
            assert (environ["SERVER_PORT"], environ["wsgi.multiprocess"]) == (str(port), True)


@pytest.mark.parametrize(("config", "reason"), [
    ('keyfile = certfile = "/etc/hostname"', "TLS"), ('protocol = "uwsgi"', "HTTP/1"),
    ('proxy_protocol = "auto"', "HTTP/1"),
])  # fmt: skip
def test_refuses_to_start_with_what_it_does_not_do(start, config, reason):
    server = start(config)
    assert server.process.wait(10) != 0
    assert reason in server.log


# The ground it stands on.

NAMES = {
    "gunicorn.workers.base:Worker": "init_process run notify handle_usr1 handle_exit",
    "gunicorn.http.body:Body": "_read_reader read", "gunicorn.http.body:LengthReader": "read",
    "gunicorn.http.body:ChunkedReader": "read", "gunicorn.http.unreader:Unreader": "read unread",
    "gunicorn.glogging:Logger": "access", "gunicorn.http.wsgi:base_environ": "",
    "gunicorn.util:http_date": "", "gunicorn.util:split_request_uri": "",
    "gunicorn.http.errors:ParseException": "", "gunicorn.http.errors:NoMoreData": "",
}  # fmt: skip


@pytest.mark.parametrize("place", NAMES)
def test_gunicorn_still_has_the_names_used(place):
    module, _, name = place.partition(":")
    owner = getattr(importlib.import_module(module), name)
    assert [attribute for attribute in NAMES[place].split() if not hasattr(owner, attribute)] == []


def test_gunicorn_still_behaves_as_relied_on():
    assert issubclass(NoMoreData, OSError)
    assert list(inspect.signature(unreader.Unreader.read).parameters) == ["self", "size", "read_ahead"]
    for name in (*LENIENT, "pre_request", "post_request", "header_map"):
        assert name in Config().settings
    source = Inbox(b"3;a=b\r\nabc\r\n0\r\nX-A: b\r\n\r\nnext")
    asked = SimpleNamespace(
        limit_request_field_size=100, max_buffer_headers=100, parse_headers=lambda data, **_: data
    )
    assert body.Body(body.ChunkedReader(asked, source)).read() == b"abc"
    assert (asked.trailers, source.rest()) == (b"X-A: b", b"next")
