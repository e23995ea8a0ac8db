"""The dashboard asks for metrics that there are, by labels that they have."""

import json
import re

import pytest

from stackmgr import paths
from stackmgr.metrics import INSTRUMENTS

EXPRESSIONS = [
    target["expr"]
    for panel in json.loads((paths.directory("deploy") / "grafana.json").read_bytes())["panels"]
    for target in panel["targets"]
]
NAMES = re.compile(r"stackmgr_\w+")
LABELS = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def metrics():
    """The labels of each series, by its name."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        name + suffix: {*instrument.labels, "le"} if suffix == "_bucket" else {*instrument.labels}
        for name, instrument in INSTRUMENTS.items()
        for suffix in suffixes[instrument.kind]
    }


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_for_what_the_service_counts(metrics, expression):
    names = NAMES.findall(expression)
    assert names
    asked = {label.strip() for labels in LABELS.findall(expression) for label in labels.split(",")}
    for name in names:
        assert name in metrics
        assert asked <= metrics[name]
