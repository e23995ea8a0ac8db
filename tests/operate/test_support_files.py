"""The files of `deploy/support/`, run by psql as the login that each names: what they reject, find and read.

What stack.sql and tokens.sql print of known data is in `deploy/COMMANDS.md`: `test_transcripts.py` runs it.
"""

import re
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import paths
from tests.operate import saved
from tests.operate.saved import ADDRESS, MANAGER, OTHER_MANAGER_ID, PRODUCTION, STACK, SUPPORT, plant, update
from tests.sql.headers import read_all
from tests.support import psql
from tests.support.clusters import login
from tests.support.examples import COLUMNS, MISSING, STORED, allocation_text
from tests.support.waiting import eventually

FOLDER = paths.directory("deploy") / "support"
FILES = read_all(FOLDER)
OF_THE_SERVER = ("blockers", "connections", "slots", "statements")
SCHEMA = paths.directory("schemas") / "stack.json"
# The last column of each order: no two rows are equal in it, and in those before.
LAST = {"finding", "key_id", "percent_of_time", "pid", "revision_number", "slot_name", "stack_id", "state"}
LAST |= {"token_address"}
NO_ID = "invalid input syntax for type uuid"
GROWTH, INCOME, CHIPS = STACK, saved.QUIET_STACK, saved.OTHERS_STACK


@pytest.fixture
def run_file(run_psql):
    def run(url: str, name: str, /, **parameters: object):
        given = [argument for each in parameters.items() for argument in ("-v", "{}={}".format(*each))]
        return run_psql(url, "-At", *given, "-f", FOLDER / f"{name}.sql")

    return run


@pytest.fixture
def shown(run_file, saved_url):
    def show(name: str, /, **parameters: object) -> list[str]:
        ran = run_file(saved_url, name, **parameters)
        assert ran.status == 0, ran.err
        return ran.out.splitlines()

    return show


def record(lines: list[str]) -> dict[str, str]:
    return dict(line.split("|") for line in lines)


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_support_file_is_complete_and_reads_only(file):
    assert file.is_complete()
    assert file.text.isascii()
    assert ("stackmgr_reader" in file.fields["called by"]) is (file.name not in OF_THE_SERVER)
    asked = set(re.findall(r":\{\?(\w+)\}", file.text)) - {"owner"}  # which the files find themselves
    assert (file.fields["params"] == "none") is not bool(asked)
    assert [name for name in asked if not re.search(rf"\b{name}\b", file.fields["params"])] == []
    role = "" if file.name in OF_THE_SERVER else "SET LOCAL ROLE stackmgr_reader;"
    assert file.body.count(f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;\n{role}") == 1
    quoted = re.sub(r":'\w+'|^\\if :\w+|:ROW_COUNT|\[:\w+:\]", "", file.body, flags=re.MULTILINE)
    assert not re.search(r"[^:]:[a-z]", quoted)
    assert {*re.findall(r"^ *ORDER BY .*?(\w+)(?: DESC)?;?$", file.body, re.MULTILINE)} <= LAST
    assert ("SET LOCAL statement_timeout = 0;" in file.body) is (file.name == "audit")


def test_each_file_stops_at_its_first_error(run_psql, saved_url):
    """Otherwise psql's exit status is 0, and an empty list looks like a complete one."""
    files = [path for each in ("support", "postgresql") for path in (FOLDER.parent / each).glob("*.sql")]
    assert [path.name for path in files if "\n\\set ON_ERROR_STOP " not in path.read_text()] == []
    ran = run_psql(saved_url, "-At", "-f", FOLDER.parent / "postgresql" / "lost_changes.sql")
    assert (ran.status, ran.out) == (3, ""), ran.err  # its login may not read


@pytest.mark.parametrize(("name", "parameters", "message"), [
    *((name, {}, r"(which|whose) .*\? psql -v .*=.*\n") for name in ("stack", "find", "receipt")),
    *((name, {}, r"(which|whose) .*\? psql -v .*=.*\n") for name in ("request", "tokens", "key")),
    ("stack", {"stack": MISSING}, "no such stack"),
    ("stack", {"stack": STACK, "manager": OTHER_MANAGER_ID}, "no such stack"),
    ("stack", {"stack": "'; SELECT 1 --"}, NO_ID),
    ("receipt", {"manager": MANAGER}, "which key"),
    ("receipt", {"manager": MISSING, "key": "a"}, "no such manager"),
    ("find", {"manager": MISSING}, "no such manager"),
    ("request", {"request": "a", "manager": MISSING}, "no such manager"),
    ("key", {"key": "stackmgr_key"}, NO_ID),
    ("tokens", {"whitelist": "/nowhere"}, "the whitelist cannot be read: name a file"),
    ("tokens", {"whitelist": SCHEMA}, "the file is not a whitelist of 30 tokens"),
])  # fmt: skip
def test_what_is_missing_or_cannot_be_is_an_error(run_file, saved_url, name, parameters, message):
    ran = run_file(saved_url, name, **parameters)
    assert (ran.status, ran.out) == (3, "")
    assert re.search(rf"psql:.+/{name}\.sql:\d+: ERROR:  {message}", ran.err)


@pytest.mark.parametrize(("parameters", "stacks"), [
    ({"manager": MANAGER.upper()}, [INCOME, GROWTH]), ({"name": "oW"}, [GROWTH]),
    ({"manager": saved.MANAGER_ID, "rows": "1"}, [INCOME]), ({"name": "%' OR true --"}, []),
    ({"token": ADDRESS["AMD"].upper().replace("0X", "0x")}, [GROWTH, CHIPS]),
    ({"token": ADDRESS["AMD"], "manager": OTHER_MANAGER_ID}, [CHIPS]),
    ({"key": PRODUCTION}, [INCOME, GROWTH]), ({"revision": f"{STACK[:-4]}0002"}, [GROWTH]),
    ({"revision": f'"{STACK[:-4]}0002"'}, [GROWTH]),
], ids=str)  # fmt: skip
def test_find_applies_every_condition(shown, parameters, stacks):
    lines = shown("find", **parameters)
    assert [line.split("|")[1] for line in lines] == stacks
    if stacks == [GROWTH]:
        assert lines == [f"{MANAGER}|{GROWTH}|2026-11-20 09:15:00+00|4|Growth"]


@pytest.mark.parametrize(("bounds", "found"), [
    ({}, True), ({"manager": MANAGER}, True), ({"manager": OTHER_MANAGER_ID}, False),
    ({"since": "2026-11-21 22:10:54Z", "until": "2026-11-21 22:10:54Z"}, True),
    ({"since": "2026-11-21 22:10:55Z"}, False), ({"until": "2026-11-21 22:10:53Z"}, False),
])  # fmt: skip
def test_request_is_found_within_its_bounds(shown, bounds, found):
    changed = record(shown("request", request="support-daily", **bounds))
    assert bool(changed) is found
    empty = [f"{name}_{when}" for name in COLUMNS for when in ("before", "after") if name != "allocation"]
    expected = dict.fromkeys((*empty, "token_address", "weight_bps_before", "weight_bps_after"), "") | {
        "external_id": MANAGER, "manager_id": saved.MANAGER_ID, "stack_id": STACK, "revision_number": "3",
        "revision_id": f"{STACK[:-4]}0003", "created_at": "2026-11-21 22:10:54+00", "key_id": SUPPORT,
        "preset_before": "monthly", "preset_after": "daily",
    }  # fmt: skip
    assert changed == (expected if found else {})


@pytest.mark.parametrize("manager", [MANAGER, saved.MANAGER_ID])
def test_receipt_is_found_by_either_id(shown, manager):
    saved = allocation_text((ADDRESS["AAPL"], 10000))
    created = STORED._replace(name="Growth", preset="weekly", allocation=saved)
    assert record(shown("receipt", manager=manager, key="growth-2026")) == created._asdict() | {
        "idempotency_key": "growth-2026", "created_at": "2026-11-20 09:15:00+00", "stack_id": GROWTH,
        "request_id": "import-17", "key_id": "", "input_digest": created.digest().hex(),
        "current_name": "Growth", "revision_number": "4",
    }  # fmt: skip
    assert shown("receipt", manager=OTHER_MANAGER_ID, key="growth-2026") == []


def test_the_newest_is_first_a_cut_id_is_found_and_a_lost_stack_has_its_receipt(run_file, own_saved_url):
    where = f"{saved.HERE} AND revision_number IN (1, 4)"
    plant(own_saved_url, update("stack_revisions", f"request_id = '{'r' * 255}'", where))
    found = run_file(own_saved_url, "request", request="r" * 300).out
    # The fourth changed two weights; a creation changed none.
    assert re.findall(r"^revision_number\|(.)$", found, re.MULTILINE) == ["4", "4", "1"]
    later = update("api_keys", "created_at = '2026-11-25'", f"key_id = '{SUPPORT}'")
    plant(own_saved_url, later + update("stacks", "created_at = '2026-11-25'"))
    plant(own_saved_url, update("stack_revisions", "key_id = 'key_of_unkey'"))  # which is no UUID
    [_, *changed] = run_file(own_saved_url, "stack", stack=STACK, revisions=1).out.split("\n4|")
    assert ["\n3|" in each for each in changed] == [False] * 3  # a revision, and the tokens that it changed
    assert "|key_of_unkey||" in changed[0]
    keys = run_file(own_saved_url, "key", manager=MANAGER).out
    assert re.findall(r"^key_id\|(.*)$", keys, re.MULTILINE) == [SUPPORT, PRODUCTION]
    assert run_file(own_saved_url, "find", manager=MANAGER, rows=1).out.split("|")[1] == GROWTH
    plant(own_saved_url, saved.delete("stacks"))
    lines = run_file(own_saved_url, "receipt", manager=MANAGER, key="growth-2026").out.splitlines()
    assert (record(lines)["stack_id"], record(lines)["current_name"]) == (GROWTH, "")


QUOTA = "6a1f0c4e-52d3-4b7a-9e58-0d9b7c3f2a61"
AHEAD = "b7c95d20-81ea-4f36-8c14-3e6f5a0d9b72"
TAKEN = f"""
INSERT INTO stackmgr.api_key_quota_slots
VALUES ('{QUOTA}', 1, now() - interval '2 s'), ('{AHEAD}', 1, now() + interval '1 h');
"""


@pytest.mark.parametrize(("change", "state", "times"), [
    ("label = ''", "valid", set()),
    ("revoked_at = '2026-11-22', expires_at = '2026-11-21'", "revoked", {"revoked_at", "expires_at"}),
    ("expires_at = '2026-11-22'", "expired", {"expires_at"}),
    (f"quota_id = '{QUOTA}', quota_limit = 2, quota_seconds = 9", "quota exhausted", {"valid_again"}),
    (f"quota_id = '{QUOTA}', quota_limit = 2, quota_seconds = 1", "valid", set()),
    (f"quota_id = '{AHEAD}', quota_limit = 1, quota_seconds = 9", "valid", set()),
    ("last_used_at = '2026-11-22'", "valid", {"last_used_hour"}),
])  # fmt: skip
def test_a_key_is_shown_with_why_it_is_rejected_and_when(run_file, own_saved_url, change, state, times):
    plant(own_saved_url, update("api_keys", change, f"key_id = '{PRODUCTION}'") + TAKEN)
    found = record(run_file(own_saved_url, "key", key=PRODUCTION).out.splitlines())
    assert (found["key_id"], found["last_four"], found["state"]) == (PRODUCTION, "dZFx", state)
    dates = {"revoked_at", "expires_at", "valid_again", "last_used_hour"}
    assert {name for name in dates if found[name]} == times
    others = {"key_id", "external_id", "label", "last_four", "state", "created_at", "quota", "successor_id"}
    assert found.keys() == dates | others


@pytest.mark.parametrize(("parameters", "keys"), [
    ({"manager": saved.MANAGER_ID}, [PRODUCTION, SUPPORT]),
    ({"manager": MANAGER, "last_four": "Qq07"}, [SUPPORT]), ({"last_four": "dZFx"}, [PRODUCTION]),
    ({"last_four": "none"}, []),
    ({"key": SUPPORT, "manager": saved.OTHER_MANAGER}, []),
], ids=str)  # fmt: skip
def test_key_is_found_by_id_or_manager(shown, parameters, keys):
    assert re.findall(r"^key_id\|(.*)$", "\n".join(shown("key", **parameters)), re.MULTILINE) == keys


@pytest.fixture
def run_on_server(binaries, server_url):
    """Return a function that runs a file as a login that may do nothing but read the server's statistics."""
    with login(server_url, "IN ROLE pg_read_all_stats") as watcher:

        def run(name: str) -> list[list[str]]:
            url = make_conninfo(server_url, user=watcher)
            ran = psql.run_psql(url, "-At", "-f", FOLDER / f"{name}.sql", binaries=binaries)
            assert (ran.returncode, ran.stderr) == (0, "")
            return [line.split("|") for line in ran.stdout.splitlines()]

        yield run


def test_blocking_session_is_listed_first(run_on_server, server_url):
    leak = make_conninfo(server_url, application_name="leak")
    with psycopg.connect(leak) as blocker, closing(psycopg.connect(leak)) as waiter:
        rows = run_on_server("connections")
        [[_, _, state, sessions, _, oldest, _]] = [row for row in rows if row[1] == "leak"]
        assert (state, sessions, oldest) == ("idle", "2", "")
        # Those of psql itself among them.
        assert not [row for row in rows if "-" in "".join(row[4:])]
        assert [row[5] for row in rows if row[1] == "psql" and row[5]]
        most = blocker.execute(b"SHOW max_connections").fetchone()[0]
        assert {row[6] for row in rows} == {f"{sum(int(row[3]) for row in rows)} of {most}"}
        assert all(login for login, *_ in rows)  # no process of the server
        blocker.rollback()
        waiter.execute(b"SELECT")  # the older transaction waits for the younger
        blocker.execute(b"SELECT pg_advisory_xact_lock(7)")
        waiter.pgconn.send_query(b"SELECT\n  pg_advisory_lock(7)")
        rows = eventually(lambda: run_on_server("blockers"))
        pids = [str(each.info.backend_pid) for each in (blocker, waiter)]
        assert [row[:2] for row in rows] == [[pids[0], "{}"], [pids[1], f"{{{pids[0]}}}"]]
        assert [row[-1] for row in rows] == ["SELECT pg_advisory_xact_lock(7)", "SELECT pg_advisory_lock(7)"]


def test_the_wal_that_a_forgotten_slot_keeps_is_shown(run_on_server, server_url):
    with psycopg.connect(server_url, autocommit=True) as admin:
        for name, keeps in {"a": False, "forgotten": True}.items():
            admin.execute(b"SELECT pg_create_physical_replication_slot(%s, %s)", [name, keeps])
        try:
            slot, unused = run_on_server("slots")
        finally:
            admin.execute(b"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    assert unused == ["a", "physical", "f", "", ""]
    assert slot[:4] == ["forgotten", "physical", "f", "reserved"]
    assert re.fullmatch(r"\d+ [kM]?B|\d+ bytes", slot[4])


def test_holders_of_a_removed_token_are_listed(shown, tmp_path):
    assert shown("tokens", whitelist=saved.TOKENS_FILE) == ["0"]
    text = saved.whitelist_without("AMD")
    (tmp_path / "another").write_text(text.replace('"address"', '"adress"'))
    with pytest.raises(AssertionError, match="the file is not a whitelist of 30 tokens"):
        shown("tokens", whitelist=tmp_path / "another")
    (tmp_path / "new whitelist").write_text(text)
    lines = shown("tokens", whitelist=tmp_path / "new whitelist", rows="1")
    # Growth has the token since its fourth revision only: one creation named it.
    assert lines == [f"{ADDRESS['AMD']}|2|2|4001", f"{MANAGER}|{GROWTH}|{ADDRESS['AMD']}|4000|Growth", "1"]
