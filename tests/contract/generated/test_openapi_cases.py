"""Cases that Schemathesis generates from the OpenAPI document, sent to the running service, with all checks.

It follows the links of a response, omits required values, sends invalid values, and repeats a manager's
requests as another manager and without a credential.  The long form:

    STACKMGR_OPENAPI_CASES=50000 python -m pytest -s tests/contract/generated/test_openapi_cases.py
"""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stackmgr import paths
from tests.support.openapi import BUNDLE
from tests.support.server import running_service

CASES = int(os.environ.get("STACKMGR_OPENAPI_CASES", "300"))
# `--max-examples` is the number of examples of an operation.  The cases are a fixed number, from the examples
# and the limits of the document, and a number for each example.
FIXED_CASES = 250
CASES_PER_EXAMPLE = 6

# Two managers with different stacks.  The first sends the requests; the second repeats each of them.
SETTINGS = """
continue-on-failure = true
request-timeout = 60
hooks = "tests.contract.generated.openapi_hooks"

[cache]
enabled = false

[auth.wfc]
path = "keys.json"
user = "first"
peers = ["first", "second"]
"""


@pytest.fixture(scope="module")
def service(database_url):
    # The longest timeout allowed: no check is about speed.
    env = {"STACKMGR_LOG_FORMAT": "json", "STACKMGR_DATABASE_TIMEOUT": "20"}
    with running_service(database_url, env=env) as running:
        yield running


@pytest.fixture
def folder(tmp_path, new_key) -> Path:
    """A folder to run Schemathesis in, with the OpenAPI document and the keys of two managers."""
    users = []
    for name in ("first", "second"):
        header = {"name": "Authorization", "value": f"Bearer {new_key()}"}
        users.append({"name": name, "fixedHeaders": [header]})
    (tmp_path / "keys.json").write_text(json.dumps({"auth": users}))
    (tmp_path / "openapi.json").write_text(json.dumps(BUNDLE))
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    return tmp_path


def run_schemathesis(folder: Path, base: str, cases: int, seed: int) -> dict:
    """Return the report of a run of about *cases* cases.  Fail if it found an error."""
    root = paths.directory("schemas").parent
    command = [Path(sys.executable).with_name("schemathesis"), "--no-color", "run", "openapi.json"]
    wanted = {
        "--url": base,
        "--checks": "all",
        "--max-examples": max(10, (cases - FIXED_CASES) // CASES_PER_EXAMPLE),
        "--seed": seed,
        "--generation-database": "none",
        "--report": "json",
        "--report-json-path": "report.json",
    }
    ended = subprocess.run(
        [*command, *(str(word) for pair in wanted.items() for word in pair)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((folder / "report.json").read_bytes())


def statuses(log: Path) -> Counter[int]:
    """Return the number of responses of each status in the log of the service."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return Counter(line["status"] for line in lines if line["message"] == "request")


def test_the_service_does_what_the_description_says_for_every_generated_case(service, folder):
    ran, rounds = 0, 0
    while ran < CASES:
        seed = rounds if os.environ.get("CI") == "true" else random.getrandbits(32)
        report = run_schemathesis(folder, service.base, CASES - ran, seed)
        assert (report["failures"], report["errors"]) == ([], [])
        assert {phase["status"] for phase in report["phases"].values()} == {"success"}
        assert report["operations"]["tested"] == 4
        ran += report["test_cases"]["generated"]
        rounds += 1
    responses = statuses(service.log_path)
    print(f"\n{ran} cases:", dict(sorted(responses.items())))
    assert responses[500] == responses[503] == 0
    assert min(responses[status] for status in (200, 201, 400, 401)) > 0, "a status never occurred"
