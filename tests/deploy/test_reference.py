"""The API reference: complete, without errors in a browser, and readable on a wide and a narrow screen."""

import runpy
import sys
from pathlib import Path

import pytest

from stackmgr import paths
from tests.deploy.browser import running_browser
from tests.support.openapi import OPERATIONS, SCRIPT, reference
from tests.support.waiting import eventually

# The operations come first, then the chapters of the guide.
SECTIONS = [operation["summary"] for operation in OPERATIONS.values()] + [
    line[2:]
    for line in (paths.directory("schemas") / "guide.md").read_text().splitlines()
    if line[:2] == "# " and line != "# Operations"
]
SHOWN_OPERATIONS = "[...document.querySelectorAll('[id^=\"operation/\"]')].map(e => e.id.split('/').pop())"
OVERFLOWING_TABLES = (
    "[...document.querySelectorAll('table')].filter(e => e.scrollWidth > e.parentElement.clientWidth + 1)"
    ".map(e => e.innerText)"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [SCRIPT, "--page", str(folder)])
        runpy.run_path(SCRIPT, run_name="__main__")
    return folder


@pytest.mark.parametrize("width", [1280, 390])
def test_reference_shows_every_operation(page, width):
    with running_browser(width) as browser:
        browser.open((page / "index.html").as_uri())
        eventually(lambda: browser.run(SHOWN_OPERATIONS), 30)
        assert sorted(set(browser.run(SHOWN_OPERATIONS))) == sorted(OPERATIONS)
        text = browser.run("document.body.innerText")
        headings = browser.run("[...document.querySelectorAll('h1, h2')].map(e => e.innerText)")
        assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OVERFLOWING_TABLES) == []
        # The guide has no empty column beside it, where the samples of the operations would stand.
        assert browser.run("document.querySelector('table').clientWidth") > width * 0.7
        assert "Response samples201200400" in text.replace("\n", "")
        loaded = browser.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(url.startswith(("file:", "blob:", "data:")) for url in loaded)
        assert browser.console() == []


def test_reference_has_document_and_licences(page):
    redoc = {f"redoc.{name}" for name in ("LICENSE.txt", "standalone.js", "standalone.js.LICENSE.txt")}
    assert {path.name for path in page.iterdir()} == {"index.html", "openapi.json", *redoc}


def test_no_text_of_the_document_can_end_the_script():
    assert "</script" not in reference["_in_script"]({"description": "</script><script>alert(1)"})
