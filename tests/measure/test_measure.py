"""The measuring commands run, on hardly any data; nothing compares a time."""

import json
import sys

from tests.measure import __main__ as command
from tests.measure.load import WRK
from tests.measure.services import HERE
from tests.support.programs import require


def test_the_benchmark_leaves_a_table(server_url, tmp_path, monkeypatch, capsys):
    require(WRK, "wrk")
    monkeypatch.setenv("STACKMGR_TEST_DATABASE_URL", server_url)
    small = ("--rounds=1", "--seconds=1", "--again=0", "--managers=2", "--stacks=30", "--workers=1")
    options = ("--scenarios=mixed", "--connections=2", "--database-delay=500us", "--verifier-delay=20ms")
    others = ("--variant=one:STACKMGR_CONCURRENCY=1", f"--compare={HERE}={sys.executable}")
    assert command.main([*small, *options, *others, f"--out={tmp_path}"]) == 0
    samples = json.loads((tmp_path / "results.json").read_bytes())["samples"]
    assert [each["service"] for each in samples] == ["stackmgr", "one", HERE.name]
    assert all(each["load"]["requests"] > 0 for each in samples)
    assert sum(each["load"]["errors"] for each in samples) == 0
    for kind in ("service", "postgres", "load"):
        assert sum(each["cost"][kind] for each in samples) > 0
    table = (tmp_path / "results.md").read_text()
    assert table.strip() in capsys.readouterr().out
    assert "| mixed | one |" in table


def test_the_chart_has_medians_of_ratios(tmp_path, capsys):
    rates = {"stackmgr": (100, 300, 500), "go-log": (200, 300, 400)}
    runs = [{"contender": name, "scenario": "get", "rps": rate} for name in rates for rate in rates[name]]
    (tmp_path / "peers.json").write_text(json.dumps({"when": "2026-11-27T10:00:00Z", "runs": runs}))
    assert command.main([f"--chart={tmp_path / 'peers.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "--chart, 2026-11-27, " in printed
    assert '\n  x-axis ["get, Go"]\n  y-axis 0 --> 2\n  bar [1.00]\n```\n' in printed
