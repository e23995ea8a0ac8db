"""The client examples and the samples of the API reference, run against the service.

Each example creates, pages through all stacks, meets a conflict, and updates what it has read.  A proxy loses
the response to its first create and to its first update.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from stackmgr import paths
from tests.support.http_proxy import Exchange, http_proxy
from tests.support.openapi import BUNDLE
from tests.support.programs import require
from tests.support.server import RunningService, running_service, send_request

HERE = Path(__file__).parent
SCHEMAS = paths.directory("schemas")
COUNTS = b"""
    SELECT s.name, count(*) FROM stackmgr.managers m
    JOIN stackmgr.stacks s USING (manager_id) JOIN stackmgr.stack_revisions r USING (manager_id, stack_id)
    WHERE m.external_id = %s::uuid GROUP BY s.stack_id, s.name ORDER BY s.name
"""


@pytest.fixture(scope="module")
def service(database_url: str) -> Iterator[RunningService]:
    with running_service(database_url) as running:
        yield running


@dataclass(frozen=True)
class KeyedManager:
    external_id: str
    key: str


@pytest.fixture
def manager(new_key) -> KeyedManager:
    external_id = str(uuid4())
    return KeyedManager(external_id, new_key(external_id))


def run(command: list[str], folder: Path, **environment: str) -> str:
    ran = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def node() -> str:
    return require(shutil.which("node"), "nodejs")


def curl(folder: Path) -> list[str]:
    require(shutil.which("curl"), "curl")
    require(shutil.which("jq"), "jq")
    return ["sh", str(HERE / "curl.sh")]


def python_httpx(folder: Path) -> list[str]:
    return [sys.executable, str(SCHEMAS / "samples" / "client.py")]


def javascript_fetch(folder: Path) -> list[str]:
    return [node(), str(SCHEMAS / "samples" / "client.mjs")]


def typescript(folder: Path) -> list[str]:
    npm = require(shutil.which("npm"), "npm")
    shutil.copytree(HERE / "typescript", folder, dirs_exist_ok=True)
    installed = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode != 0 and os.environ.get("CI") != "true":
        pytest.skip(f"npm cannot install the packages: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    run([npm, "run", "build"], folder, OPENAPI=str(SCHEMAS / "openapi.bundled.json"))
    return [node(), "client.js"]


def generated_client(folder: Path) -> list[str]:
    generator = str(Path(sys.executable).with_name("openapi-python-client"))
    (folder / "config.yml").write_text("post_hooks: []\n")
    document = str(SCHEMAS / "openapi.bundled.json")
    options = ["--meta", "none", "--output-path", "stack_manager", "--config", "config.yml"]
    run([generator, "generate", "--path", document, "--fail-on-warning", *options], folder)
    shutil.copy(HERE / "generated_client.py", folder)
    return [sys.executable, "generated_client.py"]


@pytest.mark.parametrize("prepare", [curl, python_httpx, javascript_fetch, typescript, generated_client])
def test_a_client_survives_lost_responses_and_repeats_nothing(prepare, service, manager, admin, tmp_path):
    command = prepare(tmp_path)
    lost = []

    def lose(exchange: Exchange) -> None:
        if exchange.method in {"POST", "PATCH"} - set(lost):
            lost.append(exchange.method)
            exchange.is_lost = True

    with http_proxy(service.port, after=lose) as base:
        printed = json.loads(run(command, tmp_path, BASE_URL=base, API_KEY=manager.key))
    assert lost == ["POST", "PATCH"]
    assert sorted(printed["names"]) == ["Balanced", "Growth", "Income"]
    assert (printed["conflict"], printed["preset"]) == ("conflict", "monthly")
    # One stack for each key, and one revision for the update.
    counts = admin.execute(COUNTS, [manager.external_id]).fetchall()
    assert counts == [("Balanced", 1), ("Growth", 2), ("Income", 1)]


@pytest.mark.parametrize("prepare", [python_httpx, javascript_fetch])
def test_a_rejected_update_is_repeated_although_another_client_updates(
    prepare, service, manager, admin, tmp_path
):
    statuses, other_update = [429, 503], b'{"name": "Renamed"}'

    def replace(exchange: Exchange) -> None:
        if exchange.method == "PATCH" and statuses:
            exchange.body = other_update

    def reject(exchange: Exchange) -> None:
        if exchange.body == other_update:
            exchange.status, exchange.received = statuses.pop(0), {"retry-after": "0"}

    with http_proxy(service.port, replace, reject) as base:
        printed = json.loads(run(prepare(tmp_path), tmp_path, BASE_URL=base, API_KEY=manager.key))
    assert (printed["preset"], statuses) == ("monthly", [])
    counts = admin.execute(COUNTS, [manager.external_id]).fetchall()
    assert counts == [("Balanced", 1), ("Income", 1), ("Renamed", 4)]


PROGRAMS = {
    "sh": lambda: [require(shutil.which("sh"), "sh")],
    "py": lambda: [sys.executable],
    "mjs": lambda: [node()],
}


@pytest.mark.parametrize("suffix", PROGRAMS)
def test_the_samples_of_the_reference_are_accepted(suffix, service, manager, admin, tmp_path):
    def sample(operation: str) -> str:
        command = [*PROGRAMS[suffix](), str(SCHEMAS / "samples" / f"{operation}.{suffix}")]
        return run(command, tmp_path, **environment)

    environment = {
        "BASE_URL": service.base,
        "API_KEY": manager.key,
        "IDEMPOTENCY_KEY": str(uuid4()),
        "STACK_ID": "",
    }
    assert "Growth" in sample("createStack")
    assert "Growth" in sample("createStack")
    page = json.loads(
        send_request(service.port, "/manager/stacks", {"Authorization": f"Bearer {manager.key}"})[1]
    )
    [stack] = page["items"]
    environment["STACK_ID"] = stack["id"]
    assert stack["id"] in sample("getStack")
    assert "monthly" in sample("updateStack")
    assert stack["id"] in sample("listStacks")
    assert admin.execute(COUNTS, [manager.external_id]).fetchall() == [("Growth", 2)]


def test_every_operation_has_a_sample_in_each_language():
    described = BUNDLE["paths"].values()
    operations = {operation["operationId"] for item in described for operation in item.values()}
    samples = {path.name for path in (SCHEMAS / "samples").iterdir()} - {"client.py", "client.mjs"}
    assert samples == {f"{operation}.{suffix}" for operation in operations for suffix in PROGRAMS}
