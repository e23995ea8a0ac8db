"""Lines are written at once where that cannot block, and by a thread, in order, where it could."""

import gc
import os
import socket
import weakref

import pytest

from stackmgr.monitoring import line_writer
from stackmgr.monitoring.line_writer import LineWriter
from tests.support.waiting import eventually

PATIENCE = 60


def pipe() -> tuple[int, int]:
    return os.pipe()


def socket_pair() -> tuple[int, int]:
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


@pytest.fixture(params=[pipe, socket_pair])
def ends(request):
    """The reading and the writing end, as descriptors."""
    reading, writing = request.param()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def fill(writing: int) -> int:
    """Write until nothing more fits; return how many bytes that took."""
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


def test_a_line_is_written_at_once_and_by_no_thread(ends):
    reading, writing = ends
    try:
        os.pwritev(writing, [b"zero\n"], -1, os.RWF_NOWAIT)
    except OSError as ex:
        pytest.skip(f"this kernel has no non-blocking write to a pipe: {ex}")
    assert os.read(reading, 100) == b"zero\n"
    lines = writer(writing)
    lines.write(b"one\n")
    assert os.read(reading, 100) == b"one\n"
    assert lines._thread is None


def test_lines_for_a_file_are_written_in_order_by_a_thread_that_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(line_writer, "_IDLE_GATHERS", 2)
    with (tmp_path / "log").open("ab") as file:
        lines = writer(file.fileno())
        for _ in range(2):
            for number in range(20_000):
                lines.write(b"%d\n" % number)
            lines.flush(PATIENCE)
            eventually(lambda: lines._thread is None)
    assert (tmp_path / "log").read_bytes() == 2 * b"".join(b"%d\n" % number for number in range(20_000))


def test_lines_that_do_not_fit_follow_in_order_once_there_is_room(ends):
    reading, writing = ends
    size = fill(writing)
    lines = writer(writing)
    for number in range(50):
        lines.write(b"%d\n" % number)
    while size:
        size -= len(os.read(reading, size))
    for number in range(50, 100):  # while the thread has just begun
        lines.write(b"%d\n" % number)
    expected = b"".join(b"%d\n" % number for number in range(100))
    received = b""
    while len(received) < len(expected):
        received += os.read(reading, 4096)
    assert received == expected
    eventually(lambda: lines._is_idle)
    lines.write(b"last\n")
    assert os.read(reading, 100) == b"last\n"
    assert lines.dropped == 0


def test_a_writer_that_nothing_uses_is_not_kept_for_a_fork_or_the_exit(ends):
    _, writing = ends
    lines = weakref.ref(writer(writing))
    gc.collect()
    assert lines() is None
