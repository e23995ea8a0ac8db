"""The last use of a key: recorded to the hour, without delaying a request."""

from unittest.mock import patch

import pytest

from stackmgr.access import api_keys
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.access.verifiers.last_use import LastUse
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import DatabaseError
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating
from stackmgr.reasons import ReasonSlug
from tests.support.waiting import eventually


@pytest.fixture
def issued(issue):
    return issue()


@pytest.fixture
def last_used(database_url, issued):
    def read():
        with operating(database_url) as reader:
            return issued_keys.find(reader, issued.key_id).last_used_hour

    return read


@pytest.fixture
def notes(database):
    """The notes of a process, which are written on demand only."""
    return LastUse(database, interval=3600)


@pytest.fixture
def noted_client(client_with, issued, notes):
    return client_with(issued.key, verifier=DatabaseVerifier(notes))


def test_use_without_a_thread_fails_no_request(noted_client, notes, last_used, no_threads):
    notes._interval = 0.01
    with no_threads():
        assert noted_client.page().status_int == 200
    assert noted_client.page().status_int == 200
    eventually(last_used)


def test_one_process_writes_a_use(issued, database, admin):
    processes = [LastUse(database, interval=3600) for _ in range(2)]
    versions = []
    for process in processes:
        process.notice(api_keys.digest(issued.key))
    for process in processes:
        process.write()
        query = b"SELECT xmin::text FROM stackmgr.api_keys WHERE key_id = %s"
        versions.append(admin.execute(query, [issued.key_id]).fetchone())
    assert versions[0] == versions[1]


def test_uses_of_a_failed_write_are_kept(issue, notes, database, database_url, caplog):
    first, second, during = issue(), issue(), issue()
    sessions = iter([database.session()])

    def fail(_: Database) -> Session:
        for session in sessions:
            return session
        notes.notice(api_keys.digest(during.key))
        raise DatabaseError(ReasonSlug.NO_CONNECTION)

    for each in (first, second):
        notes.notice(api_keys.digest(each.key))
    with patch.object(type(database), "session", fail):
        notes.write()
    assert "The last use of 1 keys could not be saved yet" in caplog.text
    assert first.key not in caplog.text
    notes.write()
    with operating(database_url) as reader:
        for issued in (first, second, during):
            assert issued_keys.find(reader, issued.key_id).last_used_hour is not None
