"""Whether each measuring command runs, on hardly any data; no time is held against anything."""

import json
from dataclasses import replace

import pytest

from stackmgr.operate import migrations, preflight
from tests.measure import __main__ as command
from tests.measure import day, fairness, growth, report, services
from tests.measure.cost import TOLERATED, Cost
from tests.measure.load import WRK, Load
from tests.measure.report import Sample
from tests.measure.services import Checkout
from tests.support.clusters import new_database
from tests.support.programs import require
from tests.support.psql import audit

QUARTER = Load(requests=1000, seconds=10.0, p50=2.0, p99=10.0, errors=0)
LOG = """\
2026-11-23 03:04:46.341 UTC [17] LOG:  automatic vacuum of table "stackmgr.stackmgr.stacks": index scans: 0
\tpages: 0 removed, 55 remain, 1 scanned (1.82% of total), 0 eagerly scanned
\tsystem usage: CPU: user: 0.10 s, system: 0.00 s, elapsed: 1.25 s
2026-11-23 03:04:47.341 UTC [17] LOG:  automatic aggressive vacuum to prevent wraparound of table\
 "stackmgr.stackmgr.stacks": index scans: 0
\tsystem usage: CPU: user: 0.10 s, system: 0.00 s, elapsed: 0.75 s
2026-11-23 03:04:49.341 UTC [18] LOG:  process 18 still waiting for ShareLock on relation 16 after 10 ms
2026-11-23 03:04:49.341 UTC [18] DETAIL:  Process holding the lock: HOLDER. Wait queue: 18.
"""


def sample(number: int, name: str, rate: int, **cost: float) -> Sample:
    load = replace(QUARTER, requests=rate, seconds=1.0)
    return Sample(scenario="get", service=name, round=number, load=load, cost=Cost(**cost), rss_mb=1.0)


def test_a_ratio_is_taken_within_each_round_of_those_that_were_not_disturbed():
    mine = [sample(1, "a", 10), sample(2, "a", 100), sample(3, "a", 60, noise=TOLERATED * 2)]
    others = [sample(1, "b", 20), sample(2, "b", 200), sample(3, "b", 60)]
    assert report.ratio(mine, others, report.rate) == 0.5


def test_the_benchmark_leaves_results_and_a_table(server_url, tmp_path, monkeypatch, capsys):
    require(WRK, "wrk")
    monkeypatch.setenv("STACKMGR_TEST_DATABASE_URL", server_url)
    small = ("--rounds=1", "--seconds=1", "--again=0", "--managers=2", "--stacks=30", "--workers=1")
    options = ("--scenarios=mixed", "--connections=2", "--database-delay=500us", "--verifier-delay=20ms")
    variant = "--variant=one:STACKMGR_CONCURRENCY=1"
    # The name of a checkout is that of its folder, which must not decide the outcome.
    (tmp_path / "before").symlink_to(services.HERE)
    compare = f"--compare={tmp_path / 'before'}={Checkout().python}"

    status = command.main([*small, *options, variant, compare, "--grown=100", f"--out={tmp_path}"])

    assert status == 0
    samples = json.loads((tmp_path / "results.json").read_bytes())["samples"]
    assert [each["service"] for each in samples] == ["stackmgr", "one", "before", "100-stacks"]
    assert all(each["load"]["requests"] > 0 for each in samples)
    assert sum(each["load"]["errors"] for each in samples) == 0
    for kind in ("service", "postgres", "load"):
        assert sum(each["cost"][kind] for each in samples) > 0
    table = (tmp_path / "results.md").read_text()
    assert table.strip() in capsys.readouterr().out
    assert "| mixed | one |" in table


@pytest.mark.parametrize(
    "option",
    ["--database-delay=1", "--verifier-delay=soon", "--variant=x", "--variant=:A=1", "--compare=/nowhere",
     "--scenarios=speed"],
)  # fmt: skip
def test_a_wrong_option_is_rejected(option, capsys):
    with pytest.raises(SystemExit):
        command.main([option])
    assert "error" in capsys.readouterr().err


def test_another_checkout_needs_a_python_that_imports_it(tmp_path):
    # In an empty folder, what is imported is the package that is installed.
    with pytest.raises(RuntimeError, match="is imported from"):
        Checkout(tmp_path).require_own_package()


def test_the_wait_of_a_light_client_is_measured_during_an_attack(server_url, monkeypatch, capsys):
    monkeypatch.setenv("STACKMGR_TEST_DATABASE_URL", server_url)

    fairness.main(["--seconds=1", "--only=cursors"])

    headings, _, quiet, attacked = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()
    ]
    for row in (quiet, attacked):
        measured = dict(zip(headings, row, strict=True))
        assert int(measured["GETs"]) > 0
        assert measured["not 200"] == "0"
        assert float(measured["longest slice"]) > 0
    assert measured["responses to it"].endswith(" of 200")


def test_a_filled_database_is_one_that_the_service_could_have_made(server_url):
    with new_database(server_url) as url:
        migrations.apply(url)
        growth.fill(url, 2000)
        assert audit(url) == ""
        assert preflight.examine(url).problems == []


def test_a_short_day_has_its_vacuums_and_no_failed_request():
    require(WRK, "wrk")
    found = day.run(minutes=0.15, rate=50, stacks=1000)
    assert all(found.visits[f"stackmgr.{name}"] for name in ("stack_revisions", "creation_receipts"))
    assert 0 < found.ages["transactions"] <= day.AGE_LIMITS["transactions"] / 2
    # Times are not held against anything.
    assert [problem for problem in found.problems() if "p99" not in problem] == []
    assert len(list(found.lines())) > len(found.loads) == 4


@pytest.mark.parametrize(("holder", "blocking"), [("17", 1), ("16, 17", 1), ("16", 0), ("170", 0)])
def test_the_log_names_vacuums_and_those_that_others_have_waited_for(holder, blocking):
    found = day.DayReport()
    found.read_log(LOG.replace("HOLDER", holder))
    assert found.visits == {"stackmgr.stacks": 2}
    assert found.aggressive == {"stackmgr.stacks": 1}
    assert found.longest_seconds == 1.25
    assert found.lock_waits == {"ShareLock on relation N": 1}
    assert len(found.blocking) == blocking


@pytest.mark.parametrize(
    ("last", "seen"),
    [
        ({"p99": 12.1}, {}),
        ({"errors": 1}, {}),
        ({}, {"ages": {"transactions": 120_001}}),
        ({}, {"ages": {"multixacts": 12_001}}),
        ({}, {"log": "[17] ERROR:  canceling autovacuum task\n"}),
    ],
    ids=["slower", "errors", "transactions", "multixacts", "a cancelled vacuum"],
)
def test_each_bound_of_a_day_is_checked(last, seen):
    assert day.DayReport([QUARTER, replace(QUARTER, p99=12.0)]).problems() == []
    found = day.DayReport([QUARTER, replace(QUARTER, **last)])
    found.ages.update(seen.get("ages", {}))
    found.read_log(seen.get("log", ""))
    assert len(found.problems()) == 1
