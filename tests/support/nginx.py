"""nginx with the real deploy/nginx.conf in front of whatever listens on a port of this machine."""

import http.client
import io
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stackmgr import paths
from tests.support import processes
from tests.support.http_wire import RawClient
from tests.support.programs import require
from tests.support.server import Response, free_port, listening_ports

SITE = paths.directory("deploy") / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_SECOND_SERVER = "# server 10.0.0.12:8000 "
_RESPONSE_DEADLINE = 60.0
# What a distribution's nginx.conf may bring along, at its worst for this site.
_SURROUNDINGS = """
daemon off;
{processes}
pid {folder}/nginx.pid;
error_log {folder}/nginx.log info;
events {{ worker_connections 512; }}
http {{
    gzip on;
    gzip_min_length 1;
    gzip_proxied any;
    gzip_types application/json;
    server_tokens on;
    underscores_in_headers on;
    proxy_intercept_errors on;
    add_header Access-Control-Allow-Origin *;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    include {folder}/stackmgr.conf;
}}
"""


@dataclass(frozen=True)
class NginxProxy:
    """A running nginx, with the folder of its certificate and its logs."""

    port: int
    folder: Path

    def connect(self, *, tls: bool = True) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), _RESPONSE_DEADLINE)
        if not tls:
            return plain
        context = ssl.create_default_context(cafile=self.folder / "tls/fullchain.pem")
        return context.wrap_socket(plain, server_hostname="localhost")

    def request(
        self, method: str, path: str, headers: Mapping[str, str | bytes], body: bytes | Iterator[bytes] = b""
    ) -> Response:
        connection = http.client.HTTPConnection("localhost", self.port)
        connection.sock = self.connect()
        try:
            chunked = not isinstance(body, bytes)
            connection.request(method, path, body or None, dict(headers), encode_chunked=chunked)
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())
        finally:
            connection.close()

    def send(self, data: bytes, *, tls: bool = True) -> bytes:
        with RawClient(self.connect(tls=tls)) as client:
            # nginx may reject the request and close before all of it was sent.
            with suppress(OSError):
                client.send(data)
            return client.read_all()


def parse_responses(received: bytes, *, head: bool) -> list[Response]:
    stream, responses = io.BytesIO(received), []
    while status_line := stream.readline():
        version, status, _ = status_line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = http.client.parse_headers(stream)
        length = 0 if head else int(headers["Content-Length"])
        body = stream.read(length)
        assert len(body) == length
        responses.append(Response(int(status), headers, body))
    return responses


def site(folder: Path, port: int, upstream_port: int, changes: Mapping[str, str]) -> str:
    text = SITE.read_text()
    replacements = {
        "listen 443 ssl default_server;": f"listen 127.0.0.1:{port} ssl default_server;",
        "listen [::]:443 ssl default_server;": "",
        "server 127.0.0.1:8000 ": f"server 127.0.0.1:{upstream_port} ",
        "/etc/stackmgr/tls/": f"{folder}/tls/", "/var/log/nginx/": f"{folder}/", **changes,
    }  # fmt: skip
    for old, new in replacements.items():
        assert old in text, f"deploy/nginx.conf has no {old!r}"
        text = text.replace(old, new)
    return text


def make_certificate(folder: Path) -> None:
    openssl = require(shutil.which("openssl"), "openssl")
    folder.mkdir()
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = "-addext subjectAltName=DNS:localhost"
    made = f"-keyout {folder}/privkey.pem -out {folder}/fullchain.pem"
    subprocess.run([openssl, "req", *f"{options} {names} {made}".split()], check=True, capture_output=True)


@contextmanager
def nginx_before(
    folder: Path, *ports: int, changes: Mapping[str, str] | None = None, has_workers: bool = False
) -> Iterator[NginxProxy]:
    """Run nginx with one upstream server, or two, in an empty *folder*; a reload needs workers."""
    make_certificate(folder / "tls")
    port = free_port()
    every = dict(changes or {})
    if len(ports) == 2:
        every[_SECOND_SERVER] = f"server 127.0.0.1:{ports[1]} "
    own_user = "user root;" if os.geteuid() == 0 else ""  # otherwise its workers have the same user
    user = own_user if has_workers else "master_process off;"
    with running_nginx(folder, port, site(folder, port, ports[0], every), user):
        yield NginxProxy(port, folder)


@contextmanager
def running_nginx(folder: Path, port: int, servers: str, user: str = "master_process off;") -> Iterator[None]:
    nginx = require(NGINX, "nginx")
    (folder / "stackmgr.conf").write_text(servers)
    (folder / "nginx.conf").write_text(_SURROUNDINGS.format(folder=folder, processes=user))
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    log = folder / "nginx.log"
    with processes.running(command, log, lambda process: port in listening_ports(process.pid)):
        yield
