"""Whether the benchmark measures what it says, on hardly any data; no time is held against anything."""

import json
import shutil
import time

import psycopg
import pytest

from tests.measure import __main__ as command
from tests.measure import fairness, report, services
from tests.measure.cost import TOLERATED, Cost
from tests.measure.load import Load
from tests.measure.report import Sample
from tests.measure.services import Checkout
from tests.support import delay

SMALL = ("--rounds=1", "--seconds=1", "--again=0", "--managers=2", "--stacks=30", "--workers=1")


def sample(number: int, name: str, rate: int, **cost: float) -> Sample:
    load = Load(rate, 1.0, 1.0, 2.0, 0)
    return Sample(scenario="get", service=name, round=number, load=load, cost=Cost(**cost), rss_mb=1.0)


def test_a_ratio_is_taken_within_each_round():
    mine = [sample(1, "a", 10), sample(2, "a", 100), sample(3, "a", 60)]
    others = [sample(1, "b", 20), sample(2, "b", 200), sample(3, "b", 60)]
    assert report.ratio(mine, others, report.rate) == 0.5


def test_a_disturbed_round_counts_only_where_there_is_no_other():
    disturbed = sample(1, "a", 10, noise=TOLERATED * 2)
    assert report.median([disturbed], report.rate) == 10
    assert report.median([disturbed, sample(2, "a", 100)], report.rate) == 100


def test_the_processor_time_of_a_request_stands_next_to_its_rate():
    table = report.table([sample(1, "a", 10_000, service=2.0, postgres=1.0)])
    cells = dict(
        zip(*([cell.strip() for cell in row.split("|")] for row in table.splitlines()[::2]), strict=True)
    )
    found = [cells[heading] for heading in ("requests/s", "CPU µs service", "CPU µs PostgreSQL")]
    assert found == ["10000", "200", "100"]


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk")
def test_the_command_leaves_results_and_a_table(server_url, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STACKMGR_TEST_DATABASE_URL", server_url)
    options = ("--scenarios=mixed", "--connections=2", "--database-delay=500us", "--verifier-delay=20ms")
    variant = "--variant=one:STACKMGR_CONCURRENCY=1"
    compare = f"--compare={services.HERE}={Checkout().python}"
    assert command.main([*SMALL, *options, variant, compare, "--grown=100", f"--out={tmp_path}"]) == 0
    samples = json.loads((tmp_path / "results.json").read_bytes())["samples"]
    assert [each["service"] for each in samples[:2]] == ["stackmgr", "one"]
    assert len({each["service"] for each in samples}) == 4
    for each in samples:
        assert each["load"]["requests"] > 0
        assert each["load"]["errors"] == 0
    for kind in ("service", "postgres", "load"):
        assert sum(each["cost"][kind] for each in samples) > 0
    table = (tmp_path / "results.md").read_text()
    assert table.strip() in capsys.readouterr().out
    assert "| mixed | one |" in table


def test_a_delayed_database_is_so_far_away_each_way(server_url):
    with delay.delayed(server_url, 0.02) as (url, _), psycopg.connect(url, autocommit=True) as connection:
        started = time.monotonic()
        [(text,)] = connection.execute("SELECT repeat('x', 1000000)").fetchall()
        assert time.monotonic() - started >= 0.04
    assert len(text) == 1_000_000


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
