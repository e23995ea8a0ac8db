"""Keys under the production server with two workers: a change holds in both at once."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from stackmgr.operate import issued_keys
from stackmgr.operate.issued_keys import Quota
from tests.support.server import Response, RunningService, exchange, running_service

WORKERS = ("--workers", "2")


@pytest.fixture(scope="module")
def service(database_url):
    with running_service(database_url, args=WORKERS) as service:
        yield service


@pytest.fixture
def issue(operator):
    """Return a function that issues a key for a new manager."""

    def issue(**options):
        with operator.session() as session:
            return issued_keys.create(session, str(uuid4()), **options)

    return issue


def list_page(service: RunningService, key: str) -> Response:
    return exchange(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})


def assert_both_workers_return(service: RunningService, key: str, status: int) -> None:
    """Assert the same status of so many requests that both workers have served some of them."""
    with ThreadPoolExecutor(8) as threads:
        responses = threads.map(lambda _: list_page(service, key), range(40))
        assert {received.status for received in responses} == {status}


def test_a_revocation_is_seen_by_the_next_request_of_either_worker(service, issue, operator):
    for _ in range(3):
        issued = issue()
        assert_both_workers_return(service, issued.key, 200)
        with operator.session() as session:
            issued_keys.revoke(session, issued.key_id)
        assert_both_workers_return(service, issued.key, 401)


def test_a_rotation_is_seen_by_the_next_request_of_either_worker(service, issue, operator):
    issued = issue()
    for _ in range(3):
        assert_both_workers_return(service, issued.key, 200)
        with operator.session() as session:
            successor = issued_keys.rotate(session, issued.key_id)
        assert_both_workers_return(service, issued.key, 401)
        issued = successor
    assert_both_workers_return(service, issued.key, 200)


def test_of_400_requests_a_quota_of_100_in_an_hour_grants_100_over_both_workers(service, issue):
    key = issue(quota=Quota(100, 3600)).key
    with ThreadPoolExecutor(16) as threads:
        responses = list(threads.map(lambda _: list_page(service, key), range(400)))
    waits = [int(received.headers["Retry-After"]) for received in responses if received.status == 429]
    assert [received.status for received in responses].count(200) == 100
    assert len(waits) == 300
    assert all(0 < seconds <= 3600 for seconds in waits)


def test_a_use_that_no_timer_has_written_yet_is_written_when_the_server_stops(database_url, issue, operator):
    issued = issue()
    with running_service(database_url, args=WORKERS) as service:
        assert_both_workers_return(service, issued.key, 200)
        assert service.stop() == 0
    with operator.session() as session:
        assert issued_keys.find(session, issued.key_id).last_used_at is not None
