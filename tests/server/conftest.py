"""Servers for the tests of the worker class: gunicorn processes, and one in memory."""

from contextlib import ExitStack

import pytest

from tests.server.gunicorn_process import GunicornProcess
from tests.server.memory_server import MemoryServer


@pytest.fixture
def memory():
    with MemoryServer() as memory:
        yield memory


@pytest.fixture
def start(tmp_path):
    servers = []

    def start(config="", **options):
        servers.append(GunicornProcess(tmp_path, config, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def make():
    with ExitStack() as cleanup:
        yield lambda **settings: cleanup.enter_context(MemoryServer(with_listeners=True, **settings))


@pytest.fixture
def worker(make):
    return make()
