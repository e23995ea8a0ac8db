"""The last use of a key: recorded to the hour, without delaying a request."""

import threading
from functools import partial
from unittest.mock import Mock

from stackmgr.access import api_keys
from stackmgr.access.verifiers.database import DatabaseVerifier, LastUse
from stackmgr.database.connection import DatabaseError
from stackmgr.operate.keys import Quota
from stackmgr.reasons import ReasonSlug
from tests.support.examples import configuration
from tests.support.waiting import eventually

ROW_VERSION = b"SELECT last_used_at IS NOT NULL, xmin::text FROM stackmgr.api_keys WHERE key_id = %s"


def test_use_without_a_thread_fails_no_request(issue, database, client_with, admin, monkeypatch):
    issued = issue()
    client = client_with(issued.key, verifier=DatabaseVerifier(LastUse(database, interval=0.01)))
    assert client_with("no key").page().status_int == 401  # the thread of the application has begun
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
        assert client.page().status_int == 200
    assert client.page().status_int == 200
    eventually(lambda: admin.execute(ROW_VERSION, [issued.key_id]).fetchone()[0])


def test_each_operation_alone_is_a_use(issue, database, client_with, admin):
    notes = LastUse(database)
    verifier, quotas = DatabaseVerifier(notes), (None, Quota(1, 60))
    client, limited = (client_with(issue(quota=quota).key, verifier=verifier) for quota in quotas)
    create, stack_id = partial(client.create, configuration()), client.create(configuration()).json["id"]
    calls = create, partial(client.get, stack_id), partial(client.update, stack_id, {"name": "New"})
    for call in (*calls, client.page, limited.page, limited.page):
        notes.write()
        admin.execute(b"UPDATE stackmgr.api_keys SET last_used_at = last_used_at - interval '1 hour'")
        assert (call().status_int in (200, 201, 429), len(notes._noticed)) == (True, 1)
    notes.write()
    assert (call().status_int, notes._noticed) == (429, set())


def test_one_process_writes_a_use(issue, database, admin, monkeypatch):
    issued, versions, begun = issue(), [], []
    monkeypatch.setattr("stackmgr.access.verifiers.database.repeat", lambda *given: begun.append(given))
    processes = [LastUse(database) for _ in range(2)]
    for process in processes:
        process.notice(api_keys.digest(issued.key))
    for process in processes:
        process.write()
        versions.append(admin.execute(ROW_VERSION, [issued.key_id]).fetchone())
    assert versions == [(True, versions[0][1])] * 2
    assert begun == [(process.write, 30.0, "last-use") for process in processes]


def test_uses_that_cannot_be_written_are_kept(caplog):
    written, notes = [], LastUse(database := Mock())
    notes._has_thread, notes._noticed = True, {b"one", b"two"}

    def row(_, values):
        written.append(values["key_digest"])
        notes.notice(b"meanwhile")
        if len(written) == 2:
            raise DatabaseError(ReasonSlug.CONNECTION_LOST)

    database.session.return_value.row = row
    notes.write()
    assert notes._noticed == {written[1], b"meanwhile"}
    assert "of 1 keys" in caplog.text
