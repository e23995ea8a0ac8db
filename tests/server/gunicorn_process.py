"""A gunicorn with the worker class, requests as bytes, and answers read from a socket."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.server import free_port

ROOT = Path(__file__).resolve().parents[2]

HURRIED = """
import stackmgr.server.connection as c
c.READ_DEADLINE, c.WRITE_DEADLINE, c.DRAIN_SECONDS = 1.0, 1.5, 1.0
"""
CONFIG = """
control_socket_disable = True
worker_tmp_dir = "/dev/shm"
worker_class = "stackmgr.server.worker.Worker"
threads, keepalive, graceful_timeout = 2, 3, 5
"""


class Server:
    """A gunicorn process on a free port of loopback."""

    def __init__(self, folder, config="", binds=1, deadlines=HURRIED):
        self.ports = [free_port() for _ in range(binds)]
        self.port = self.ports[0]
        path = folder / "gunicorn.conf.py"
        path.write_text(
            f"{deadlines}{CONFIG}\nbind = {[f'127.0.0.1:{port}' for port in self.ports]}\n{config}\n"
        )
        self.log_path = folder / "log"
        command = [sys.executable, "-m", "gunicorn", "-c", str(path), "app:app"]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        wait_until(lambda: connects(self.port) or self.process.poll() is not None, 10)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def boots(self):
        return self.log.count("Booting worker")

    def connect(self, data=b"", port=None):
        sock = socket.create_connection(("127.0.0.1", port or self.port), timeout=8)
        sock.sendall(data)
        return sock

    def ask(self, data):
        """Send bytes on a new connection and return its first answer."""
        with self.connect(data) as sock:
            return Answer(sock, head_only=data.startswith(b"HEAD "))

    def probe(self, attempts=20):
        """Return the longest time a well-behaved request took."""
        times = []
        for _ in range(attempts):
            start = time.monotonic()
            assert self.ask(b"GET /probe HTTP/1.1\r\nHost: x\r\n\r\n").status == 200
            times.append(time.monotonic() - start)
        return max(times)

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


class Answer:
    """One HTTP answer read from a socket, `ended` if the connection was closed instead."""

    def __init__(self, sock, head_only=False, rest=b""):
        self.ended, data = False, rest
        try:
            while b"\r\n\r\n" not in data:
                data += self._more(sock)
            head, _, data = data.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            self.version, code, *_ = lines[0].split(" ")
            self.status = int(code)
            self.headers = {
                name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])
            }
            length = 0 if head_only else int(self.headers.get("content-length", 0))
            if "transfer-encoding" in self.headers:
                while not data.endswith(b"0\r\n\r\n"):
                    data += self._more(sock)
                length = len(data)
            while len(data) < length:
                data += self._more(sock)
            self.body, self.rest = data[:length], data[length:]
        except (EOFError, ConnectionError):
            self.ended, self.status, self.body, self.rest = True, 0, data, b""

    @staticmethod
    def _more(sock):
        data = sock.recv(65536)
        if not data:
            raise EOFError
        return data

    @property
    def json(self):
        return json.loads(self.body)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def closed_within(sock, seconds):
    """Read to the end; return the seconds until the server closed, or fail."""
    start = time.monotonic()
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - start


def request_bytes(method, path, headers, body=b""):
    fields = "".join(f"{header}\r\n" for header in ("Host: x", *headers))
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1") + body


def get(path, *headers):
    return request_bytes("GET", path, headers)


def post(path, body, *headers):
    return request_bytes("POST", path, (f"Content-Length: {len(body)}", *headers), body)


def chunked(path, *pieces, end=b"0\r\n\r\n"):
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end
    return request_bytes("POST", path, ("Transfer-Encoding: chunked",), body)


def assert_error_object(answer, status=400, code="invalid_request", request_id=None, body=True):
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["connection"] == "close"
    sent = answer.headers["x-request-id"]
    assert sent == request_id if request_id is not None else sent
    if body:
        assert int(answer.headers["content-length"]) == len(answer.body)
        found = answer.json
        assert found == {"code": code, "message": found["message"], "request_id": sent}
        assert found["message"]
