"""A service that stops responds to every connected client, also to those not yet accepted."""

import contextlib
import signal
import socket

import psutil
import pytest

from tests.support.server import running_service

GET = b"GET / HTTP/1.1\r\nHost: stackmgr.test\r\nConnection: close\r\n\r\n"


def status_line(sock: socket.socket) -> bytes:
    received = b""
    while chunk := sock.recv(65536):
        received += chunk
    return received.split(b"\r\n")[0]


@pytest.mark.parametrize("sent_before", [True, False])
def test_a_stop_serves_waiting_connections(database_url, sent_before):
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running_service(database_url, env={"WEB_CONCURRENCY": "2"}))
        workers = psutil.Process(service.pid).children()
        assert len(workers) == 2
        for worker in workers:
            worker.suspend()  # so that all of them are still in the listener's queue when the signal comes
        address = ("127.0.0.1", service.port)
        clients = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(100)]
        for client in clients if sent_before else []:
            client.sendall(GET)
        service.process.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.resume()
        for client in clients if not sent_before else []:
            client.sendall(GET)
        assert [status_line(client) for client in clients] == [b"HTTP/1.1 404 Not Found"] * 100
        assert service.process.wait(60) == 0
