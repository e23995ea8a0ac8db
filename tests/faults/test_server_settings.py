"""What the service asks of the server holds against other people's defaults, and keeps dead writers quiet."""

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from stackmgr.database.pool import Database
from stackmgr.database.statements import Statement
from tests.faults.conftest import held_row
from tests.support.postgres import eventually
from tests.support.server import running_service

SETTINGS = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "1500ms",
    "statement_timeout": "3s",
    "client_connection_check_interval": "500ms",
    "search_path": "pg_catalog",
    "TimeZone": "UTC",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "role": "stackmgr_app",
}
CONTRARY = {
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "client_connection_check_interval": "0",
    "search_path": "public",
    "TimeZone": "Asia/Tokyo",
    "plan_cache_mode": "force_custom_plan",
    "jit": "on",
}


@pytest.fixture(params=["ROLE postgres", "DATABASE stackmgr", "ROLE postgres IN DATABASE stackmgr"])
def contrary_defaults(login, request):
    scope = request.param.encode()
    for name, value in CONTRARY.items():
        login.execute(b"ALTER %s SET %s = '%s'" % (scope, name.encode(), value.encode()))
    yield
    login.execute(b"ALTER %s RESET ALL" % scope)


@pytest.mark.usefixtures("contrary_defaults")
def test_no_default_of_a_login_or_a_database_undoes_what_the_service_relies_on(server):
    database = Database(server.url(), pool_size=1, deadline=5.0)
    database.open()
    with database.session() as session:
        for name, value in SETTINGS.items():
            show = Statement(f"show_{name}", b"SHOW " + name.encode(), parameters=(), writes=False)
            assert session.row(show, {}) == (value,), name
    database.close()


def test_the_update_of_a_worker_that_was_killed_is_not_carried_out_later(server, service, login, watcher):
    client, path = service.client, f"/manager/stacks/{service.stack_id}"
    before = client.get(service.stack_id).json

    def update(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Authorization": f"Bearer {client.key}", "Content-Type": "application/json"}
        connection.request("PATCH", path, json.dumps({"name": "too late"}), headers)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            connection.getresponse()
        connection.close()

    # With time to spare, so that it cannot be the lock's own timeout that ends the wait.
    patient = {"STACKMGR_DATABASE_TIMEOUT": "100"}
    with (
        running_service(server.url(), env=patient) as running,
        held_row(login, service.stack_id),
        ThreadPoolExecutor() as threads,
    ):
        threads.submit(update, running.port)
        watcher.waiting_one()
        [worker] = psutil.Process(running.pid).children()
        worker.kill()
        eventually(lambda: not watcher.waiting())
    assert client.get(service.stack_id).json == before
