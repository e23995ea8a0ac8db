"""deploy/support/audit.sql finds each planted fault, where it is, and nothing else."""

import re

import psycopg
import pytest

from stackmgr import paths
from stackmgr.stacks.configuration import Configuration
from tests.operate import saved
from tests.operate.saved import HERE, MANAGER_ID, OTHERS_STACK, QUIET_STACK, STACK, delete, plant, update
from tests.support.examples import COLUMNS
from tests.support.processes import completed
from tests.support.programs import executable

AUDIT = paths.directory("deploy") / "support" / "audit.sql"
ITS_MANAGER = f"manager_id = '{MANAGER_ID}'"
SECOND, LAST = (f"{HERE} AND revision_number = {number}" for number in (2, 4))


def both(change: str) -> str:
    return update("stacks", change) + update("stack_revisions", change, LAST)


def weights(*items: tuple[str, int], form: str = '{{"token_address":"{}","weight_bps":{}}}') -> str:
    return f"allocation = '[{','.join(form.format(*item) for item in items)}]'"


AAPL, AMD = saved.ADDRESS["AAPL"], saved.ADDRESS["AMD"]
SPACED = '{{"token_address": "{}", "weight_bps": {}}}'
SECOND_RECEIPT = """
INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id, created_at)
SELECT manager_id, 'second', input_digest, stack_id, created_at FROM stackmgr.creation_receipts WHERE
"""
RULED_AGAIN = """
ALTER DOMAIN stackmgr.preset ADD CONSTRAINT preset_is_known
CHECK (VALUE IN ('hourly', 'daily', 'weekly', 'monthly')) NOT VALID;
"""
FAULTS = {
    "a blank name": (both("name = U&'\\2003 '"), "name"),
    "an unknown preset": (both("preset = 'yearly'") + RULED_AGAIN, "preset"),
    "no name": (both("name = NULL"), "name"), "no preset": (both("preset = NULL"), "preset"),
    "no allocation": (both("allocation = NULL"), "allocation"),
    "no current name": (update("stacks", "name = NULL"), "current_row"),
    "a total of 9999": (both(weights((AMD, 4000), (AAPL, 5999))), "allocation"),
    "a repeated address": (both(weights((AMD, 4000), (AMD, 6000))), "allocation"),
    "a descending address": (both(weights((AAPL, 4000), (AMD, 6000))), "allocation"),
    "another spelling": (both(weights((AMD, 10000), form=SPACED)), "allocation"),
    "no array": (both("allocation = '{}'"), "allocation"),
    "another current name": (update("stacks", "name = 'Changed'"), "current_row"),
    "another current preset": (update("stacks", "preset = 'hourly'"), "current_row"),
    "another current allocation": (update("stacks", weights((AMD, 10000))), "current_row"),
    "another current revision": (update("stacks", "revision_id = gen_random_uuid()"), "current_row"),
    "an earlier current revision": (update("stacks", "revision_number = 3, "
        f"revision_id = '{STACK[:-4]}0003', {weights((AAPL, 10000))}"), "current_row"),
    "no last revision": (delete("stack_revisions", LAST), "no_revision"),
    "a repeated revision id":
        (update("stack_revisions", f"revision_id = '{STACK[:-4]}0003'", SECOND), "revision_id"),
    "a gap": (delete("stack_revisions", SECOND), "revision_gap"),
    "no first revision": (delete("stack_revisions", f"{HERE} AND revision_number = 1"), "revision_gap"),
    "no revision": (delete("stack_revisions"), "no_revision"),
    "no receipt": (delete("creation_receipts"), "no_receipt"),
    "two receipts": (SECOND_RECEIPT + HERE, "receipts"), "no stack": (delete("stacks"), "no_stack"),
    "another digest": (update("creation_receipts", "input_digest = sha256('')"), "digest"),
    "an empty identity": (update("managers", "identity_id = ''", ITS_MANAGER), "identity"),
    "an identity with a tab": (update("managers", r"identity_id = E'a\tb'", ITS_MANAGER), "identity"),
    "no manager": (delete("managers", ITS_MANAGER), "no_manager"),
    "a revision before the first": (update("stack_revisions", "created_at = '2026-11-20'", SECOND), "time"),
    "a future revision": (update("stack_revisions", "created_at = now() + interval '1 day'", LAST), "time"),
    "an older stack": (update("stacks", "created_at = '1999-01-01'"), "time"),
    "an older receipt": (update("creation_receipts", "created_at = '1999-01-01'"), "time"),
}  # fmt: skip


@pytest.fixture
def audit(run_psql, own_saved_url):
    def run(**parameters: str) -> list[list[str]]:
        given = [argument for each in parameters.items() for argument in ("-v", "=".join(each))]
        ran = run_psql(own_saved_url, "-At", *given, "-f", AUDIT)
        rows = [line.split("|") for line in ran.out.splitlines()]
        assert ran.status == (3 if rows else 0), ran.err
        assert ("the audit has findings" in ran.err) is bool(rows)
        return rows

    return run


@pytest.mark.parametrize(("statements", "kind"), FAULTS.values(), ids=FAULTS)
def test_audit_finds_a_planted_fault(audit, own_saved_url, statements, kind):
    plant(own_saved_url, statements)
    found = audit()
    assert {row[0] for row in found} == {kind}
    stacks = {"identity": {""}, "no_manager": {STACK, QUIET_STACK}}.get(kind, {STACK})
    assert {row[2] for row in found} == stacks
    assert {row[1] for row in found} == {MANAGER_ID}
    assert all(row[3] for row in found)


NAMES = (
    '"quoted" \\ / <&>', "\x01\t\n\x1f\x7f", "Caf\xe9 \u2003\u20ac", "\ud7ff\ue000\uffff",
    "\U00010000\U0001f4c8\U0010ffff",
)  # fmt: skip


def test_audit_of_good_data_finds_nothing(audit, own_saved_url):
    assert audit() == []
    with psycopg.connect(own_saved_url, autocommit=True) as admin:
        texts = ", ".join(f"{column}::text" for column in COLUMNS)
        query = f"SELECT {texts} FROM stackmgr.stacks WHERE stack_id = %s"
        [row] = admin.execute(query.encode(), [QUIET_STACK])
        for name in NAMES:
            for table in ("stacks", "stack_revisions"):
                renaming = update(table, "name = %s", "stack_id = %s")
                admin.execute(renaming.encode(), [name, QUIET_STACK])
            digest = Configuration(*row)._replace(name=name).digest()
            renaming = update("creation_receipts", "input_digest = %s", "stack_id = %s")
            admin.execute(renaming.encode(), [digest, QUIET_STACK])
            assert audit() == [], name
    same, others = f"stack_id = '{QUIET_STACK}'", f"stack_id = '{OTHERS_STACK}'"  # of two managers
    tables = ("stacks", "stack_revisions", "creation_receipts")
    plant(own_saved_url, "".join(update(each, same, others) for each in tables))
    assert audit() == []


def test_archived_revisions_may_be_missing(audit, own_saved_url):
    plant(own_saved_url, delete("stack_revisions", f"{HERE} AND revision_number IN (2, 3)"))
    assert [row[0] for row in audit()] == ["revision_gap"]
    assert audit(archived="yes") == []
    plant(own_saved_url, delete("stack_revisions", f"{HERE} AND revision_number = 1"))
    assert [row[0] for row in audit(archived="yes")] == ["revision_gap"]


def test_audit_in_parts_finds_the_same(own_saved_url, binaries, tmp_path):
    plant(own_saved_url, delete("creation_receipts", f"stack_id IN ('{STACK}', '{OTHERS_STACK}')"))
    for digit, manager_id in (("0", MANAGER_ID), ("f", saved.OTHER_MANAGER_ID)):  # the first and the last
        moved = f"manager_id = '{re.sub('[^-]', digit, manager_id)}'"
        tables = ("managers", "stacks", "stack_revisions", "creation_receipts")
        plant(own_saved_url, "".join(update(each, moved, f"manager_id = '{manager_id}'") for each in tables))
    (tmp_path / "psqlrc").write_text("\\echo noise\n")
    environment = {"PATH": f"{binaries}:/usr/bin:/bin", "PSQLRC": str(tmp_path / "psqlrc")}
    command = ["/bin/sh", AUDIT.with_suffix(".sh"), "-d", own_saved_url, "-v", "ON_ERROR_STOP=1"]

    def run() -> tuple[int, list[str], str]:
        ran = completed(command, env=environment)
        return ran.returncode, ran.stdout.splitlines(), ran.stderr

    status, found, progress = run()
    assert (status, progress.count("part ")) == (3, 256)
    assert sorted(line.split("|")[2] for line in found) == sorted([STACK, OTHERS_STACK])
    executable(tmp_path / "seq", "#!/bin/sh\necho 0 17\n")
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    assert run()[0] == 3  # although the last part has no finding
    plant(own_saved_url, "ALTER TABLE stackmgr.stacks RENAME TO lost;")
    status, found, progress = run()
    assert (status, found, progress.count("part ")) == (2, [], 1)
    assert 'relation "stackmgr.stacks" does not exist' in progress
