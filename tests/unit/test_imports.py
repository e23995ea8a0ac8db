"""The operator's commands stay off the request's path."""

import os
import subprocess
import sys

PROBE = """
import sys
from stackmgr import wsgi
print(sorted(name for name in sys.modules if name.startswith(("stackmgr.commands", "stackmgr.dev"))))
"""


def imported(log_format: str) -> str:
    environ = os.environ | {
        "STACKMGR_DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "STACKMGR_LOG_FORMAT": log_format,
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def test_the_service_imports_no_command_and_nothing_for_development():
    assert imported("json") == "[]"
    assert imported("text") == "[]"
    assert "stackmgr.commands.rejections" in imported("dev")
