"""Measure how long a client waits while another attacks; times are in milliseconds.

One worker serves.  Connections of one key, or of none, repeat an attack, while a client of another key gets
one stack, one request at a time.  For each of these the benchmark reads the processor time that the worker
spends until the response is complete: unlike the time on the clock, it does not depend on what else the
machine does.  The kernel adds to it at every tick of its clock, so that a figure is exact to 4 ms.
"""

import argparse
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

import psutil

from tests.measure.attacks import ATTACKS, COLLECTION, Attack, Door, StatusReader, Target, repeat, request
from tests.measure.services import HERE, Checkout, postgres
from tests.support import examples
from tests.support.clusters import new_database
from tests.support.nginx import nginx_before
from tests.support.server import RunningService, send_request
from tests.support.unkey_server import unkey_process

_SLICES_CONF = HERE / "tests/measure/slices_conf.py"
_PROCESSES = 4
_LARGE_STACKS = 100
_SETTLE_SECONDS = 0.5
_PAUSE_SECONDS = 0.002
_HEADINGS = (
    "attack", "connections", "responses to it", "GETs", "not 200", "CPU p50", "p99", "p99.9", "max",
    "longest slice", "wall p99", "max",
)  # fmt: skip


@dataclass
class Measured:
    """The light client's GETs: processor time of the worker and time on the clock, in ms."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    slice: float = 0.0


@dataclass(frozen=True)
class AttackedService:
    """The service under attack, as the kernel accounts for it, and the two clients."""

    service: RunningService
    slices: Path  # the file of slices_conf.py
    door: Door
    target: Target
    light: bytes

    def cpu_ns(self) -> int:
        [pid] = [child.pid for child in psutil.Process(self.service.pid).children()]
        total = 0
        for path in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                total += int((path / "schedstat").read_text().split()[0])
        return total

    def longest_slice_ms(self) -> float:
        longest = int.from_bytes(self.slices.read_bytes()[:8], sys.byteorder)
        with self.slices.open("r+b") as file:
            file.write(bytes(8))
        return longest / 1e6

    def watch(self, seconds: float, *, renews: bool = False) -> Measured:
        found, end = Measured(), time.monotonic() + seconds
        self.longest_slice_ms()
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                with self.door.connect("127.0.0.1") as sock:
                    reader, is_kept = StatusReader(sock), True
                    while is_kept and time.monotonic() < end:
                        self._get(sock, reader, found, began)
                        time.sleep(_PAUSE_SECONDS)
                        began, is_kept = time.monotonic(), not renews
            except OSError as ex:
                found.failures[type(ex).__name__] += 1
        found.slice = self.longest_slice_ms()
        return found

    def _get(self, sock: socket.socket, reader: StatusReader, found: Measured, began: float) -> None:
        cpu = self.cpu_ns()
        try:
            sock.sendall(self.light)
            status = str(reader.status())
        finally:
            found.cpu.append((self.cpu_ns() - cpu) / 1e6)
            found.wall.append((time.monotonic() - began) * 1000)
        if status != "200":
            found.failures[status] += 1

    def attacked(self, attack: Attack, seconds: float) -> tuple[Measured, Counter[str]]:
        fork = multiprocessing.get_context("fork")
        results = fork.SimpleQueue()
        end = time.monotonic() + seconds + _SETTLE_SECONDS

        def run() -> None:
            os.nice(19)
            results.put(repeat(attack, self.door, self.target, attack.connections // _PROCESSES, end))

        processes = [fork.Process(target=run, daemon=True) for _ in range(_PROCESSES)]
        for process in processes:
            process.start()
        try:
            time.sleep(_SETTLE_SECONDS)
            measured = self.watch(seconds, renews=attack.meets_new_clients)
            for process in processes:
                process.join(15)
        finally:
            for process in processes:
                process.kill()
        received: Counter[str] = Counter()
        while not results.empty():
            received += results.get()
        return measured, received


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else nan


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} of {status}" for status, count in counts.most_common(4)) or "0"


def _row(name: str, connections: int, measured: Measured, received: Counter[str]) -> str:
    shares = [_percentile(measured.cpu, share) for share in (0.5, 0.99, 0.999, 1.0)]
    cells = [
        *(name, str(connections), _listed(received), str(len(measured.cpu)), _listed(measured.failures)),
        *(f"{value:.1f}" for value in (*shares, measured.slice)),
        *(f"{_percentile(measured.wall, share):.0f}" for share in (0.99, 1.0)),
    ]
    return f"| {' | '.join(cells)} |"


def _seed(checkout: Checkout, url: str, port: int) -> tuple[Target, bytes, dict[str, str]]:
    attacker, light = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))
    accounts = ((attacker,), (attacker, "--quota", "1/60"), (light,))
    keys = [checkout.issue(url, *account).key for account in accounts]

    def create(key: str, number: int, **fields: str) -> str:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"seed-{number}"}
        body = json.dumps(examples.configuration(**fields))
        status, text = send_request(port, COLLECTION, headers, "POST", body)
        assert status == 201, text
        return json.loads(text)["id"]

    ids = [create(keys[0], number, name="x" * 261_700) for number in range(_LARGE_STACKS)]
    headers = {"Authorization": f"Bearer {keys[0]}"}
    pages = [send_request(port, f"{COLLECTION}?limit={limit}", headers)[1] for limit in (1, 2, 3, 4)]
    cursors = [json.loads(page)["next_cursor"] for page in pages]
    get = request("GET", f"{COLLECTION}/{create(keys[2], 0)}", keys[2])
    return Target(keys[0], keys[1], ids[0], cursors), get, {keys[0]: attacker, keys[2]: light}


@contextmanager
def served(
    checkout: Checkout, env: dict[str, str], folder: Path, *, nginx: bool
) -> Iterator[tuple[RunningService, Path, Door]]:
    folder.mkdir()
    slices = folder / "slices"
    slices.write_bytes(bytes(16))
    with ExitStack() as stack:
        environ = env | {"STACKMGR_BENCH_SLICES": str(slices)}
        service = stack.enter_context(checkout.serve(environ, _SLICES_CONF))
        door = Door(service.port)
        if nginx:
            (folder / "nginx").mkdir()
            proxy = stack.enter_context(nginx_before(folder / "nginx", service.port))
            door = Door(proxy.port, proxy.folder / "tls/fullchain.pem")
        yield service, slices, door


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measure.fairness", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=5.0, help="of each attack (default 5)")
    add("--only", default="", metavar="TEXT,TEXT", help="attacks whose names contain one of these texts")
    add("--nginx", action="store_true", help="through nginx with deploy/nginx.conf")
    add("--checkout", type=Path, default=HERE, help="measure the service of another checkout")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-bench-")))
        url = stack.enter_context(new_database(stack.enter_context(postgres(folder))))
        checkout = Checkout(chosen.checkout.resolve())
        env = {"STACKMGR_DATABASE_URL": url, "WEB_CONCURRENCY": "1"}
        checkout.run("-m", "stackmgr", "migrate", **env)
        attacks = [each for each in ATTACKS if any(part in each.name for part in chosen.only.split(","))]
        print(f"| {' | '.join(_HEADINGS)} |\n|{'---|' * len(_HEADINGS)}", flush=True)
        with served(checkout, env, folder / "database", nginx=chosen.nginx) as parts:
            target, light, accounts = _seed(checkout, url, parts[0].port)
            local = [each for each in attacks if not each.verify_seconds]
            _measure(AttackedService(*parts, target, light), local, chosen.seconds)
        for attack in (each for each in attacks if each.verify_seconds):
            with (
                unkey_process(accounts, attack.verify_seconds) as (of_verifier, _),
                served(checkout, env | of_verifier, folder / "remote", nginx=chosen.nginx) as parts,
            ):
                _measure(AttackedService(*parts, target, light), [attack], chosen.seconds)


def _measure(service: AttackedService, attacks: list[Attack], seconds: float) -> None:
    print(_row("none", 0, service.watch(seconds), Counter()), flush=True)
    for attack in attacks:
        print(_row(attack.name, attack.connections, *service.attacked(attack, seconds)), flush=True)
        time.sleep(_SETTLE_SECONDS)


if __name__ == "__main__":
    main()
