"""`stackmgr audit` finds one injected fault of each kind, where it is, and nothing else."""

import multiprocessing
import re
import signal
import sys

import psycopg
import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import migrations, progress
from stackmgr.operate.audit import jobs, ranges
from stackmgr.operate.audit.command import Audit
from stackmgr.operate.audit.ranges import Rules
from stackmgr.operate.audit.report import Report
from stackmgr.operate.audit.rules import allocation_fault
from tests.commands.saved import (
    ADDRESS,
    MANAGER,
    MANAGER_ID,
    OTHER_MANAGER_ID,
    OTHERS_STACK,
    QUIET_STACK,
    STACK,
)
from tests.support.clusters import new_database

# Nothing but a broken disk, a restored table or a superuser brings such rows about.
UNGUARDED = b"""
ALTER DOMAIN stackmgr.stack_name DROP CONSTRAINT IF EXISTS stack_name_is_not_blank;
ALTER DOMAIN stackmgr.allocation DROP CONSTRAINT IF EXISTS allocation_is_normalised;
ALTER DOMAIN stackmgr.preset DROP CONSTRAINT IF EXISTS preset_is_known;
ALTER TABLE stackmgr.managers DROP CONSTRAINT IF EXISTS managers_identity_id_is_not_empty;
"""
HERE = f"stack_id = '{STACK}'"
ITS_MANAGER = f"manager_id = '{MANAGER_ID}'"
LAST = f"{HERE} AND revision_number = 4"


def update(table: str, change: str, where: str = HERE) -> str:
    return f"UPDATE stackmgr.{table} SET {change} WHERE {where};"  # noqa: S608 - of constants


def delete(table: str, where: str = HERE) -> str:
    return f"DELETE FROM stackmgr.{table} WHERE {where};"  # noqa: S608 - of constants


def both(change: str) -> str:
    """Return the change of the current row and of the revision that it must equal."""
    return update("stacks", change) + update("stack_revisions", change, LAST)


def weights(*items: tuple[str, int], form: str = '{{"token_address":"{}","weight_bps":{}}}') -> str:
    return f"allocation = '[{','.join(form.format(*item) for item in items)}]'"


AAPL, AMD = ADDRESS["AAPL"], ADDRESS["AMD"]
SPACED = '{{"token_address": "{}", "weight_bps": {}}}'
SECOND_RECEIPT = """
INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
SELECT manager_id, 'second', input_digest, stack_id FROM stackmgr.creation_receipts WHERE
"""
FAULTS = {
    "a blank name": (both("name = U&'\\2003 '"), "stack_rule revision_rule"),
    "an unknown preset": (both("preset = 'yearly'"), "stack_rule revision_rule"),
    "a total of 9999": (both(weights((AMD, 4000), (AAPL, 5999))), "stack_rule revision_rule"),
    "a repeated address": (both(weights((AMD, 4000), (AMD, 6000))), "stack_rule revision_rule"),
    "a descending address": (both(weights((AAPL, 4000), (AMD, 6000))), "stack_rule revision_rule"),
    "another spelling": (both(weights((AMD, 10000), form=SPACED)), "stack_rule revision_rule"),
    "a token not listed": (both(weights(("0x" + "00" * 20, 10000))), "token_not_listed"),
    "another current name": (update("stacks", "name = 'Changed'"), "current_row"),
    "another current revision": (update("stacks", "revision_id = gen_random_uuid()"), "current_row"),
    "no last revision": (delete("stack_revisions", LAST), "current_row"),
    "a gap": (delete("stack_revisions", f"{HERE} AND revision_number = 2"), "revision_gap"),
    "no first revision": (delete("stack_revisions", f"{HERE} AND revision_number = 1"), "revision_gap"),
    "no revision": (delete("stack_revisions"), "no_revision"),
    "no receipt": (delete("creation_receipts"), "no_receipt"),
    "two receipts": (SECOND_RECEIPT + HERE, "receipts"),
    "another digest": (update("creation_receipts", "input_digest = sha256('')"), "receipt_digest"),
    "no stack": (delete("stacks"), "no_stack"),
    "an empty identity": (
        update("managers", "identity_id = ''", f"manager_id = '{MANAGER_ID}'"),
        "manager_rule",
    ),
    "no manager": (delete("managers", ITS_MANAGER), "no_manager"),
}


def plant(url: str, statements: str) -> None:
    with psycopg.connect(url) as admin:
        admin.execute(b"SET LOCAL session_replication_role = replica")
        admin.execute(UNGUARDED)
        admin.execute(statements.encode())


def findings(outcome) -> list[list[str]]:
    head, *rows = [line.split("\t") for line in outcome.out.splitlines()]
    assert head == ["KIND", "MANAGER_ID", "STACK_ID", "FINDING"]
    return rows


def test_a_good_database_has_no_finding(on_saved):
    ran = on_saved("audit")
    assert (ran.status, ran.out) == (0, "")
    counts = r"3 stacks, 7 revisions, 3 receipts read in \d+ s, [\d,]+ stacks/s\. Findings: 0\.\n"
    assert re.fullmatch(counts, ran.err)


@pytest.mark.parametrize(("statements", "kinds"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_where_it_is_and_nothing_else(command, own_url, statements, kinds):
    plant(own_url, statements)
    ran = command("audit")
    found = findings(ran)
    assert {kind for kind, *_ in found} == set(kinds.split())
    assert ran.status == 3
    for kind, manager_id, stack_id, text in found:
        assert manager_id == MANAGER_ID
        assert stack_id in {"manager_rule": ("-",), "no_manager": (STACK, QUIET_STACK)}.get(kind, (STACK,))
        assert text


def test_json_is_one_document(command, own_url):
    plant(own_url, delete("creation_receipts") + delete("stack_revisions"))
    document = command("audit", "--json").json
    assert [finding["kind"] for finding in document["findings"]] == ["no_revision", "no_receipt"]
    assert (document["stacks"], document["revisions"], document["receipts"]) == (3, 3, 2)
    plant(own_url, delete("stacks"))
    assert command("audit", "--json").json["findings"] == []


def test_archived_revisions_may_be_missing_after_the_first_if_the_operator_says_so(command, own_url):
    plant(own_url, delete("stack_revisions", f"{HERE} AND revision_number IN (2, 3)"))
    assert [row[0] for row in findings(command("audit"))] == ["revision_gap"]
    assert command("audit", "--archived").status == 0
    plant(own_url, delete("stack_revisions", f"{HERE} AND revision_number = 1"))
    assert [row[0] for row in findings(command("audit", "--archived"))] == ["revision_gap"]


def test_a_run_takes_some_managers_at_a_time_and_can_continue_after_any(command, own_url, monkeypatch):
    monkeypatch.setattr(ranges, "_MANAGERS_AT_A_TIME", 1)
    assert command("audit").err.startswith("3 stacks, 7 revisions, 3 receipts")
    assert MANAGER_ID < OTHER_MANAGER_ID
    plant(own_url, delete("creation_receipts", f"stack_id IN ('{STACK}', '{OTHERS_STACK}')"))
    assert [row[2] for row in findings(command("audit"))] == [STACK, OTHERS_STACK]
    for any_id in (MANAGER_ID, MANAGER):
        assert [row[2] for row in findings(command("audit", "--after", any_id))] == [OTHERS_STACK]
    assert command("audit", "--after", OTHER_MANAGER_ID).err.startswith("0 stacks, 0 revisions")


def test_an_interrupted_run_says_where_to_continue(command, own_url, monkeypatch):
    monkeypatch.setattr(ranges, "_MANAGERS_AT_A_TIME", 1)
    audited = jobs.audit_range

    def interrupted(connection, managers, rules):
        if managers.after is not None:
            raise KeyboardInterrupt
        return audited(connection, managers, rules)

    monkeypatch.setattr(jobs, "audit_range", interrupted)
    ran = command("audit")
    assert ran.status == 1
    assert f"To continue: stackmgr audit --after {MANAGER_ID}\n" in ran.err
    assert "2 stacks, 5 revisions, 2 receipts" in ran.err


def test_a_stack_of_another_manager_with_the_same_id_is_another_stack(command, own_url):
    tables = ("stacks", "stack_revisions", "creation_receipts")
    same, others = f"stack_id = '{QUIET_STACK}'", f"stack_id = '{OTHERS_STACK}'"
    plant(own_url, "".join(update(table, same, others) for table in tables))
    assert command("audit").status == 0


def test_progress_has_an_estimate_of_the_remaining_time(command, own_url, monkeypatch):
    """As soon as the planner has one of the number of stacks."""
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 0)
    with monkeypatch.context() as patched:
        patched.setattr(sys.stderr, "isatty", lambda: True)
        assert re.search(r"\r3 stacks, [\d,]+ stacks/s, 0 found +\r", command("audit").err)
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(b"ANALYZE stackmgr.stacks")
    monkeypatch.setattr(ranges, "_MANAGERS_AT_A_TIME", 1)
    assert "about" not in command("audit").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = command("audit").err.split("\r")
    assert any(re.match(r"2 of about 3 stacks, [\d,]+ stacks/s, 0 found +$", line) for line in shown)
    assert any(
        re.match(r"3 of about 3 stacks, about 0 s left, [\d,]+ stacks/s, 0 found +$", line) for line in shown
    )


def test_ctrl_c_is_noticed_while_a_command_shows_its_progress():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends without a word by default
    try:
        with pytest.raises(KeyboardInterrupt), progress.Progress("stacks"):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_processes_find_what_one_process_finds(command, own_url, monkeypatch):
    monkeypatch.setattr(ranges, "_MANAGERS_AT_A_TIME", 1)
    plant(own_url, delete("creation_receipts"))
    plant(own_url, delete("stack_revisions", f"stack_id = '{OTHERS_STACK}'"))
    alone, together = command("audit"), command("audit", "--jobs", "2")
    assert sorted(findings(together)) == sorted(findings(alone))
    assert {row[2] for row in findings(together)} == {STACK, OTHERS_STACK}
    assert together.status == 3
    assert together.err.split(" read in")[0] == alone.err.split(" read in")[0]


def test_a_process_that_fails_fails_the_audit_with_its_reason(saved_url):
    nowhere = "postgresql://somebody:hush@127.0.0.1:1/x"
    todo = iter([ranges.Range(None, None)])
    with pytest.raises(CommandError, match="the database cannot be reached") as failed:
        list(jobs.in_processes(nowhere, todo, Rules(frozenset(), archived=False), 1))
    assert "hush" not in str(failed.value)


def test_a_process_that_is_killed_fails_the_audit(own_url):
    todo = iter([ranges.Range(None, MANAGER_ID), ranges.Range(MANAGER_ID, None)])
    results = jobs.in_processes(own_url, todo, Rules(frozenset(), archived=False), 1)
    next(results)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(CommandError, match="a process of the audit was ended from outside"):
        list(results)


def test_a_run_of_several_processes_continues_before_the_first_range_that_is_not_complete():
    audit = Audit(
        Report(progress.Progress("stacks"), as_json=False), Rules(frozenset(), archived=False), None
    )
    todo = [ranges.Range(None, "1"), ranges.Range("1", "2"), ranges.Range("2", "3"), ranges.Range("3", None)]
    audit._unfinished = dict.fromkeys(todo, True)
    done = []
    for number in (1, 0, 3, 2):
        audit._finish(todo[number])
        done.append(audit.done)
    assert done == [None, "2", "2", None]


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_a_database_that_cannot_be_read_is_one_message(command, server_url, monkeypatch, json):
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(b"DROP SCHEMA stackmgr CASCADE")
        for address, message in (
            (url, "the database has no schema of this release: run 'stackmgr migrate' first"),
            ("postgresql://somebody:hush@127.0.0.1:1/x", "the database cannot be reached"),
        ):
            monkeypatch.setenv("STACKMGR_DATABASE_URL", address)
            ran = command("audit", *json)
            assert (ran.status, ran.out) == (1, "")
            assert ran.err.startswith(f"stackmgr: {message}")
            assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("weight", ["00", "010000", "1e4", "-1", "10000.0", "99999"])
def test_an_odd_weight_is_no_normalized_allocation(weight):
    assert allocation_fault(f'[{{"token_address":"{AMD}","weight_bps":{weight}}}]') is not None


def test_thirty_items_are_the_most():
    items = sorted(ADDRESS.values())
    weighted = ((address, 0 if number else 10000) for number, address in enumerate(items))
    text = ",".join(f'{{"token_address":"{address}","weight_bps":{bps}}}' for address, bps in weighted)
    assert allocation_fault(f"[{text}]") is None
    more = f'{text},{{"token_address":"0x{"f" * 40}","weight_bps":0}}'
    assert allocation_fault(f"[{more}]") == "allocation has 31 items"
