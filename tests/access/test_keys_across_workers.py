"""Keys under the production server with two workers: a change holds in both at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating
from tests.support.server import Response, RunningService, exchange, running_service

WORKERS = ("--workers", "2")


@pytest.fixture(scope="module")
def service(database_url):
    with running_service(database_url, args=WORKERS) as service:
        yield service


def list_page(service: RunningService, key: str) -> Response:
    return exchange(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})


def assert_both_workers_return(service: RunningService, key: str, status: int) -> None:
    with ThreadPoolExecutor(8) as threads:
        responses = threads.map(lambda _: list_page(service, key), range(40))
        assert {received.status for received in responses} == {status}


@pytest.mark.parametrize("end", [issued_keys.revoke, issued_keys.rotate])
def test_both_workers_see_the_end_of_a_key(service, issue, operator, end):
    for _ in range(3):
        issued = issue()
        assert_both_workers_return(service, issued.key, 200)
        with operator.session() as session:
            ended = end(session, issued.key_id)
        assert_both_workers_return(service, issued.key, 401)
    if end == issued_keys.rotate:
        assert_both_workers_return(service, ended.key, 200)


ABANDONED = "SELECT sessions_abandoned FROM pg_stat_database WHERE datname = current_database()"


def test_stop_writes_uses_and_closes_sessions(database_url, issue, admin):
    issued, before = issue(), admin.execute(ABANDONED).fetchone()
    with running_service(database_url, args=WORKERS) as service:
        assert_both_workers_return(service, issued.key, 200)
        assert service.stop() == 0
    with operating(database_url) as reader:
        assert issued_keys.find(reader, issued.key_id).last_used_hour is not None
    assert admin.execute(ABANDONED).fetchone() == before
