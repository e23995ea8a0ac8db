"""The operator's listener: liveness, readiness and metrics."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import webtest
from psycopg.conninfo import make_conninfo

from stackmgr import __version__, paths
from stackmgr.database.pool import Database
from stackmgr.http import health
from stackmgr.operate import migrations
from tests.support.client import check_response
from tests.support.greenlets import in_greenlets
from tests.support.recorder import opened


@pytest.fixture
def admin_app() -> Iterator[Callable[..., webtest.TestApp]]:
    with ExitStack() as cleanup:

        def make(url: str, deadline: float = 60.0) -> webtest.TestApp:
            database = cleanup.enter_context(opened(url, pool_size=1, deadline=deadline))
            return webtest.TestApp(in_greenlets(health.create_admin_app(database, None)))

        yield make


def test_a_process_is_live_without_a_database(admin_app):
    assert admin_app("host=/nowhere").get("/live").json == {"status": "live", "version": __version__}


def test_the_port_of_the_listener_alone_decides():
    serve = health.by_listener(lambda *_: "managers", lambda *_: "operator", 9108)
    claims = {"HTTP_HOST": "localhost:9108", "HTTP_X_FORWARDED_PORT": "9108"}
    found = {port: serve(claims | {"SERVER_PORT": port}, None) for port in ("8000", "19108", "9108")}
    assert found == {"8000": "managers", "19108": "managers", "9108": "operator"}


def test_a_slow_scrape_delays_no_other():
    begun, ends = threading.Event(), threading.Event()

    def exposition() -> tuple[bytes, str]:
        begun.set()
        assert ends.wait(20)
        return b"", "text/plain"

    metrics = SimpleNamespace(exposition=exposition)
    app = webtest.TestApp(in_greenlets(health.create_admin_app(Database("host=/", pool_size=1), metrics)))
    with ThreadPoolExecutor(1) as threads:
        scrape = threads.submit(app.get, "/metrics")
        assert begun.wait(20)
        assert app.get("/live").status_int == 200
        assert not scrape.done()
        ends.set()
        assert (scrape.result().status_int, scrape.result().content_type) == (200, "text/plain")
    assert app.head("/metrics").status_int == 200


def test_a_worker_that_can_write_is_ready(admin_app, database_url, server_url, admin, monkeypatch):
    def assert_not_ready(url: str, reason: str, **options: float) -> None:
        response = admin_app(url, **options).get("/ready", status=503)
        assert response.json == {"status": "not ready", "reason": reason}

    required = paths.schema_version()
    assert migrations.available()[-1].version == required
    for version in (required, required - 1):
        monkeypatch.setattr(paths, "schema_version", lambda: version)  # noqa: B023 - called at once
        running = admin_app(database_url)
        assert running.get("/ready").json == {"status": "ready"}
    admin.execute("REVOKE SELECT ON stackmgr.stacks FROM stackmgr_app")
    assert_not_ready(database_url, "stackmgr_app lacks SELECT ON stackmgr.stacks: run 'stackmgr migrate'")
    admin.execute("GRANT SELECT ON stackmgr.stacks TO stackmgr_app")
    read_only = make_conninfo(database_url, options="-c default_transaction_read_only=on")
    assert_not_ready(read_only, "the database accepts no writes")
    assert_not_ready("host=/nowhere", "the database does not respond", deadline=1.0)
    assert_not_ready(server_url, "the database rejects it: 42P01")
    monkeypatch.setattr(paths, "schema_version", lambda: required + 1)
    assert_not_ready(database_url, "the schema is older than the service")
    assert running.get("/ready").status_int == 200  # the files of the next release do not count


@pytest.mark.parametrize("path", ["/live", "/ready"])
def test_the_operators_listener_is_only_read(admin_app, database_url, path):
    app = admin_app(database_url)
    with patch.object(Database, "session", autospec=True, side_effect=Database.session) as session:
        got, head = app.get(path), app.head(path)
    assert session.call_count == (2 if path == "/ready" else 0)  # each has its own deadline
    assert (head.status_int, head.body) == (200, b"")
    assert head.headers["Content-Length"] == got.headers["Content-Length"]
    for method in ("POST", "TRACE", "OPTIONS", "PATCH", "PUT"):
        response = app.request(path, method=method, status=405)
        assert response.headers["Allow"] == "GET, HEAD"
        assert response.json["message"] == "The method is not allowed for this resource."
    for missing in ("/", "/metrics", "/manager/stacks"):  # it has no metrics
        for method in ("GET", "POST"):
            error = app.request(missing, method=method, status=404)
            check_response(method, missing, 404, error.headers, error.body)
