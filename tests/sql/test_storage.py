"""Storage: an update stays on its page, nothing is compressed, a create writes no row of its manager."""

import json

import pytest

from tests.sql.fleets import insert
from tests.support.examples import ADDRESSES, configuration, spread

COMPRESSED = b"""
SELECT count(*) FROM stackmgr.stacks WHERE pg_column_size(allocation) < octet_length(allocation::text)
"""
# The first row of each page; a new version on the page of the old one needs no entry in any index.
UPDATE = b"""
UPDATE stackmgr.stacks SET revision_number = 2
FROM stackmgr.stacks AS old
WHERE old.ctid = stacks.ctid AND (old.ctid::text::point)[1] = 1
RETURNING (old.ctid::text::point)[0], (stacks.ctid::text::point)[0]
"""


@pytest.mark.parametrize("size", range(1, 31))
def test_a_full_page_has_room_for_an_update_whatever_the_number_of_tokens(admin, size):
    allocation = json.dumps(spread(ADDRESSES[:size]), separators=(",", ":"))
    with admin.transaction(force_rollback=True):
        # Empties the tables' files, and is undone with the rest.
        admin.execute(b"TRUNCATE stackmgr.managers, stackmgr.stacks CASCADE")
        insert(admin, range(1), range(100), range(1), allocation)
        assert admin.execute(COMPRESSED).fetchone() == (0,)
        moves = admin.execute(UPDATE).fetchall()
        assert len(moves) >= 3
        assert all(old == new for old, new in moves)


def test_a_create_neither_locks_nor_writes_its_managers_row(client, admin):
    """A lock of the row makes a multixact wherever two creates of one manager meet."""
    client.create(configuration())
    query = b"SELECT xmax::text FROM stackmgr.managers WHERE external_id = %s::text::uuid"
    assert admin.execute(query, [client.external_id]).fetchone() == ("0",)
