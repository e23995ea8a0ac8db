"""The last use of a key: recorded to the hour, without delaying a request."""

from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.access.verifiers.last_use import LastUse
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError
from stackmgr.http.app import create_app
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating
from stackmgr.reasons import ReasonSlug
from tests.support.client import Client
from tests.support.waiting import eventually


@pytest.fixture
def used(database, database_url, operator, spellings, statements_run):
    """A client with a new key, the notes of its process (written on demand only), and how to read the use."""
    with operator.session() as session:
        issued = issued_keys.create(session, str(uuid4()))
    notes = LastUse(database, interval=3600)
    app = create_app(database=database, verifier=DatabaseVerifier(notes), spellings=spellings)

    def last_used():
        with operating(database_url) as reader:
            return issued_keys.find(reader, issued.key_id).last_used_hour

    return Client(app, issued.key, "", statements_run), notes, last_used


def test_a_use_is_visible_once_written_and_only_to_the_hour(used, admin):
    client, notes, last_used = used
    client.page()
    client.page()
    assert client.statements == ["stack_list"]
    assert last_used() is None
    notes.write()
    (hour,) = admin.execute(b"SELECT date_trunc('hour', now(), 'UTC')").fetchone()
    assert last_used() == hour


def test_within_the_hour_nothing_more_is_written(used, statements_run, admin):
    client, notes, _ = used
    client.page()
    notes.write()
    client.page()
    statements_run.clear()
    notes.write()
    assert statements_run == []
    admin.execute(b"UPDATE stackmgr.api_keys SET last_used_at = last_used_at - interval '1 hour'")
    client.page()
    notes.write()
    assert statements_run[-1] == "api_key_use_record"


def test_a_use_without_a_thread_to_write_it_fails_no_request_and_the_next_one_starts_it(used, no_threads):
    client, notes, last_used = used
    notes._interval = 0.01
    with no_threads():
        assert client.page().status_int == 200
    assert client.page().status_int == 200
    eventually(last_used)


def test_a_rejected_key_is_not_in_use(used, statements_run):
    client, notes, _ = used
    client.key = api_keys.generate()
    assert client.page().status_int == 401
    statements_run.clear()
    notes.write()
    assert statements_run == []


def test_of_two_processes_that_record_one_use_only_the_first_writes(used, database, admin):
    client, notes, _ = used
    other = LastUse(database, interval=3600)
    for process in (notes, other):
        process.notice(api_keys.digest(client.key))
    version = b"SELECT xmin::text FROM stackmgr.api_keys WHERE key_digest = %s"
    notes.write()
    written = admin.execute(version, [api_keys.digest(client.key)]).fetchone()
    other.write()
    assert admin.execute(version, [api_keys.digest(client.key)]).fetchone() == written


def test_a_locked_key_is_still_verified_and_its_use_recorded_later(used, admin, database_url):
    client, notes, last_used = used
    client.page()
    notes._database = impatient = Database(database_url, pool_size=1, deadline=2.0)
    impatient.open()
    impatient._pool.wait(30)
    with admin.transaction():
        admin.execute(b"SELECT FROM stackmgr.api_keys FOR UPDATE")
        notes.write()
        assert client.page().status_int == 200
    assert last_used() is None
    notes.write()
    impatient.close()
    assert last_used() is not None


def test_what_could_not_be_written_is_written_later(used, database_url, caplog):
    client, _, last_used = used
    away = Database("postgresql://127.0.0.1:1/none", pool_size=1, deadline=0.1)
    away.open()
    notes = LastUse(away, interval=3600)
    notes.notice(api_keys.digest(client.key))
    notes.write()
    away.close()
    assert "The last use of 1 keys could not be saved yet" in caplog.text
    assert client.key not in caplog.text
    notes._database = again = Database(database_url, pool_size=1)
    again.open()
    notes.write()
    again.close()
    assert last_used() is not None


def test_a_thread_of_the_process_writes_by_itself(used, database, operator):
    client, _, last_used = used
    LastUse(database, interval=0.05).notice(api_keys.digest(client.key))
    eventually(last_used)


def test_a_use_during_a_write_that_fails_is_written_later(used, database, monkeypatch):
    client, notes, last_used = used

    def fail(_: Database) -> None:
        notes.notice(api_keys.digest(client.key))
        raise DatabaseError(ReasonSlug.NO_CONNECTION)

    notes.notice(bytes(32))
    with monkeypatch.context() as failing:
        failing.setattr(type(database), "session", fail)
        notes.write()
    notes.write()
    assert last_used() is not None
