"""Keys under the production server with two workers: a change holds in both at once."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Event
from uuid import uuid4

import pytest

from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating
from tests.support.examples import configuration
from tests.support.server import Response, RunningService, exchange, running_service
from tests.support.waiting import eventually

WORKERS = ("--workers", "2")


@pytest.fixture(scope="module")
def service(database_url):
    with running_service(database_url, args=WORKERS) as service:
        yield service


def list_page(service: RunningService, key: str) -> Response:
    return exchange(service.port, "/manager/stacks", {"Authorization": f"Bearer {key}"})


def assert_both_workers_return(service: RunningService, key: str, status: int) -> None:
    """Assert the same status of so many requests that both workers have served some of them."""
    with ThreadPoolExecutor(8) as threads:
        responses = threads.map(lambda _: list_page(service, key), range(40))
        assert {received.status for received in responses} == {status}


@pytest.mark.parametrize("end", [issued_keys.revoke, issued_keys.rotate])
def test_the_end_of_a_key_is_seen_by_the_next_request_of_either_worker(service, issue, operator, end):
    for _ in range(3):
        issued = issue()
        assert_both_workers_return(service, issued.key, 200)
        with operator.session() as session:
            ended = end(session, issued.key_id)
        assert_both_workers_return(service, issued.key, 401)
    if end == issued_keys.rotate:
        assert_both_workers_return(service, ended.key, 200)


def test_of_200_managers_none_writes_with_a_key_that_was_revoked_before_the_request(
    service, issue, operator, admin
):
    # A worker that has seen a key sends a write with the verification.
    keys = [issue() for _ in range(200)]
    written: list[str] = []  # the key id of each response with 201
    revoked, rejected, is_over = set(), [], Event()

    def write(order):
        for key in order:
            was_revoked = key.key_id in revoked
            headers = {"Authorization": f"Bearer {key.key}", "Idempotency-Key": str(uuid4())}
            received = exchange(service.port, "/manager/stacks", headers, "POST", json.dumps(configuration()))
            assert received.status == 401 if was_revoked else received.status in (201, 401)
            (written if received.status == 201 else rejected).append(key.key_id)
            if is_over.is_set():
                return

    def has_failed():
        return any(writer.done() for writer in writers)

    with ThreadPoolExecutor(12) as threads:
        writers = [threads.submit(write, cycle(keys[first:] + keys[:first])) for first in range(0, 192, 16)]
        try:
            eventually(lambda: len(written) >= 2000 or has_failed())
            with operator.session() as session:
                for number, key in enumerate(keys[::2]):
                    (issued_keys.rotate if number % 2 else issued_keys.revoke)(session, key.key_id)
                    revoked.add(key.key_id)
            eventually(lambda: len(rejected) >= 400 or has_failed())
        finally:
            is_over.set()
        for writer in writers:
            writer.result()
    stored = admin.execute("SELECT key_id, count(*) FROM stackmgr.stack_revisions GROUP BY key_id").fetchall()
    assert {key_id: count for key_id, count in stored if key_id in set(written)} == Counter(written)
    assert revoked < set(written)


ABANDONED = "SELECT sessions_abandoned FROM pg_stat_database WHERE datname = current_database()"


def test_a_use_is_written_and_each_session_closed_at_a_stop(database_url, issue, admin):
    issued, before = issue(), admin.execute(ABANDONED).fetchone()
    with running_service(database_url, args=WORKERS) as service:
        assert_both_workers_return(service, issued.key, 200)
        assert service.stop() == 0
    with operating(database_url) as reader:
        assert issued_keys.find(reader, issued.key_id).last_used_hour is not None
    assert admin.execute(ABANDONED).fetchone() == before
