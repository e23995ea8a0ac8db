"""Updates: supplied fields replace, omitted ones stay, and each update appends a complete revision."""

import pytest

from tests.support import examples
from tests.support.examples import CHANGED, allocation, configuration

NEW = CHANGED | {"allocation": CHANGED["allocation"][::-1]}
RIVALS = configuration(
    name="Rival's", allocation=allocation((examples.ADDRESSES[9], 10000)), schedule={"preset": "monthly"}
)


@pytest.mark.parametrize("field", NEW)
def test_an_update_waits_for_its_rival(client, stack, admin, other, field):
    columns = f"({examples.COLUMN_NAMES}) = ({examples.COLUMN_VALUES})"
    update = f"UPDATE stackmgr.stacks SET {columns} WHERE stack_id = %(stack_id)s"
    saved = examples.stored(RIVALS)._asdict() | {"stack_id": stack["id"]}
    for end, base in ((other.rollback, stack), (other.commit, stack | RIVALS)):
        other.execute(update, saved)
        given = stack["id"], {field: NEW[field]}
        updated = other.ended_before(client.update, *given, watcher=admin, end=end).json
        revision = {"current_revision_id": updated["current_revision_id"]}
        assert updated == base | {field: CHANGED[field]} | revision
        assert client.get(stack["id"]).json == updated


@pytest.mark.parametrize(
    "request_id", ["\xe9\xff\x80", "%s %(name)s", "'\"\\", "a,b", "r" * 6000, "\xe9" * 6000], ids=range(6)
)
def test_a_record_has_255_characters_of_an_id(client, admin, request_id):
    created = client.create(configuration(), headers={"X-Request-Id": request_id})
    client.update(created.json["id"], {"name": "Second"}, {"X-Request-Id": request_id})
    query = "SELECT request_id FROM stackmgr.stack_revisions WHERE stack_id = %s"
    assert admin.execute(query, [created.json["id"]]).fetchall() == [(request_id[:255],)] * 2


def test_a_failed_write_changes_nothing(client, stack, rejected, admin):
    admin.execute("ALTER TABLE stackmgr.stack_revisions ADD CONSTRAINT bad CHECK (name <> 'Bad') NOT VALID")
    try:
        rejected(500, "internal_error", client.update, stack["id"], {"name": "Bad"})
        rejected(500, "internal_error", client.create, configuration(name="Bad"), "key")
    finally:
        admin.execute("ALTER TABLE stackmgr.stack_revisions DROP CONSTRAINT bad")
    assert client.get(stack["id"]).json == stack
    assert client.create(configuration(name="Another"), "key").status_int == 201
