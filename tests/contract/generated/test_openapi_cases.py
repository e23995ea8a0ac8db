"""Cases that Schemathesis generates from the OpenAPI document, sent to the service, with all checks."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from stackmgr import paths
from tests.support.openapi import BUNDLE
from tests.support.server import running_service

EXAMPLES = os.environ.get("STACKMGR_OPENAPI_EXAMPLES", "10")  # of each operation: each makes about six cases

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


def run_schemathesis(folder: Path, base: str) -> dict:
    """Return the report of a run.  Fail if it found an error."""
    seed = 0 if os.environ.get("CI") == "true" else random.getrandbits(32)
    wanted = {
        "--url": base,
        "--checks": "all",
        "--max-examples": EXAMPLES,
        "--seed": str(seed),
        "--generation-database": "none",
        "--report": "json",
        "--report-json-path": "report.json",
    }
    program = str(Path(sys.executable).with_name("schemathesis"))
    ended = subprocess.run(
        [program, "--no-color", "run", "openapi.json", *(word for pair in wanted.items() for word in pair)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(paths.directory("schemas").parent)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((folder / "report.json").read_bytes())


def test_the_service_does_what_the_description_says_for_every_generated_case(database_url, new_key, tmp_path):
    users = [
        {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {new_key()}"}]}
        for name in ("first", "second")
    ]
    (tmp_path / "keys.json").write_text(json.dumps({"auth": users}))
    (tmp_path / "openapi.json").write_text(json.dumps(BUNDLE))
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    # The longest timeout allowed: no check is about speed.
    env = {"STACKMGR_LOG_FORMAT": "json", "STACKMGR_DATABASE_TIMEOUT": "20"}
    with running_service(database_url, env=env) as service:
        report = run_schemathesis(tmp_path, service.base)
        lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    assert (report["failures"], report["errors"]) == ([], [])
    assert {phase["status"] for phase in report["phases"].values()} == {"success"}
    assert report["operations"]["tested"] == 4
    statuses = {line["status"] for line in lines if line["message"] == "request"}
    assert statuses >= {200, 201, 400, 401}
    assert not statuses & {500, 503}
