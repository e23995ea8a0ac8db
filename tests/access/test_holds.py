"""`stackmgr managers hold`: no erasure deletes rows of a held manager, whichever of the two begins first."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import erasure
from stackmgr.operate.operator import operating

HISTORY = b"""
SELECT reason, held_by = session_user, released_at >= held_at, released_by = session_user, bound_manager_id
FROM stackmgr.manager_holds WHERE manager_id = %s ORDER BY held_at
"""
pytestmark = pytest.mark.usefixtures("erase_at_once")


@pytest.fixture(autouse=True)
def row_by_row(monkeypatch):
    monkeypatch.setattr(erasure, "_BATCH", 1)


@pytest.fixture
def operators(database_url):
    with operating(database_url) as one, operating(database_url) as two:
        yield one, two


@pytest.fixture
def rows(rows_of, manager):
    return lambda: rows_of(manager[0])[:3]


def is_held():
    return pytest.raises(CommandError, match="is held since")


def test_a_held_manager_is_not_erased_until_its_release(client, manager, command, admin, rows):
    manager_id, external_id = manager
    erase = ("managers", "erase", manager_id, "--confirm", external_id)
    assert command("managers", "hold", external_id, "--reason", "case 17").status == 0
    for action in (erase, ("managers", "hold", manager_id, "--reason", "again")):
        rejected = command(*action)
        assert (rejected.status, rejected.out) == (1, "")
        assert rejected.err.startswith(f"stackmgr: {manager_id} is held since 2")
        assert rejected.err.endswith(": case 17; 'stackmgr managers release' ends the hold\n")
    assert rows() == [3, 3, 3]
    assert client.page().status_int == 200
    [shown] = command("managers", "show", external_id, "--json").json
    assert shown in command("managers", "list", "--json").json
    [(_, _, _, _, bound)] = admin.execute(HISTORY, [manager_id]).fetchall()
    assert (shown["hold_reason"], str(bound)) == ("case 17", manager_id)
    [released] = command("managers", "release", external_id, "--json").json
    assert released["held_at"] == shown["held_at"] <= released["released_at"]
    [shown] = command("managers", "show", external_id, "--json").json
    assert shown["held_at"] is None
    assert shown in command("managers", "list", "--json").json
    assert command(*erase).status == 0
    assert rows() == [0, 0, 0]
    assert "no manager has" in command("managers", "hold", manager_id, "--reason", "late").err
    assert admin.execute(HISTORY, [manager_id]).fetchall() == [("case 17", True, True, True, None)]


def test_what_cannot_be_held_or_released_is_named(manager, command):
    unknown = str(uuid4())
    missing = f"no manager has the external id or manager id {unknown}: see 'stackmgr managers list'"
    not_held = f"{manager[0]} is not held: nothing was changed"
    assert command("managers", "hold", unknown, "--reason", "x").err == f"stackmgr: {missing}\n"
    for _ in range(2):
        assert command("managers", "release", manager[1]).err == f"stackmgr: {not_held}\n"
        assert command("managers", "hold", manager[1], "--reason", "x").status == 0
        assert command("managers", "release", manager[1]).status == 0
    for reason in ("", " ", "two\nlines"):
        assert command("managers", "hold", manager[0], "--reason", reason).status == 2


@pytest.mark.parametrize(("deleted", "left"), [
    (0, [3, 3, 3]), (2, [3, 3, 1]), (5, [3, 1, 0]), (7, [2, 0, 0]), (9, [0, 0, 0]),
], ids=["before any row", "receipts", "revisions", "stacks", "after the last row"])  # fmt: skip
def test_hold_stops_a_running_erasure(manager, operators, rows, deleted, left):
    one, two = operators

    def hold_then(done: int, *_: object) -> None:
        if done == deleted:
            erasure.hold(two, manager[0], "case 17")

    for progress in (hold_then, erasure.Progress()):
        with is_held():
            erasure.erase(one, *manager, progress)
        assert rows() == left
    erasure.release(two, manager[0])
    assert erasure.erase(one, *manager, erasure.Progress()) == (3, 3, 3, 1)


def test_hold_and_erasure_wait_for_each_other(manager, operators, until_one_waits, rows):
    one, two = operators
    begin = {"manager_id": manager[0], "external_id": manager[1]}
    with ThreadPoolExecutor() as threads:
        with erasure.not_held(one, manager[0]):  # as the beginning and each step do
            assert one.rows(erasure._BEGIN, begin)
            holding = threads.submit(erasure.hold, two, manager[0], "case 17")
            until_one_waits()
        assert holding.result(30).reason == "case 17"
        with is_held():
            erasure.erase(one, *manager, erasure.Progress())
        erasure.release(one, manager[0])
        with one.transaction():
            erasure.hold(one, manager[0], "case\x1b18")
            step = threads.submit(erasure._delete_rows, two, manager[0], erasure.Progress())
            until_one_waits()
        with pytest.raises(CommandError, match=r"case\\x1b18"):
            step.result(30)
    assert rows() == [3, 3, 3]
