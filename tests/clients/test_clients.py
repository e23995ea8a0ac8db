"""The client programs and the samples of the API reference, run against the service.

A program creates, pages through all stacks, meets a conflict, and updates what it has read.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from stackmgr import paths
from stackmgr.access import api_keys
from tests.support.http_proxy import Exchange, http_proxy
from tests.support.openapi import OPERATIONS
from tests.support.processes import completed
from tests.support.programs import require
from tests.support.server import exchange

HERE = Path(__file__).parent
SCHEMAS = paths.directory("schemas")
COUNTS = b"""
    SELECT s.name, count(*) FROM stackmgr.api_keys k JOIN stackmgr.managers m USING (external_id)
    JOIN stackmgr.stacks s USING (manager_id) JOIN stackmgr.stack_revisions r USING (manager_id, stack_id)
    WHERE k.key_digest = %s GROUP BY s.stack_id, s.name ORDER BY s.name
"""


@pytest.fixture
def counts(admin, key):
    return lambda: admin.execute(COUNTS, [api_keys.digest(key)]).fetchall()


def run(command: list[str], folder: Path, **environment: str) -> str:
    ran = completed(command, cwd=folder, env=os.environ | environment, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def node() -> str:
    return require(shutil.which("node"), "nodejs")


def curl(folder: Path) -> list[str]:
    require(shutil.which("curl"), "curl")
    require(shutil.which("jq"), "jq")
    return ["sh", str(HERE / "curl.sh")]


def typescript(folder: Path) -> list[str]:
    npm = require(shutil.which("npm"), "npm")
    shutil.copytree(HERE / "typescript", folder, dirs_exist_ok=True)
    installed = completed([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)
    if installed.returncode != 0 and os.environ.get("CI") != "true":
        pytest.skip(f"npm cannot install the packages: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    run([npm, "run", "build"], folder, OPENAPI=str(SCHEMAS / "openapi.bundled.json"))
    return [node(), "client.js"]


CLIENTS = {
    "python_httpx": lambda _: [sys.executable, str(SCHEMAS / "samples" / "client.py")],
    "javascript_fetch": lambda _: [node(), str(SCHEMAS / "samples" / "client.mjs")],
    "curl": curl, "typescript": typescript,
}  # fmt: skip


@pytest.mark.parametrize("prepare", CLIENTS.values(), ids=CLIENTS)
def test_a_client_survives_lost_responses(prepare, service, key, counts, tmp_path):
    command = prepare(tmp_path)
    lost = []

    def lose(exchange: Exchange) -> None:
        if exchange.method in {"POST", "PATCH"} - set(lost):
            lost.append(exchange.method)
            exchange.is_lost = True

    with http_proxy(service.port, after=lose) as base:
        printed = json.loads(run(command, tmp_path, BASE_URL=base, API_KEY=key))
    assert lost == ["POST", "PATCH"]
    assert sorted(printed["names"]) == ["Balanced", "Growth", "Income"]
    assert (printed["conflict"], printed["preset"]) == ("conflict", "monthly")
    # One stack for each key, and one revision for the update.
    assert counts() == [("Balanced", 1), ("Growth", 2), ("Income", 1)]


# Run a program whose pauses take no time and are printed, in seconds.
WITHOUT_PAUSES = {
    "client.py": lambda: [sys.executable, "-c", """import runpy, sys, time
time.sleep = lambda seconds: print(seconds, file=sys.stderr)
runpy.run_path(sys.argv[1])"""],
    "client.mjs": lambda: [node(), "--import", "data:text/javascript," + quote("""
import timers from "node:timers/promises"; import { syncBuiltinESMExports } from "node:module";
timers.setTimeout = async (ms) => console.error(ms / 1000); syncBuiltinESMExports();""")],
}  # fmt: skip
JITTER = (0, 0.5)  # seconds before the second attempt, and twice as long before each further one
# Retry-After of the rejections of creates, four of each, and the seconds of the pause.
PAUSES = {
    "7": (7, 7), "0": JITTER, "soon": JITTER, "-1": JITTER,
    "in 30 s": (25, 30), "30 s ago": JITTER, "1.5": JITTER, "1, 2": JITTER,
    "NaN": JITTER, "0x10": JITTER, "Mon, 99 Nov 2026 00:00:00 GMT": JITTER, "7s": JITTER,
}  # fmt: skip
ENDLESS = ["61", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"]


@pytest.mark.parametrize("values", [PAUSES, *([value] for value in ENDLESS)], ids=["shorter", *ENDLESS])
@pytest.mark.parametrize("program", WITHOUT_PAUSES)
def test_a_program_waits_up_to_a_minute(program, values, service, key):
    left, attempts = deque(values), Counter()

    def reject(exchange: Exchange) -> None:
        attempts[exchange.headers.get("idempotency-key")] += 1
        if left and exchange.method == "POST" and attempts[exchange.headers["idempotency-key"]] <= 4:
            value, now = left.popleft(), datetime.now(UTC)
            dates = {"in 30 s": now + timedelta(seconds=30), "30 s ago": now - timedelta(seconds=30)}
            value = format_datetime(dates[value], usegmt=True) if value in dates else value
            exchange.status, exchange.received = 503, {"retry-after": value}

    with http_proxy(service.port, after=reject) as base:
        command = [*WITHOUT_PAUSES[program](), str(SCHEMAS / "samples" / program)]
        env = os.environ | {"BASE_URL": base, "API_KEY": key}
        ran = completed(command, env=env, timeout=120)
    pauses = [float(line) for line in re.findall(r"^[\d.e-]+$", ran.stderr, re.MULTILINE)]
    expected = [*PAUSES.values()] if values is PAUSES else []
    assert (ran.returncode, len(pauses)) == (0 if expected else 1, len(expected))
    for number, (seconds, (least, most)) in enumerate(zip(pauses, expected, strict=True)):
        assert least <= seconds <= (most * 2 ** (number % 4) if most == JITTER[1] else most), number


PROGRAMS = {"sh": lambda: ["/bin/sh"], "py": lambda: [sys.executable], "mjs": lambda: [node()]}


@pytest.mark.parametrize("suffix", PROGRAMS)
def test_the_samples_are_accepted(suffix, service, key, counts, tmp_path):
    def sample(operation: str) -> str:
        command = [*PROGRAMS[suffix](), str(SCHEMAS / "samples" / f"{operation}.{suffix}")]
        return run(command, tmp_path, **environment)

    environment = {"BASE_URL": service.base, "API_KEY": key, "IDEMPOTENCY_KEY": str(uuid4()), "STACK_ID": ""}
    assert "Growth" in sample("createStack")
    assert "Growth" in sample("createStack")
    page = exchange(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"}).json
    [stack_id] = [item["id"] for item in page["items"]]
    environment["STACK_ID"] = stack_id
    assert stack_id in sample("getStack")
    assert "monthly" in sample("updateStack")
    assert stack_id in sample("listStacks")
    assert counts() == [("Growth", 2)]


def test_each_operation_has_each_sample():
    samples = {path.name for path in (SCHEMAS / "samples").iterdir()} - {"client.py", "client.mjs"}
    assert samples == {f"{operation}.{suffix}" for operation in OPERATIONS for suffix in PROGRAMS}
