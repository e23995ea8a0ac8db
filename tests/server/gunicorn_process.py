"""A gunicorn with the worker class, and requests as bytes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import http_wire, processes
from tests.support.server import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

# A client waits less long for its response than for any of these deadlines to pass.
CONFIG = """
import stackmgr.server.client as s
s.RECEIVE_SECONDS = s.SEND_SECONDS = s.DRAIN_SECONDS = 60.0
control_socket_disable = True
worker_tmp_dir = "/dev/shm"
worker_class = "stackmgr.server.worker.Worker"
threads, keepalive, graceful_timeout = 2, 3, 5
"""


class GunicornProcess:
    def __init__(self, folder, config=""):
        self.port = free_port()
        path = folder / "gunicorn.conf.py"
        path.write_text(f"{CONFIG}\nbind = '127.0.0.1:{self.port}'\n{config}\n")
        self.log_path = folder / "log"
        command = [sys.executable, "-m", "gunicorn", "-c", str(path), "app:app"]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        # The master boots its workers once it listens on every address.
        eventually(lambda: self.boots or self.process.poll() is not None)
        assert self.process.poll() is None, self.log

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def boots(self):
        return self.log.count("Booting worker")

    def connect(self, data=b""):
        return http_wire.connect(self.port, data)

    def request(self, data):
        with self.connect(data) as client:
            return client.response("HEAD" if data.startswith(b"HEAD ") else "GET")

    def wait_for_requests(self, number=1):
        eventually(lambda: self.log.count("has begun") >= number)

    def probe(self, attempts=3):
        """Send well-behaved requests.  Raises TimeoutError if one gets no response in 20 s."""
        for _ in range(attempts):
            assert self.request(b"GET /probe HTTP/1.1\r\nHost: x\r\n\r\n").status == 200

    def stop(self):
        return processes.stop(self.process)


def head(line, *fields, host="x"):
    return "\r\n".join([line, f"Host: {host}", *fields, "", ""]).encode("latin-1")


def get(path, *fields):
    return head(f"GET {path} HTTP/1.1", *fields)


def post(path, body, *fields):
    return head(f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}", *fields) + body


def chunked(path, *pieces, end=b"0\r\n\r\n"):
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end
    return head(f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked") + body


def assert_error_object(response, status=400, code="invalid_request", request_id=None, body=True):
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["connection"] == "close"
    sent = response.headers["x-request-id"]
    assert sent == request_id if request_id is not None else sent
    if body:
        assert int(response.headers["content-length"]) == len(response.body)
        found = response.json
        assert found == {"code": code, "message": found["message"], "request_id": sent}
        assert found["message"]
