"""Measure what many clients make one worker hold, and for how long they stop it.

Each client of a crowd sends its bytes, reads nothing, and stays for 13 seconds: longer than each of its
deadlines but that of silence.  Sizes are in MB, times in milliseconds of the processor.
"""

import argparse
import selectors
import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.measure.attacks import COLLECTION, request
from tests.measure.fairness import served
from tests.measure.services import HERE, Checkout

_SECONDS = 13.0
_SETTLE_SECONDS = 3.0
_ID = "X-Request-Id: " + "\xff" * 16_300  # which an Error object repeats as 98 kB
_FIELDS = [f"X-{number}: {'a' * 15_000}" for number in range(3)]
_BODY = b"x" * 262_144
_POST = request("POST", COLLECTION, "", _BODY, _ID, *_FIELDS[:2])
_SMALL_FIELDS = [f"{number:02}:" for number in range(90)]
CROWDS = {
    "silent": b"",
    "half heads, 1 byte": b"G",
    "half heads, long id": f"GET / HTTP/1.1\r\n{_ID}\r\nX".encode("latin-1"),
    "half bodies, long head": _POST[:-100_000],
    "half bodies, 90 fields": request("POST", COLLECTION, "", _BODY, *_SMALL_FIELDS)[:-262_000],
    "half chunks": request("POST", "/x", "", None, "Transfer-Encoding: chunked") + b"7d00\r\n" + b"x" * 9_000,
    "malformed": b"BAD\r\n\r\n",
    "unread errors": request("POST", "/x", "", _BODY, _ID),
    "unread errors, pipeline": _POST + request("GET", COLLECTION, "", None, *_FIELDS) + b"G" * 15_000,
    "unread, not closed": request("GET", "/x", "", None, _ID, "Connection: close"),
    "kept after a long head": request("GET", "/x", "", None, *_FIELDS, "X: " + "a" * 14_000),
}  # fmt: skip


def crowd(port: int, data: bytes, clients: int, end: float) -> int:
    """Connect *clients*, send *data* with each and keep them until *end*.

    Return how many have been sent it all.
    """
    complete = 0
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for _ in range(clients):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            sock.bind(("127.0.0.2", 0))
            sock.settimeout(0)
            sock.connect_ex(("127.0.0.1", port))
            selector.register(sock, selectors.EVENT_WRITE, memoryview(data))
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                try:
                    rest = key.data[key.fileobj.send(key.data) :]
                except OSError:
                    rest = None
                if rest:
                    selector.modify(key.fileobj, selectors.EVENT_WRITE, rest)
                else:
                    complete += rest is not None
                    selector.unregister(key.fileobj)
            if not selector.get_map():
                time.sleep(max(0.0, end - time.monotonic()))
    return complete


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measure.crowds", description=__doc__)
    add = parser.add_argument
    add("--clients", default="10,1000,8000")
    add("--only", default="", metavar="TEXT,TEXT", help="crowds whose names contain one of these")
    add("--checkout", type=Path, default=HERE, help="measure the service of another checkout")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"| crowd | clients | sent all | MB | after | longest slice | turn |\n|{'---|' * 7}", flush=True)
    for name, data in CROWDS.items():
        if not any(part in name for part in chosen.only.split(",")):
            continue
        for clients in map(int, chosen.clients.split(",")):
            _measure(Checkout(chosen.checkout.resolve()), name, data, clients)


def _measure(checkout: Checkout, name: str, data: bytes, clients: int) -> None:
    env = {"STACKMGR_DATABASE_URL": "postgresql://127.0.0.1:9/none", "WEB_CONCURRENCY": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-bench-") as folder,
        served(checkout, env, Path(folder) / "service", nginx=False) as (service, slices, _),
    ):
        [worker] = psutil.Process(service.pid).children()
        slices.write_bytes(bytes(16))
        Path(f"/proc/{worker.pid}/clear_refs").write_text("5")  # begins the peak anew
        complete = crowd(service.port, data, clients, time.monotonic() + _SECONDS)
        time.sleep(_SETTLE_SECONDS)
        lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        sizes = [int(status[field].split()[0]) // 1000 for field in ("VmHWM", "VmRSS")]
        times = memoryview(slices.read_bytes()).cast("q")
        cells = [name, clients, complete, *sizes, *(f"{each / 1e6:.1f}" for each in times)]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
