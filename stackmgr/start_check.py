"""The check of the release on disk, for gunicorn's settings file and master.

It is a process of its own: workers inherit the modules that the master imports, after an upgrade
those of two releases.  So this module imports nothing of the service.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypedDict

CHECK_SECONDS = 120.0  # TimeoutStartSec of deploy/stackmgr.service is longer
POLL_SECONDS = 0.05
RESULT = "STACKMGR.RELEASE"  # in the environment, the result of the check that a reload has made


class StartCheck(TypedDict, total=False):
    """The document of the check; without problems it is complete.

    A dictionary, because at a reload the release on disk fills it and the running one may read it.
    """

    version: str
    log_format: str
    log_level: str
    problems: list[str]
    warnings: list[str]
    concurrency: int
    queue_timeout: float
    admin_bind: str | None
    admin_port: int  # 0 without admin_bind
    metrics_dir: str | None
    prepared: str  # startup.Prepared, secrets included


def run_check(turn: Callable[[], None]) -> str | None:
    """Return the JSON document of the check, or None if incomplete.  Call *turn* meanwhile."""
    deadline = time.monotonic() + CHECK_SECONDS
    with subprocess.Popen(
        [sys.executable, "-m", "stackmgr.operate.check"], stdout=subprocess.PIPE
    ) as process:
        try:
            while time.monotonic() < deadline:
                turn()
                with suppress(subprocess.TimeoutExpired):
                    return process.communicate(timeout=POLL_SECONDS)[0].decode() or None
        finally:
            process.kill()
    print(f"The check of the release took longer than {CHECK_SECONDS:g} s", file=sys.stderr)
    return None


def checked_start() -> StartCheck:
    """Return the result of the check at start or reload.  Raises SystemExit if there is none."""
    output = os.environ.pop(RESULT, None) or run_check(lambda: None)
    if output is None:
        sys.exit(1)
    found: StartCheck = json.loads(output)
    return found
