"""The files of `deploy/support/`, run by psql as the login that each names: what they reject, find and read.

What stack.sql and tokens.sql print of known data is in `deploy/COMMANDS.md`: `test_transcripts.py` runs it.
"""

import re
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import paths
from stackmgr.stacks.configuration import Configuration
from tests.operate.saved import (
    ADDRESS,
    MANAGER,
    MANAGER_ID,
    OTHER_MANAGER,
    OTHER_MANAGER_ID,
    OTHERS_STACK,
    PRODUCTION,
    QUIET_STACK,
    STACK,
    SUPPORT,
    TOKENS_FILE,
    whitelist_without,
)
from tests.sql.headers import FIELDS, read_all
from tests.support import psql
from tests.support.waiting import eventually

FOLDER = paths.directory("deploy") / "support"
FILES = read_all(FOLDER)
OF_THE_SERVER = ("blockers", "connections", "slots", "statements")
each_file = pytest.mark.parametrize("file", FILES.values(), ids=FILES)
SCHEMA = paths.directory("schemas") / "stack.json"
MISSING = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def run_file(run_psql):
    """Return a function that runs a file with parameters, and returns the rows that it prints."""

    def run(url: str, name: str, /, **parameters: str):
        given = [argument for each in parameters.items() for argument in ("-v", "=".join(each))]
        return run_psql(url, "-At", *given, "-f", FOLDER / f"{name}.sql")

    return run


@each_file
def test_the_header_is_complete_and_names_each_parameter(file):
    assert file.title == file.name
    assert file.purpose.endswith(".")
    assert [name for name in FIELDS if name in file.fields] == list(file.fields)
    assert file.fields.keys() | {"why"} == set(FIELDS)
    assert file.text.isascii()
    assert ("stackmgr_reader" in file.fields["called by"]) is (file.name not in OF_THE_SERVER)
    asked = set(re.findall(r":\{\?(\w+)\}", file.text)) - {"owner"}  # which the files find themselves
    assert (file.fields["params"] == "none") is not bool(asked)
    assert [name for name in asked if not re.search(rf"\b{name}\b", file.fields["params"])] == []


@each_file
def test_it_reads_only_in_the_readers_role_and_quotes_what_it_is_given(file):
    role = "" if file.name in OF_THE_SERVER else "SET LOCAL ROLE stackmgr_reader;"
    assert file.body.count(f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;\n{role}") == 1
    assert not re.search(
        r"[^:]:[a-z]", re.sub(r":'\w+'|^\\if :\w+|:ROW_COUNT|\[:\w+:\]", "", file.body, flags=re.MULTILINE)
    )


@pytest.mark.parametrize("name", ["stack", "find", "receipt", "request", "tokens", "key"])
def test_a_missing_parameter_is_named(run_file, saved_url, name):
    ran = run_file(saved_url, name)
    assert (ran.status, ran.out) == (3, "")
    assert re.fullmatch(rf"psql:.+/{name}\.sql:\d+: ERROR:  (which|whose) .*\? psql -v .*=.*\n", ran.err)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("stack", {"stack": MISSING}, "no such stack"),
        ("stack", {"stack": STACK, "manager": OTHER_MANAGER_ID}, "no such stack"),
        ("stack", {"stack": "'; SELECT 1 --"}, "invalid input syntax for type uuid"),
        ("receipt", {"manager": MANAGER}, "which key"),
        ("receipt", {"manager": MISSING, "key": "a"}, "no such manager"),
        ("find", {"manager": MISSING}, "no such manager"),
        ("request", {"request": "a", "manager": MISSING}, "no such manager"),
        ("key", {"key": "stackmgr_key"}, "invalid input syntax for type uuid"),
        ("tokens", {"whitelist": "/nowhere"}, "the whitelist cannot be read: name a file"),
        ("tokens", {"whitelist": str(SCHEMA)}, "not a whitelist of 30 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(run_file, saved_url, name, parameters, message):
    ran = run_file(saved_url, name, **parameters)
    assert (ran.status, ran.out) == (3, "")
    assert message in ran.err


GROWTH, INCOME, CHIPS = STACK, QUIET_STACK, OTHERS_STACK


@pytest.mark.parametrize(
    ("parameters", "stacks"),
    [
        ({"manager": MANAGER.upper()}, [INCOME, GROWTH]),
        ({"manager": MANAGER_ID, "rows": "1"}, [INCOME]),
        ({"name": "oW"}, [GROWTH]),
        ({"name": "%' OR true --"}, []),
        ({"token": ADDRESS["AMD"].upper().replace("0X", "0x")}, [GROWTH, CHIPS]),
        ({"token": ADDRESS["AMD"], "manager": OTHER_MANAGER_ID}, [CHIPS]),
        ({"key": PRODUCTION}, [INCOME, GROWTH]),
        ({"revision": f"{STACK[:-4]}0002"}, [GROWTH]),
        ({"revision": f'"{STACK[:-4]}0002"'}, [GROWTH]),
    ],
    ids=str,
)
def test_find_lists_the_stacks_for_which_every_condition_holds(run_file, saved_url, parameters, stacks):
    ran = run_file(saved_url, "find", **parameters)
    assert ran.status == 0, ran.err
    assert [line.split("|")[1] for line in ran.out.splitlines()] == stacks
    if stacks == [GROWTH]:
        assert ran.out == f"{MANAGER}|{GROWTH}|2026-11-20 09:15:00+00|4|Growth\n"


def test_a_history_can_be_short_and_of_a_named_manager(run_file, saved_url):
    ran = run_file(saved_url, "stack", stack=STACK, manager=MANAGER, revisions="2")
    rows = [line.split("|") for line in ran.out.splitlines() if re.match(r"\d", line)]
    assert [row[0] for row in rows] == ["4", "3", "4", "4", "3"]


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({}, True),
        ({"manager": MANAGER}, True),
        ({"manager": OTHER_MANAGER_ID}, False),
        ({"since": "2026-11-21 22:10:54Z", "until": "2026-11-21 22:10:54Z"}, True),
        ({"since": "2026-11-21 22:10:55Z"}, False),
        ({"until": "2026-11-21 22:10:53Z"}, False),
    ],
)
def test_a_request_is_found_within_its_bounds(run_file, saved_url, bounds, found):
    ran = run_file(saved_url, "request", request="support-daily", **bounds)
    assert ran.status == 0, ran.err
    assert ("revision_number|3\n" in ran.out) is found


def test_a_request_is_shown_with_what_it_changed(run_file, saved_url):
    shown = run_file(saved_url, "request", request="support-daily").out
    assert dict(line.split("|") for line in shown.splitlines()) == {
        "external_id": MANAGER,
        "manager_id": MANAGER_ID,
        "stack_id": STACK,
        "revision_number": "3",
        "revision_id": f"{STACK[:-4]}0003",
        "created_at": "2026-11-21 22:10:54+00",
        "key_id": SUPPORT,
        "name_before": "",
        "name_after": "",
        "preset_before": "monthly",
        "preset_after": "daily",
        "token_address": "",
        "weight_bps_before": "",
        "weight_bps_after": "",
    }


def test_a_request_id_is_found_by_what_is_stored_of_it(run_file, own_url):
    plant(own_url, update("stack_revisions", f"request_id = '{'r' * 255}'", LAST))
    assert "revision_number|4\n" in run_file(own_url, "request", request="r" * 300).out


@pytest.mark.parametrize("manager", [MANAGER, MANAGER_ID])
def test_a_receipt_is_found_by_either_id_of_its_manager_with_the_first_input(run_file, saved_url, manager):
    shown = run_file(saved_url, "receipt", manager=manager, key="growth-2026").out
    assert dict(line.split("|") for line in shown.splitlines()) == {
        "idempotency_key": "growth-2026",
        "created_at": "2026-11-20 09:15:00+00",
        "stack_id": GROWTH,
        "request_id": "import-17",
        "key_id": "",
        "name": "Growth",
        "preset": "weekly",
        "allocation": f'[{{"token_address":"{ADDRESS["AAPL"]}","weight_bps":10000}}]',
        "input_digest": "bf979d3efdc578bda1c93bfec753312f56e2dc5da279f19c67ba885ed6d7ce93",
        "current_name": "Growth",
        "revision_number": "4",
    }


def test_a_key_that_a_manager_has_not_used_has_no_receipt(run_file, saved_url):
    assert run_file(saved_url, "receipt", manager=OTHER_MANAGER_ID, key="growth-2026").out == ""


QUOTA = "6a1f0c4e-52d3-4b7a-9e58-0d9b7c3f2a61"
AHEAD = "b7c95d20-81ea-4f36-8c14-3e6f5a0d9b72"
TAKEN = f"""
INSERT INTO stackmgr.api_key_quota_slots
VALUES ('{QUOTA}', 1, now() - interval '2 s'), ('{AHEAD}', 1, now() + interval '1 h');
"""  # noqa: S608


@pytest.mark.parametrize(
    ("change", "state", "times"),
    [
        ("label = ''", "valid", set()),
        ("revoked_at = '2026-11-22', expires_at = '2026-11-21'", "revoked", {"revoked_at", "expires_at"}),
        ("expires_at = '2026-11-22'", "expired", {"expires_at"}),
        (f"quota_id = '{QUOTA}', quota_limit = 2, quota_seconds = 9", "quota exhausted", {"valid_again"}),
        (f"quota_id = '{QUOTA}', quota_limit = 2, quota_seconds = 1", "valid", set()),
        (f"quota_id = '{AHEAD}', quota_limit = 1, quota_seconds = 9", "valid", set()),
        ("last_used_at = '2026-11-22'", "valid", {"last_used_hour"}),
    ],
)
def test_a_key_is_shown_with_why_it_is_rejected_and_when(run_file, own_url, change, state, times):
    plant(own_url, update("api_keys", change, f"key_id = '{PRODUCTION}'") + TAKEN)
    shown = dict(line.split("|") for line in run_file(own_url, "key", key=PRODUCTION).out.splitlines())
    assert (shown["key_id"], shown["last_four"], shown["state"]) == (PRODUCTION, "dZFx", state)
    dates = {"revoked_at", "expires_at", "valid_again", "last_used_hour"}
    assert {name for name in dates if shown[name]} == times
    others = {"key_id", "external_id", "label", "last_four", "state", "created_at", "quota", "successor_id"}
    assert shown.keys() == dates | others


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({"manager": MANAGER_ID}, [PRODUCTION, SUPPORT]),
        ({"manager": MANAGER, "last_four": "Qq07"}, [SUPPORT]),
        ({"last_four": "dZFx"}, [PRODUCTION]),
        ({"last_four": "none"}, []),
        ({"key": SUPPORT, "manager": OTHER_MANAGER}, []),
    ],
    ids=str,
)
def test_a_key_is_found_by_its_id_its_last_characters_or_its_manager(run_file, saved_url, parameters, keys):
    ran = run_file(saved_url, "key", **parameters)
    assert ran.status == 0, ran.err
    assert re.findall(r"^key_id\|(.*)$", ran.out, re.MULTILINE) == keys


@pytest.fixture
def run_on_server(binaries, server_url):
    """Return a function that runs a file as a login that may do nothing but read the server's statistics."""
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(b"CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats")

        def run(name: str) -> list[list[str]]:
            url = make_conninfo(server_url, user="watcher")
            ran = psql.run_psql(url, "-At", "-f", FOLDER / f"{name}.sql", binaries=binaries)
            assert (ran.returncode, ran.stderr) == (0, "")
            return [line.split("|") for line in ran.stdout.splitlines()]

        yield run
        admin.execute(b"DROP ROLE watcher")


def test_the_session_that_blocks_others_is_listed_first(run_on_server, server_url):
    with psycopg.connect(server_url) as blocker, closing(psycopg.connect(server_url)) as waiter:
        blocker.execute(b"SELECT pg_advisory_xact_lock(7)")
        waiter.pgconn.send_query(b"SELECT pg_advisory_lock(7)")
        rows = eventually(lambda: run_on_server("blockers"))
        pids = [str(each.info.backend_pid) for each in (blocker, waiter)]
        assert [row[:2] for row in rows] == [[pids[0], "{}"], [pids[1], f"{{{pids[0]}}}"]]
        assert [row[-1] for row in rows] == ["SELECT pg_advisory_xact_lock(7)", "SELECT pg_advisory_lock(7)"]


def test_the_sessions_of_a_program_are_counted(run_on_server, server_url):
    with (
        psycopg.connect(server_url, application_name="leak"),
        psycopg.connect(server_url, application_name="leak"),
    ):
        [[_, _, state, sessions, _, used]] = [row for row in run_on_server("connections") if row[1] == "leak"]
    assert (state, sessions) == ("idle", "2")
    assert re.fullmatch(r"[1-9]\d* of [1-9]\d*", used)


def test_the_wal_that_a_forgotten_slot_keeps_is_shown(run_on_server, server_url):
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(b"SELECT pg_create_physical_replication_slot('forgotten', true)")
        try:
            [slot] = run_on_server("slots")
        finally:
            admin.execute(b"SELECT pg_drop_replication_slot('forgotten')")
    assert slot[:4] == ["forgotten", "physical", "f", "reserved"]
    assert re.fullmatch(r"\d+ [kM]?B|\d+ bytes", slot[4])


def test_the_whitelist_in_force_lists_every_token_that_is_held(run_file, saved_url):
    assert run_file(saved_url, "tokens", whitelist=str(TOKENS_FILE)).out == "0\n"


def test_creations_are_counted_by_what_they_were_made_with(run_file, saved_url, tmp_path: Path):
    (tmp_path / "new").write_text(whitelist_without("AMD"))
    *holders, creations = run_file(saved_url, "tokens", whitelist=str(tmp_path / "new")).out.splitlines()
    assert holders == [
        f"{AMD}|2|2|4001",
        f"{MANAGER}|{GROWTH}|{AMD}|4000|Growth",
        f"{OTHER_MANAGER}|{CHIPS}|{AMD}|1|Chips",
    ]
    assert creations == "1"  # Growth has the token since its fourth revision only


def test_a_list_of_holders_can_be_short(run_file, saved_url, tmp_path: Path):
    (tmp_path / "new whitelist").write_text(whitelist_without("AMD"))
    ran = run_file(saved_url, "tokens", whitelist=str(tmp_path / "new whitelist"), rows="1")
    assert [len(line.split("|")) for line in ran.out.splitlines()] == [4, 5, 1]


MANY = """
INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, name, allocation, preset)
SELECT manager_id, gen_random_uuid(), gen_random_uuid(), 1, name, allocation, preset
FROM stackmgr.stacks, generate_series(1, 2000);
INSERT INTO stackmgr.stack_revisions (
    manager_id, stack_id, revision_id, revision_number, name, allocation, preset, identity_id, request_id
)
SELECT manager_id, stack_id, revision_id, number, name, allocation, preset, 'id', 'many'
FROM stackmgr.stacks, generate_series(1, 4) AS number
ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.creation_receipts (manager_id, stack_id, idempotency_key, input_digest)
SELECT manager_id, stack_id, stack_id::text, sha256('') FROM stackmgr.stacks ON CONFLICT DO NOTHING;
"""


def rows_read(plans: str) -> float:
    """Return how many rows the nodes of some plans have read, those that a filter has removed included."""
    read = sum(
        float(rows) * float(loops) for rows, loops in re.findall(r"actual rows=([\d.]+) loops=(\d+)", plans)
    )
    return read + sum(map(float, re.findall(r"Rows Removed by .*: (\d+)", plans)))


def test_a_question_with_a_key_reads_rows_of_the_index_and_no_others(run_psql, own_url, tmp_path):
    plant(own_url, MANY)
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(b"VACUUM ANALYZE")

    def read(name: str, /, **parameters: str) -> float:
        analyzed = re.sub(
            r"^(\n|\\x \w+\n)(SELECT(?! \()|WITH)",
            r"\1EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) \2",
            FILES[name].text,
            flags=re.MULTILINE,
        )
        (tmp_path / name).write_text(analyzed)
        given = [argument for each in parameters.items() for argument in ("-v", "=".join(each))]
        ran = run_psql(own_url, "-At", *given, "-f", tmp_path / name)
        assert ran.status == 0, ran.err
        assert "actual rows" in ran.out
        return rows_read(ran.out)

    assert read("stack", stack=STACK) < 100
    assert read("stack", stack=STACK, manager=MANAGER) < 100
    assert read("receipt", manager=MANAGER, key="growth-2026") < 100
    assert read("find", manager=MANAGER, rows="10") < 100
    assert read("find", name="no such") > 6000
    assert read("request", request="support-daily") > 20_000


# Nothing but a broken disk, a restored table or a superuser brings such rows about.
UNGUARDED = b"""
ALTER DOMAIN stackmgr.stack_name DROP CONSTRAINT IF EXISTS stack_name_is_not_blank;
ALTER DOMAIN stackmgr.allocation DROP CONSTRAINT IF EXISTS allocation_is_normalised;
ALTER DOMAIN stackmgr.preset DROP CONSTRAINT IF EXISTS preset_is_known;
ALTER TABLE stackmgr.managers DROP CONSTRAINT IF EXISTS managers_identity_id_is_not_empty;
ALTER TABLE stackmgr.stacks
    ALTER name DROP NOT NULL, ALTER preset DROP NOT NULL, ALTER allocation DROP NOT NULL;
ALTER TABLE stackmgr.stack_revisions
    ALTER name DROP NOT NULL, ALTER preset DROP NOT NULL, ALTER allocation DROP NOT NULL;
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
    "no name": (both("name = NULL"), "name"),
    "no preset": (both("preset = NULL"), "preset"),
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
    "an earlier current revision": (
        update("stacks", f"revision_number = 3, revision_id = '{STACK[:-4]}0003', {weights((AAPL, 10000))}"),
        "current_row",
    ),
    "no last revision": (delete("stack_revisions", LAST), "no_revision"),
    "a revision id of another revision": (
        update("stack_revisions", f"revision_id = '{STACK[:-4]}0003'", f"{HERE} AND revision_number = 2"),
        "revision_id",
    ),
    "a gap": (delete("stack_revisions", f"{HERE} AND revision_number = 2"), "revision_gap"),
    "no first revision": (delete("stack_revisions", f"{HERE} AND revision_number = 1"), "revision_gap"),
    "no revision": (delete("stack_revisions"), "no_revision"),
    "no receipt": (delete("creation_receipts"), "no_receipt"),
    "two receipts": (SECOND_RECEIPT + HERE, "receipts"),
    "another digest": (update("creation_receipts", "input_digest = sha256('')"), "digest"),
    "no stack": (delete("stacks"), "no_stack"),
    "an empty identity": (update("managers", "identity_id = ''", ITS_MANAGER), "identity"),
    "an identity of two lines": (update("managers", r"identity_id = E'a\nb'", ITS_MANAGER), "identity"),
    "no manager": (delete("managers", ITS_MANAGER), "no_manager"),
    "a revision before the one before": (
        update("stack_revisions", "created_at = '2026-11-20'", f"{HERE} AND revision_number = 2"),
        "time",
    ),
    "a future revision": (update("stack_revisions", "created_at = now() + interval '1 day'", LAST), "time"),
    "an older stack": (update("stacks", "created_at = '1999-01-01'"), "time"),
    "an older receipt": (update("creation_receipts", "created_at = '1999-01-01'"), "time"),
}  # fmt: skip


def plant(url: str, statements: str) -> None:
    with psycopg.connect(url) as admin:
        admin.execute(b"SET LOCAL session_replication_role = replica")
        admin.execute(UNGUARDED)
        admin.execute(statements.encode())


def findings(ran) -> list[list[str]]:
    rows = [line.split("|") for line in ran.out.splitlines()]
    assert ran.status == (3 if rows else 0), ran.err
    assert ("the audit has findings" in ran.err) is bool(rows)
    return rows


@pytest.mark.parametrize(("statements", "kind"), FAULTS.values(), ids=FAULTS)
def test_the_audit_finds_a_planted_fault_where_it_is_and_nothing_else(run_file, own_url, statements, kind):
    plant(own_url, statements)
    found = findings(run_file(own_url, "audit"))
    assert {row[0] for row in found} == {kind}
    stacks = {"identity": {""}, "no_manager": {STACK, QUIET_STACK}}.get(kind, {STACK})
    assert {row[2] for row in found} == stacks
    assert {row[1] for row in found} == {MANAGER_ID}
    assert all(row[3] for row in found)


def test_the_audit_of_good_data_has_no_finding(run_file, saved_url):
    assert findings(run_file(saved_url, "audit")) == []


@pytest.mark.parametrize(
    "name",
    [
        '"quoted" \\ / <&>',
        "\x01\t\n\x1f\x7f",
        "Caf\xe9 \u2003\u20ac",
        "\ud7ff\ue000\uffff",
        "\U00010000\U0001f4c8\U0010ffff",
    ],
)
def test_the_audit_computes_the_digest_of_every_name(run_file, own_url, name):
    allocation = f'[{{"token_address":"{AMD}","weight_bps":10000}}]'
    new, key = str(uuid4()), Configuration(name, allocation, "weekly").digest()
    with psycopg.connect(own_url) as admin:
        row = {"m": MANAGER_ID, "s": new, "r": str(uuid4()), "n": name, "a": allocation, "d": key}
        admin.execute(
            "INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, name,"
            " allocation, preset) VALUES (%(m)s, %(s)s, %(r)s, 1, %(n)s, %(a)s, 'weekly')",
            row,
        )
        admin.execute(
            "INSERT INTO stackmgr.stack_revisions (manager_id, stack_id, revision_id, revision_number, name,"
            " allocation, preset, identity_id, request_id)"
            " VALUES (%(m)s, %(s)s, %(r)s, 1, %(n)s, %(a)s, 'weekly', 'i', 'r')",
            row,
        )
        admin.execute(
            "INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)"
            " VALUES (%(m)s, %(n)s, %(d)s, %(s)s)",
            row,
        )
    assert findings(run_file(own_url, "audit")) == []


def test_archived_revisions_may_be_missing_after_the_first_if_the_operator_says_so(run_file, own_url):
    plant(own_url, delete("stack_revisions", f"{HERE} AND revision_number IN (2, 3)"))
    assert [row[0] for row in findings(run_file(own_url, "audit"))] == ["revision_gap"]
    assert findings(run_file(own_url, "audit", archived="yes")) == []
    plant(own_url, delete("stack_revisions", f"{HERE} AND revision_number = 1"))
    assert [row[0] for row in findings(run_file(own_url, "audit", archived="yes"))] == ["revision_gap"]


def test_an_audit_of_some_managers_reads_theirs_only(run_file, own_url):
    assert MANAGER_ID < OTHER_MANAGER_ID
    plant(own_url, delete("creation_receipts", f"stack_id IN ('{STACK}', '{OTHERS_STACK}')"))
    bounds = {"first": {"first": OTHER_MANAGER_ID}, "last": {"last": MANAGER_ID}}
    found = {
        name: [row[2] for row in findings(run_file(own_url, "audit", **each))]
        for name, each in bounds.items()
    }
    assert found == {"first": [OTHERS_STACK], "last": [STACK]}
    assert len(findings(run_file(own_url, "audit"))) == 2


def test_a_stack_of_another_manager_with_the_same_id_is_another_stack(run_file, own_url):
    same, others = f"stack_id = '{QUIET_STACK}'", f"stack_id = '{OTHERS_STACK}'"
    plant(
        own_url,
        "".join(update(each, same, others) for each in ("stacks", "stack_revisions", "creation_receipts")),
    )
    assert findings(run_file(own_url, "audit")) == []
