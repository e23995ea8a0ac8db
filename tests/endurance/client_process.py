"""The process of the clients, as the one that started it sees it."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.endurance.clients import Clients, Shared, Summary


def _main(recording: Path, connection: Any, *arguments: Any) -> None:
    with recording.open("wb") as file:
        everyone = Clients(file, *arguments)
        everyone.run()
    connection.send(everyone.summary)


class ClientProcess:
    """The process of the clients; `shared.port` says where the service is."""

    def __init__(self, seed: int, keys: list[str], count: int, port: int, recording: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.shared = Shared()
        self.shared.port.value = port
        self._summary, connection = context.Pipe(duplex=False)
        arguments = (recording, connection, seed, keys, count, self.shared)
        self._process = context.Process(target=_main, args=arguments, daemon=True)
        self._process.start()
        connection.close()

    @property
    def acknowledged(self) -> int:
        """How many creates, updates and replays have been acknowledged."""
        assert self._process.is_alive(), "the clients have ended"
        return int(self.shared.acknowledged.value)

    @property
    def failed(self) -> int:
        """How many requests have got 500, 503 or no response."""
        return int(self.shared.failed.value)

    def stop(self) -> Summary:
        """Let each client finish its operation, and return what they saw."""
        self.shared.stopping.value = True
        summary: Summary = self._summary.recv()
        self._process.join()
        return summary

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def clients(seed: int, keys: list[str], count: int, port: int, recording: Path) -> Iterator[ClientProcess]:
    """Run *count* clients until the context ends."""
    process = ClientProcess(seed, keys, count, port, recording)
    try:
        yield process
    finally:
        process.kill()
