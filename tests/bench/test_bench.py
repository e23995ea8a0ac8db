"""Whether the benchmark measures what it says, on hardly any data; no time is held against anything."""

import json
import shutil
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import sql

from tests.bench import __main__ as command
from tests.bench import contenders, delay, fairness, load, report, verifier
from tests.bench.contenders import Checkout, Pgbench, Seed
from tests.bench.load import Load
from tests.bench.measure import TOLERATED, Cost
from tests.bench.requests import SCENARIOS, Task
from tests.bench.rounds import Sample

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk")
needs_pgbench = pytest.mark.skipif(load.find_pgbench() is None, reason="there is no pgbench")
SMALL = ("--rounds=1", "--seconds=1", "--again=0", "--managers=2", "--stacks=30", "--workers=1")


def sample(number: int, contender: str, rate: int, **cost: float) -> Sample:
    return Sample(
        scenario="get",
        connections=1,
        seconds=1,
        part="throughput",
        round=number,
        contender=contender,
        is_bare=False,
        rss=1.0,
        pss=1.0,
        load=Load(rate, 1.0, 1.0, 2.0, 0),
        cost=Cost(**cost),
    )


def test_a_ratio_is_taken_within_each_round():
    mine = [sample(1, "a", 10), sample(2, "a", 100), sample(3, "a", 60)]
    others = [sample(1, "b", 20), sample(2, "b", 200), sample(3, "b", 60)]
    assert report.ratio(mine, others, report.rate) == 0.5


def test_a_disturbed_round_counts_only_where_there_is_no_other():
    disturbed = sample(1, "a", 10, others=TOLERATED * 2)
    assert report.median([disturbed], report.rate) == 10
    assert report.median([disturbed, sample(2, "a", 100)], report.rate) == 100


def test_the_processor_time_of_a_request_stands_next_to_its_rate():
    table = report.throughput([sample(1, "a", 10_000, service=2.0, postgres=1.0)])
    cells = dict(
        zip(*([cell.strip() for cell in row.split("|")] for row in table.splitlines()[::2]), strict=True)
    )
    assert (cells["requests/s"], cells["CPU µs service"], cells["CPU µs PostgreSQL"]) == (
        "10000",
        "200",
        "100",
    )


@pytest.fixture(scope="module")
def seed(server_url: str) -> Iterator[Seed]:
    with contenders.seeded(Checkout(), server_url, managers=2, stacks=30) as made:
        yield made


def rows(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("stackmgr", table))
        return connection.execute(query).fetchone()[0]


@needs_pgbench
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pgbench_does_the_work_of_each_scenario(seed, tmp_path, scenario):
    with contenders.pgbench("pgbench", seed, tmp_path) as contender:
        assert isinstance(contender, Pgbench)
        stacks, revisions = rows(contender.url, "stacks"), rows(contender.url, "stack_revisions")
        done = contender.run(Task(scenario=scenario, connections=2, seconds=1))
        assert done.requests > 0
        assert done.errors == 0
        stacks = rows(contender.url, "stacks") - stacks
        revisions = rows(contender.url, "stack_revisions") - revisions
    if scenario == "mixed":
        assert stacks <= revisions <= done.requests
    else:
        assert stacks == (done.requests if scenario == "create" else 0)
        assert revisions == (done.requests if scenario in {"create", "update"} else 0)


@needs_wrk
def test_every_create_that_is_counted_has_made_a_stack(seed, tmp_path):
    with ExitStack() as stack:
        url = stack.enter_context(seed.copied())
        service = stack.enter_context(contenders.serve(seed.checkout, {"STACKMGR_DATABASE_URL": url}))
        contender = contenders._server("stackmgr", service, seed.managers, ["create"], tmp_path)
        before = rows(url, "stacks")
        done = contender.run(Task(scenario="create", connections=2, seconds=1, close=True))
        made = rows(url, "stacks") - before
    assert done.errors == 0
    # What was under way at the end is not counted, and may have been done.
    assert done.requests <= made <= done.requests + 2


@needs_wrk
def test_the_command_leaves_results_tables_and_a_plot(server_url, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STACKMGR_TEST_DATABASE_URL", server_url)
    options = ("--scenarios=mixed", "--connections=2", "--latency=1", "--ceilings=pgbench,falcon-worker")
    options += ("--database-delay=500us",)
    assert command.main([*SMALL, *options, "--variant=one:STACKMGR_CONCURRENCY=1", f"--out={tmp_path}"]) == 0
    samples = json.loads((tmp_path / "results.json").read_bytes())["samples"]
    measured = {(each["part"], each["contender"]) for each in samples}
    services = {"stackmgr", "one"}
    everybody = services | {"falcon-worker"} | ({"pgbench"} if load.find_pgbench() else set())
    assert {who for part, who in measured if part == "throughput"} == everybody
    assert {who for part, who in measured if part == "latency"} == everybody
    assert {who for part, who in measured if part == "overload"} == services
    assert {who for part, who in measured if part == "slices"} == services
    assert all((each["longest_slice_ms"] is not None) == (each["part"] == "slices") for each in samples)
    assert all(each["longest_slice_ms"] > 0 for each in samples if each["part"] == "slices")
    assert [each for each in samples if not each["offered"] and each["load"]["errors"]] == []
    for kind in ("service", "postgres", "load"):
        assert sum(each["cost"][kind] for each in samples) > 0
    assert sum(each["load"]["requests"] for each in samples) > 0
    table = (tmp_path / "results.md").read_text()
    assert table.strip() in capsys.readouterr().out
    drawing = ET.parse(tmp_path / "results.svg")  # noqa: S314 - of our own making
    words = [each.text for each in drawing.iter()]
    for name in everybody:
        assert f"| {name} |" in table
        assert name in words


def test_without_wrk_the_message_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main([f"--out={tmp_path / 'out'}"]) == 1
    assert "wrk" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("500us", 0.0005), ("1ms", 0.001), ("2.5ms", 0.0025), ("1s", 1.0)]
)
def test_a_delay_has_a_unit(text, seconds):
    assert delay.seconds(text) == seconds


def test_a_delayed_database_is_so_far_away_each_way(server_url):
    with delay.delayed(server_url, 0.02) as (url, _), psycopg.connect(url, autocommit=True) as connection:
        started = time.monotonic()
        [(text,)] = connection.execute("SELECT repeat('x', 1000000)").fetchall()
        assert time.monotonic() - started >= 0.04
    assert len(text) == 1_000_000


@needs_wrk
@pytest.mark.parametrize(("wait", "timeout", "errors"), [("5ms", "10", False), ("hang", "0.2", True)])
def test_a_remote_verifier_accepts_the_keys_of_the_seed_after_its_delay(
    seed, tmp_path, wait, timeout, errors
):
    away = contenders.Surroundings(verifier_delay=verifier.seconds(wait))
    with contenders.service("one", seed, {"STACKMGR_VERIFY_TIMEOUT": timeout}, tmp_path, away) as contender:
        done = contender.run(Task(scenario="mixed", connections=2, seconds=1))
    assert done.requests > 0
    assert bool(done.errors) == errors


@pytest.mark.parametrize(
    "option",
    [
        "--database-delay=1",
        "--verifier-delay=soon",
        "--variant=x",
        "--variant=:A=1",
        "--compare=/nowhere",
        "--parts=speed",
    ],
)
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
