"""Headless Chromium, driven by ChromeDriver over the WebDriver protocol."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3

from tests.support.programs import require
from tests.support.server import free_port, listening_ports
from tests.support.waiting import eventually

_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)  # fmt: skip
_SCHEME = "--blink-settings=preferredColorScheme={}"
_TIMEOUT_SECONDS = 60.0


class Browser:
    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _request("POST", self._base + path, body)

    def open(self, url: str) -> None:
        self._post("/url", {"url": url})

    def run(self, expression: str) -> Any:
        return self._post("/execute/sync", {"script": f"return {expression}", "args": []})

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]


def _request(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    response = urllib3.request(method, url, json=body, timeout=_TIMEOUT_SECONDS, retries=False)
    assert response.status == 200, response.data
    return response.json()["value"]


@contextmanager
def running_browser(width: int, height: int = 900, *, is_dark: bool = False) -> Iterator[Browser]:
    require(shutil.which("chromium"), "chromium")
    driver = require(shutil.which("chromedriver"), "chromium-driver")
    address = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory(prefix="stackmgr-browser-", ignore_cleanup_errors=True) as profile:
        options = {
            "args": [*_ARGUMENTS, f"--user-data-dir={profile}", _SCHEME.format(0 if is_dark else 1)],
            "mobileEmulation": {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1}},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
        try:
            eventually(lambda: port in listening_ports(process.pid), _TIMEOUT_SECONDS)
            session = _request("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(address, session["sessionId"])
            finally:
                # ChromeDriver leaves its Chromium running when it is terminated.
                _request("DELETE", f"{address}/session/{session['sessionId']}")
        finally:
            process.terminate()
            process.wait(_TIMEOUT_SECONDS)
