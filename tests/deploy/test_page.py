"""The page of `stackmgr dev`: requests by clicks in a real browser, and no other start that serves it."""

import json
import re
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import pytest

from stackmgr import startup
from tests.deploy.browser import Browser, running_browser
from tests.deploy.dev_process import running_dev
from tests.support.memory import reachable
from tests.support.nginx import running_nginx
from tests.support.server import exchange, free_port, running_service, send_request
from tests.support.waiting import eventually

ADDRESS = r"^try it in a browser +(\S+)$"
PATHS = (
    "/", "/guide.md", "/openapi.json", "/stylesheets/swagger-ui.css", "/javascripts/swagger-ui-bundle.js",
)  # fmt: skip
STEPS = ("createStack", "getStack", "updateStack", "createStack")
DEADLINE_SECONDS = 30
SERVER = """\
access_log off;
server {{ listen 127.0.0.1:{own_port}; location /stackmgr/ {{ proxy_pass http://127.0.0.1:{port}/; }} }}
"""
NO_EXTRA = "import sys; sys.modules['mkdocs_swagger_ui_tag'] = None; from stackmgr import cli; cli.main()"


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def dev(port):
    with tempfile.TemporaryDirectory(prefix="stackmgr-page-") as folder:
        data = reachable(folder)
        with running_dev(data / "data", Path(folder) / "log", port=port) as running:
            yield running


@pytest.fixture(scope="module")
def address(dev, port):
    with tempfile.TemporaryDirectory(prefix="stackmgr-page-") as folder:
        server = SERVER.format(port=port, own_port=(own_port := free_port()))
        with running_nginx(Path(folder), own_port, server):
            yield f"http://proxy.test:{own_port}/stackmgr/"


def is_in_sight(browser: Browser, element: str) -> bool:
    edges = browser.run(f"[0, {element}.getBoundingClientRect().top, innerHeight]")
    return edges == sorted(edges)


def shown_response(browser: Browser, operation: str) -> tuple[str, str]:
    shown = f"document.querySelector('#operations-stacks-{operation} .live-responses-table .response')"
    text = eventually(lambda: browser.run(f"{shown}?.innerText"), DEADLINE_SECONDS)
    eventually(lambda: is_in_sight(browser, shown))
    return text.split()[0], text


def take_step(browser: Browser, number: int) -> tuple[str, str]:
    button = f"document.querySelectorAll('#steps button')[{number}]"
    assert is_in_sight(browser, button)
    browser.run("document.querySelector('.is-open .btn-clear')?.click()")  # the response before
    browser.run(f"{button}.click()")
    status = eventually(lambda: browser.run(f"{button}.dataset.status"), DEADLINE_SECONDS)
    response = shown_response(browser, STEPS[number])
    assert response[0] == status
    return response


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, True)])
def test_four_clicks_show_a_stack_from_create_to_retry(dev, port, address, width, is_dark):
    base = address if is_dark else f"http://127.0.0.1:{port}/"
    with running_browser(width, is_dark=is_dark) as browser:
        key = dev.printed(ADDRESS).partition("#")[2]
        browser.open(f"{base}?configUrl=http://127.0.0.1:1/&persistAuthorization=true#{key}")  # ignored
        eventually(lambda: browser.run("!document.getElementById('steps').hidden"), DEADLINE_SECONDS)
        assert is_in_sight(browser, "document.querySelector('.title')")
        paths = "[...document.querySelectorAll('.opblock-summary-path')].map(e => e.dataset.path)"
        assert browser.run(paths) == ["/manager/stacks"] * 2 + ["/manager/stacks/{id}"] * 2
        taken = [take_step(browser, number) for number in range(4)]
        assert [status for status, _ in taken] == ["201", "200", "200", "200"]
        [stack_id] = {re.search(r'"id": "(.+?)"', body)[1] for _, body in taken}
        names = [re.search(r'"name": "(.+?)"', body)[1] for _, body in taken]
        assert names == [names[0], names[0], names[2], names[2]]
        documented = ".responses-inner:has(.live-responses-table) > table"
        assert browser.run(f"document.querySelector('{documented}').offsetHeight") == 0
        listing = "document.getElementById('operations-stacks-listStacks')"
        browser.run(f"{listing}.querySelector('.opblock-summary-control').click()")
        eventually(lambda: browser.run(f"{listing}.querySelector('.execute')"), DEADLINE_SECONDS)
        browser.run(f"{listing}.querySelector('.execute').click()")
        status, body = shown_response(browser, "listStacks")
        assert (status, f'"id": "{stack_id}"' in body) == ("200", True)
        assert browser.run("document.documentElement.scrollWidth") <= width
        brightness = browser.run("getComputedStyle(document.documentElement).backgroundColor")
        assert (brightness == "rgb(28, 32, 34)") == is_dark
        loaded = browser.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(url.startswith((base, "data:")) for url in loaded)
        assert browser.run("localStorage.length") == 0  # the key is not kept
        assert browser.console() == []


def test_page_is_of_this_address_and_machine(dev, port):
    document = json.loads(send_request(port, "/openapi.json")[1])
    assert document["servers"][0]["url"] == f"http://127.0.0.1:{port}"
    create = document["paths"]["/manager/stacks"]["post"]["requestBody"]["content"]["application/json"]
    [example] = create["examples"].values()  # of the whitelist in force
    assert example["value"] == json.loads(dev.printed("^export STACK='(.*)'$"))
    key = dev.printed("^export API_KEY=(.*)$")
    UUID(document["components"]["parameters"]["IdempotencyKey"]["example"])
    assert send_request(port, "//etc/passwd")[0] == 404
    for path in PATHS:
        assert [send_request(port, path, {}, method)[0] for method in ("POST", "HEAD")] == [404, 200]
        assert exchange(port, path).headers["Cache-Control"] == "no-store"
        for host in ("LocalHost", "localhost.", f"[::1]:{port}", f"example.com:{port}"):
            status, body = send_request(port, path, {"Host": host, "Cookie": f"other={'x' * 17000}"})
            assert (status, key in body) == (200, False)  # which another user may read


def test_without_the_extra_dev_serves_and_names_it():
    with tempfile.TemporaryDirectory(prefix="stackmgr-page-") as folder:
        port, command = free_port(), (sys.executable, "-c", NO_EXTRA, "dev")
        with running_dev(reachable(folder) / "data", Path(folder) / "log", port=port, command=command) as dev:
            assert "no page: the extra 'dev' has it" in dev.output
            assert send_request(port, "/manager/stacks")[0] == 401
            assert send_request(port, "/")[0] == 404


def test_no_other_start_has_the_page(database_url, tmp_path):
    with running_service(database_url, env={startup.DEV: str(tmp_path)}) as service:
        assert [send_request(service.port, path)[0] for path in PATHS] == [404] * len(PATHS)
