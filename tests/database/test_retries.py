import pytest

from stackmgr.database.retries import must_close, should_retry
from stackmgr.errors import DatabaseError

# What failed, how often a read is tried in all, how often a write, and whether the connection is closed.
TABLE = [
    ("40001", 4, 4, False), ("40P01", 4, 4, False), ("0A000", 2, 2, True), ("25006", 2, 2, True),
    ("08000", 2, 1, True), ("08006", 2, 1, True), ("57P01", 2, 1, True), ("57P02", 2, 1, True),
    ("57P03", 2, 1, True), ("57P05", 2, 1, True), ("unconfirmed", 2, 1, True),
    ("connection_lost", 2, 1, True), ("deadline", 1, 1, True), ("no_connection", 1, 1, False),
    ("unsupported", 1, 1, False), ("receipt_vanished", 1, 1, False), ("40002", 1, 1, False),
    ("42501", 1, 1, False), ("53100", 1, 1, False), ("54000", 1, 1, False), ("55P03", 1, 1, False),
    ("57014", 1, 1, False), ("23505", 1, 1, False), ("XX000", 1, 1, False),
]  # fmt: skip


@pytest.mark.parametrize(("failed", "reads", "writes", "closed"), TABLE, ids=[row[0] for row in TABLE])
def test_failure_decides_retries_and_closing(failed, reads, writes, closed):
    reason = not failed[0].isdigit() and failed != "XX000"
    # A statement that is not supported keeps its SQLSTATE.
    sqlstate = {"unsupported": "0A000", "unconfirmed": "01000"}.get(failed) if reason else failed
    failure = DatabaseError(failed if reason else "rejected", sqlstate=sqlstate)
    for attempts in range(1, 6):
        assert should_retry(failure, writes=False, attempts=attempts) == (attempts < reads)
        assert should_retry(failure, writes=True, attempts=attempts) == (attempts < writes)
    assert must_close(failure) == closed
