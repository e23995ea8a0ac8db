"""The dashboard asks for metrics that there are, by labels that they have."""

import json
import re

import pytest
from prometheus_client import REGISTRY

from stackmgr import files
from stackmgr.metrics import Metrics

EXPRESSIONS = [
    target["expr"]
    for panel in json.loads((files.directory("deploy") / "grafana.json").read_bytes())["panels"]
    for target in panel["targets"]
]
NAMES = re.compile(r"stackmgr_\w+")
LABELS = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The labels of each metric, by its name."""
    folder = tmp_path_factory.mktemp("metrics")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
        Metrics(folder)
    found = {}
    for collector in set(REGISTRY._names_to_collectors.values()):
        for name in REGISTRY._collector_to_names[collector]:
            if name.startswith("stackmgr_"):
                found[name] = {*collector._labelnames, "le"}
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_for_what_the_service_counts(metrics, expression):
    names = NAMES.findall(expression)
    assert names
    asked = {label.strip() for labels in LABELS.findall(expression) for label in labels.split(",")}
    for name in names:
        assert name in metrics
        assert asked <= metrics[name]
