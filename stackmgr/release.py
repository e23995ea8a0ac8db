"""The check of the release on disk, for gunicorn's settings file and master.

It is a process of its own: workers inherit the modules that the master imports, after an upgrade
those of two releases.  So this module imports nothing of the service.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any, cast

CHECK_SECONDS = 120.0  # TimeoutStartSec of deploy/stackmgr.service is longer
POLL_SECONDS = 0.05
CHECKED = "STACKMGR.RELEASE"  # in the environment, the result of the check that a reload has made


def run_check(turn: Callable[[], None]) -> str | None:
    """Return the JSON document of the check, or None if incomplete.  Call *turn* meanwhile."""
    deadline, output = time.monotonic() + CHECK_SECONDS, b""
    with subprocess.Popen(
        [sys.executable, "-m", "stackmgr.operate.check"], stdout=subprocess.PIPE
    ) as process:
        pipe = cast("IO[bytes]", process.stdout).fileno()
        try:
            while time.monotonic() < deadline:
                turn()
                if select.select([pipe], [], [], POLL_SECONDS)[0]:
                    piece = os.read(pipe, 65536)
                    output += piece
                    if not piece:  # its exit status may have been reaped by gunicorn
                        return output.decode() or None
        finally:
            process.kill()
    print(f"The check of the release took longer than {CHECK_SECONDS:g} s", file=sys.stderr)
    return None


def checked_release() -> dict[str, Any]:
    """Return the result of the check at start or reload.  Raises SystemExit if there is none."""
    output = os.environ.pop(CHECKED, None) or run_check(lambda: None)
    if output is None:
        sys.exit(1)
    found: dict[str, Any] = json.loads(output)
    return found
