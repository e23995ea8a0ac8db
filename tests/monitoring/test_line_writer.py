"""Lines are written by a thread, in order; those that it cannot write are counted and reported."""

import gc
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from unittest.mock import Mock, call, patch

import pytest

from stackmgr.monitoring import line_writer
from stackmgr.monitoring.line_writer import MAX_PENDING_BYTES, LineWriter
from tests.support.waiting import eventually

PATIENCE = 60


@pytest.fixture(params=["pipe", "socket"])
def ends(request):
    if request.param == "pipe":
        reading, writing = os.pipe()
    else:
        reading, writing = (end.detach() for end in socket.socketpair())
    yield reading, writing
    os.close(reading)
    os.close(writing)


def fill(writing: int) -> int:
    os.set_blocking(writing, False)
    size = 0
    try:
        while True:
            size += os.write(writing, b"x" * 512)
    except BlockingIOError:
        os.set_blocking(writing, True)
        return size


def writer(fd: int) -> LineWriter:
    return LineWriter(fd, lambda dropped: b"%d dropped\n" % dropped)


def test_lines_are_written_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(line_writer, "_IDLE_GATHERS", 2)
    with (tmp_path / "log").open("ab") as file:
        lines = writer(file.fileno())
        for _ in range(2):
            for number in range(20_000):
                lines.write(b"%d\n" % number)
            eventually(lambda: lines._thread is None)
    assert (tmp_path / "log").read_bytes() == 2 * b"".join(b"%d\n" % number for number in range(20_000))


def in_this_thread(call: Callable, otherwise: Callable) -> Callable:
    """Threads of earlier tests may still write."""
    own, now = threading.current_thread(), threading.current_thread
    return lambda *given: (call if now() is own else otherwise)(*given)  # noqa: PLW0108 - at each call


@pytest.mark.parametrize("blocks", [True, False])  # another process with the same pipe may set O_NONBLOCK
def test_lines_that_do_not_fit_follow(ends, monkeypatch, blocks):
    reading, writing = ends
    size = fill(writing)
    os.set_blocking(writing, blocks)
    lines = writer(writing)
    for number in range(50):
        lines.write(b"%d\n" % number)
    eventually(lambda: len(lines._pending) < 50)
    assert lines.dropped == 0
    sleep = time.sleep

    def drain(seconds):
        nonlocal size
        if size:
            size -= len(os.read(reading, size))
            for number in range(50, 100) if not size else ():  # while the thread has just begun
                lines.write(b"%d\n" % number)
        sleep(seconds)

    monkeypatch.setattr(line_writer, "_EXIT_SECONDS", PATIENCE)
    monkeypatch.setattr(time, "sleep", in_this_thread(drain, sleep))
    lines.flush()
    assert (size, lines._pending_bytes) == (0, 0)
    expected = b"".join(b"%d\n" % number for number in range(100))
    received = b""
    while len(received) < len(expected):
        received += os.read(reading, 4096)
    assert received == expected
    assert lines.dropped == 0


def test_a_full_pipe_is_tried_at_intervals(ends, monkeypatch):
    lines, calls = writer(ends[1]), Mock(**{"write.side_effect": [BlockingIOError, BlockingIOError, 2]})
    for module, name in ((os, "write"), (time, "sleep")):
        monkeypatch.setattr(module, name, in_this_thread(getattr(calls, name), getattr(module, name)))
    assert lines._write_all(b"x\n")
    pause = call.sleep(line_writer._GATHER_SECONDS)
    assert calls.mock_calls[1:4] == [pause, call.write(ends[1], b"x\n"), pause]


def test_bound_is_of_waiting_lines(tmp_path):
    line = 1023 * b"x" + b"\n"
    with (tmp_path / "log").open("ab") as file:
        lines = writer(file.fileno())
        with patch.object(threading.Thread, "start", side_effect=RuntimeError):
            lines.write(b"dropped\n")
        for _ in range(3):
            for _ in range(MAX_PENDING_BYTES // len(line)):
                lines.write(line)
            lines.write(b"dropped\n")
            eventually(lambda: not lines._pending)
            lines.flush()
    assert lines.dropped == 4
    written = (tmp_path / "log").read_bytes()
    assert written.replace(line, b"") == b"2 dropped\n" + 2 * b"1 dropped\n"
    assert written.count(line) == 3 * MAX_PENDING_BYTES // len(line)


def test_what_is_dropped_is_reported_once(ends, monkeypatch):
    lines, failures, write_all = writer(ends[1]), [b"1 dropped\n"], LineWriter._write_all

    def report(dropped):
        lines.drop(2 * (dropped == 1 and not failures))  # meanwhile
        return b"%d dropped\n" % dropped

    monkeypatch.setattr(lines, "_report", report)

    def failing(text):
        return failures.clear() if text in failures else write_all(lines, text)

    monkeypatch.setattr(lines, "_write_all", failing)
    lines.drop()
    for number in range(4):
        lines.write(b"%d\n" % number)
        lines.flush()
    assert os.read(ends[0], 4096) == b"0\n1\n1 dropped\n2\n2 dropped\n3\n"


@pytest.fixture
def pieces(monkeypatch):
    pieces = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, text: pieces.append(bytes(text)) or write(fd, text))
    return pieces


def test_lines_are_written_in_pieces(ends, tmp_path, pieces, monkeypatch):
    monkeypatch.setattr(line_writer, "_FILE_PIECE_BYTES", 16_000)
    with (tmp_path / "log").open("ab") as file:
        for fd, longest in ((ends[1], select.PIPE_BUF // 200 * 200), (file.fileno(), 16_000)):
            pieces.clear()
            lines = writer(fd)
            for _ in range(200):
                lines.write(199 * b"x" + b"\n")
            lines.flush()
            assert (sum(map(len, pieces)), max(map(len, pieces))) == (40_000, longest)
            assert all(piece.endswith(b"\n") for piece in pieces)


def test_torn_line_is_ended_before_the_next_and_a_fork_begins_anew(tmp_path):
    """The limit on the size of a file takes the beginning of a line, as a full disk does."""
    script = """
import os, resource, signal, sys, threading
from stackmgr.monitoring.line_writer import MAX_PENDING_BYTES, LineWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lines = LineWriter(1, lambda dropped: b"%d dropped\\n" % dropped)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
lines.write(b"one\\n")
lines.flush()
lines.write(b"two, torn\\n")
lines.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with lines._lock:  # of the same thread: a signal handler may interrupt a write
    lines.write(b"three\\n")
lines.flush()
assert lines._pending_bytes == 0
lines.write(b"parent\\n")
other = threading.Thread(target=lines._lock.acquire)
other.start()
other.join()
if pid := os.fork():
    sys.exit(os.waitpid(pid, 0)[1])
signal.alarm(20)
lines.drop()
lines.write(b"child\\n")
lines.flush()
os._exit(lines.dropped - 1 + lines._pending_bytes)
"""
    with (tmp_path / "log").open("ab") as file:
        subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE, stdout=file)
    written = (tmp_path / "log").read_bytes().split(b"\n")
    assert written[:4] == [b"one", b"two, t", b"three", b"1 dropped"]
    assert sorted(written[4:]) == [b"", b"1 dropped", b"child", b"parent"]


def test_unused_writer_is_not_kept(ends):
    _, writing = ends
    lines = weakref.ref(writer(writing))
    gc.collect()
    assert lines() is None
