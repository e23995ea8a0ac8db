"""The chart of the peers, from the results of a run."""

import json

from tests.measure import __main__ as command


def test_the_chart_has_medians_of_ratios(tmp_path, capsys):
    rates = {"stackmgr": (100, 300, 500), "go-log": (200, 300, 400)}
    found = [(name, rate) for name in rates for rate in rates[name]]
    runs = [{"contender": name, "scenario": "get", "rps": rate, "p99_ms": rate / 50} for name, rate in found]
    (tmp_path / "peers.json").write_text(json.dumps({"when": "2026-11-27T10:00:00Z", "runs": runs}))
    assert command.main([f"--chart={tmp_path / 'peers.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "--chart, 2026-11-27, " in printed
    assert '\n  x-axis ["get, Go (6, 6)"]\n  y-axis 0 --> 2\n  bar [1.00]\n```\n' in printed
