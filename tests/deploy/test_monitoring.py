"""The dashboard, the alert rules and the scrape configuration."""

import json
import logging
import math
import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml
from prometheus_client import values
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from stackmgr.errors import DatabaseError
from stackmgr.monitoring import logs
from stackmgr.monitoring.metrics import Metrics
from stackmgr.reasons import ReasonSlug
from tests.deploy.runbook import block, lines
from tests.deploy.units import DEPLOY, EXPECTED
from tests.support.clusters import cluster, new_database
from tests.support.nginx import require
from tests.support.processes import completed
from tests.support.psql import SUPPORT, run_psql

PANELS = {panel["id"]: panel for panel in json.loads((DEPLOY / "grafana.json").read_bytes())["panels"]}
TARGETS = [target for panel in PANELS.values() for target in panel["targets"]]
ALERTS = DEPLOY / "alerts.yml"
OF_SERVICE, OF_POSTGRESQL = (
    {rule["alert"]: rule for rule in group["rules"]} for group in yaml.safe_load(ALERTS.read_text())["groups"]
)
RULES = OF_SERVICE | OF_POSTGRESQL
# Debian's, which has the extension; the embedded server has none.
DEBIAN = Path("/usr/lib/postgresql/15/bin")
LIBRARY = Path("/usr/lib/postgresql/15/lib/pg_stat_statements.so")
NAMES = re.compile(r"stackmgr_\w+")
GROUPED_BY = re.compile(r"by \(([^)]*)\)")
MATCHED = re.compile(r"(\w+)(?:=|!=|=~|!~)\"")
OF_PROMETHEUS = {"instance", "job"}
OF_POSTGRES = re.compile(r"pg_\w+|stackmgr_backup_\w+")
ALL = [target["expr"] for target in TARGETS if "expr" in target]
ALL += [rule["expr"] for rule in OF_SERVICE.values()]
OURS = [each for each in ALL if "stackmgr_" in each and not OF_POSTGRES.search(each)]
VARIABLES = ["prometheus", "grafana-postgresql-datasource", 'label_values(up{job="stackmgr"}, instance)']
FIRES_ON = {name: (each["fires"], each["series"]) for name, each in EXPECTED["alerts"].items()}
HEALTHY = EXPECTED["healthy"] | {
    name: values.partition(" | ")[2]
    for _, series in FIRES_ON.values() for name, values in series.items() if " | " in values
}  # fmt: skip


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> dict[str, set[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "ValueClass", values.ValueClass)
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
        worker = Metrics(tmp_path_factory.mktemp("metrics"))
        fields = {"method": "GET", "route": "/", "status": 200, "code": None, "reason": None}
        worker.request(fields | {"duration_ms": 1.0, "queued_ms": 1.0})
        text, _ = worker.exposition()
        values.close_all_multiprocess_files()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", OURS)
def test_every_metric_and_label_of_an_expression_exists(labels, expression):
    for part in re.split(r" or | > [0-9.]+ \* ", expression):
        names = NAMES.findall(part)
        assert names
        grouped = {label.strip() for by in GROUPED_BY.findall(part) for label in by.split(",")}
        for name in names:
            assert name in labels
            assert {*grouped, *MATCHED.findall(part)} <= labels[name] | OF_PROMETHEUS


@pytest.mark.parametrize("alert", RULES)
def test_each_alert_has_a_command_and_a_panel(alert):
    rule = RULES[alert]
    said = rule["annotations"]
    assert said.keys() == {"summary", "command", "finding", "action", "worked", "dashboard"}
    assert subprocess.run(["/bin/sh", "-nc", said["command"]], check=False).returncode == 0
    assert {*re.findall(r"support (\w+)", said["command"])} <= {path.stem for path in SUPPORT.glob("*.sql")}
    for section, page in re.findall(r'"?([A-Z][\w ]+)"? in (\w+\.md)', " ".join(said.values())):
        assert re.search(rf"^(## |- \*\*){section}", (DEPLOY / page).read_text(), re.MULTILINE), section
    named = {*re.findall(r"\$labels\.(\w+)", " ".join(said.values()))}
    grouped = {label for by in GROUPED_BY.findall(rule["expr"]) for label in by.split(", ")}
    assert named <= (grouped or {*MATCHED.findall(" ".join(FIRES_ON[alert][1]))})
    panel = PANELS[int(re.search(r"^/d/stackmgr\?viewPanel=(\d+)", said["dashboard"])[1])]
    name = re.search(r"\bup\b|(?:pg|stackmgr)_\w+?(?=_bucket|_sum|_count\{|\W|$)", rule["expr"])[0]
    assert name in " ".join(target["expr"] for target in panel["targets"])
    [limit] = {*re.findall(r"[>=]=? ([\d.e]+(?: \* \d+$)?)", rule["expr"])}
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    drawn = [step["value"] for step in steps]
    # 0 needs no line, nor does a number of releases.
    assert limit in ("0", "2") or math.prod(map(float, limit.split(" * "))) in drawn


def test_the_count_of_errors_shows_each_reason_and_cause(tmp_path):
    require(shutil.which("jq"), "jq")
    [command] = lines("Error diagnosis")
    assert command.split() == RULES["StackmgrInternalErrors"]["annotations"]["command"].split()
    failure = logging.LogRecord("stackmgr", logging.ERROR, "", 0, "a request failed", None, None)
    failure.fields = logs.description(DatabaseError(ReasonSlug.DEADLINE))
    killed = logging.LogRecord("gunicorn", logging.CRITICAL, "", 0, "WORKER TIMEOUT (pid:%s)", (17,), None)
    said = "error connecting in 'x': FATAL"
    rejected = logging.LogRecord("psycopg.pool", logging.WARNING, "", 0, said, None, None)
    records = [logs.Formatter().format(record) for record in (failure, killed, rejected)]

    def counted(command: str, *logged: str) -> list[str]:
        (tmp_path / "log").write_text("\n".join(["no JSON", *logged]))
        journal = f"journalctl() {{ cat {tmp_path}/log; }}"
        ran = subprocess.check_output(["/bin/sh", "-c", f"{journal}; {command}"], text=True)
        return [line.strip() for line in ran.splitlines()]

    timed = [{"queued_ms": 900.04, "verifier_ms": None, "method": "GET", "duration_ms": 99}]
    timed += [timed[0] | {"method": "POST", "duration_ms": 100}] * 2
    slow = counted(RULES["StackmgrSlowRequests"]["annotations"]["command"], *map(json.dumps, timed))
    assert [row.split() for row in slow] == [["2", "POST", "[0.9,0,0.1]"]]
    requests = [{"level": "info", "status": status, "reason": "deadline"} for status in (500, 200, 500)]
    assert counted(command, *records, *map(json.dumps, requests)) == ["2 500 deadline",
        "1 warning error connecting in 'x': FATAL", "1 error a request failed DatabaseError deadline",
        "1 critical WORKER TIMEOUT (pid)"]  # fmt: skip


def test_each_panel_shows_what_it_names(tmp_path):
    shown, tests = dict(EXPECTED["panels"]["shown"]), []
    for number, panel in PANELS.items():
        for target in panel["targets"] if number != 4 else ():
            unit, samples = shown.pop(f"{number}{target['refId']}")
            assert panel["fieldConfig"]["defaults"]["unit"] == unit
            found = [each.rpartition(" ")[::2] for each in samples.split("; ")]
            assert {*re.findall(r"{{(\w+)}}", target["legendFormat"])} <= {*re.findall(r"(\w+)=", samples)}
            expression = target["expr"].replace("$instance", "a").replace("$__rate_interval", "5m")
            values = [{"labels": labels, "value": float(value)} for labels, value in found]
            expression = f"round({expression}, 0.125)"  # in binary, what is shown is not exact
            tests.append({"expr": expression, "eval_time": "10m", "exp_samples": values})
    assert not shown
    series = EXPECTED["panels"]["series"]
    text = json.dumps([each for each in series if not OF_POSTGRES.match(each["series"])])
    inputs = series + json.loads(text.replace('"a\\"', '"b\\"'))  # which is not chosen
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"tests": [test]}))
    promtool("test", "rules", tmp_path / "panels.yml")
    variables = json.loads((DEPLOY / "grafana.json").read_bytes())["templating"]["list"]
    assert [each["query"] for each in variables] == VARIABLES
    [query] = [target["rawSql"] for target in TARGETS if "rawSql" in target]
    assert f"READ ONLY;\n{query};\nCOMMIT;\n" in (SUPPORT / "statements.sql").read_text()


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs Debian's postgresql-15")
def test_statistics_login_sees_statement_times():
    with (
        cluster(DEBIAN, "shared_preload_libraries=pg_stat_statements") as server_url,
        new_database(server_url) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        connection.execute(b"CREATE EXTENSION pg_stat_statements")
        connection.execute(b"CREATE ROLE grafana LOGIN IN ROLE pg_read_all_stats")
        for _ in range(3):
            connection.execute(b"SELECT /* stack_get */ pg_catalog.now()")
        connection.execute(b"SELECT /* stack_list */ pg_catalog.version()")
        connection.execute(b"SELECT /* stack_get */ pg_catalog.pg_sleep(0.02)")
        login = make_conninfo(url, user="grafana")
        ran = run_psql(login, "-At", "-f", SUPPORT / "statements.sql", binaries=DEBIAN)
    rows = [line.split("|") for line in ran.stdout.splitlines()]
    assert {(name, int(calls)) for name, calls, *_ in rows} == {("stack_get", 4), ("stack_list", 1)}
    assert all(0 < float(mean_ms) <= float(max_ms) for _, _, mean_ms, max_ms, _ in rows)
    taken = [int(calls) * float(mean_ms) for _, calls, mean_ms, *_ in rows]
    percent = [pytest.approx(100 * each / sum(taken)) for each in sorted(taken, reverse=True)]
    assert [float(row[-1]) for row in rows] == percent


def promtool(*arguments: str | Path) -> None:
    program = require(shutil.which("promtool"), "promtool (package prometheus)")
    ended = completed([program, *arguments])
    assert ended.returncode == 0, ended.stdout + ended.stderr


def expect(series: dict[str, str], alert: str, fires: dict[int, bool], severity: str = ".+") -> dict:
    """Return a test of promtool: whether *alert* fires at each minute."""
    firing = f'count(ALERTS{{alertname=~"{alert}", alertstate="firing", severity=~"{severity}"}})'
    samples = [{"value": 1, "labels": "{}"}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": samples if is_firing else []}
        for minute, is_firing in fires.items() ],
    }  # fmt: skip


def failing(values: str, *, ends: bool) -> str:
    """Return the first half of *values*, and after an hour let a counter stay, and what is no counter end."""
    values = values.partition(" | ")[0]
    if not ends:
        return values
    if counter := re.fullmatch(r"(\d+)\+([\d.]+)x90", values):
        return f"{values[:-2]}60 {int(counter[1]) + 60 * float(counter[2])}x30"
    return values.replace("x90", "x60 _x30")


def test_each_alert_fires_on_its_condition(tmp_path):
    assert FIRES_ON.keys() == RULES.keys()
    tests = {alert: [] for alert in RULES}
    others = {"StackmgrSlowRequests": {"request": "wait", 'route="/"': 'for="queue"'}}
    others["StackmgrArchivingStopped"] = {"inserted": "X", "updated": "inserted", "X": "updated"}
    for alert, (times, series) in FIRES_ON.items():
        severity, first, *last = times.split()
        fires = {int(first) - 1: False, int(first): True}
        fires |= dict.fromkeys(map(int, last), True) | {int(each) + 1: False for each in last}
        ended = {name: failing(values, ends=bool(last)) for name, values in series.items()}
        tests[alert].append(expect(ended, alert, fires, severity))
        for old, new in others.get(alert, {}).items():
            ended = {name.replace(old, new): values for name, values in ended.items()}
        tests[alert].append(expect(ended, alert, fires))
    lost = [HEALTHY | {'pg_up{instance="b"}': f"1x9 {down}x80"} for down in ("_", "0")]
    absent = [("StackmgrDatabaseNotWatched", series) for series in ({}, *lost)]
    absent += [("StackmgrBackupAge", {}), ("StackmgrDown", {'up{job="another"}': "1x90"})]  # no scrape
    for name, series in absent:
        tests[name].append(expect(series, name, {80: True}))
    # Not in step with the samples, of which one minute then holds one or two.
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "50s"}
    document["tests"] = [expect(HEALTHY, ".+", dict.fromkeys(range(1, 91), False))]
    (tmp_path / "healthy.yml").write_text(yaml.safe_dump(document))
    for alert, rule in RULES.items():  # alone: all rules for each test take 30 times as long
        rules = {"groups": [{"name": alert, "rules": [rule]}]}
        (tmp_path / f"{alert}.rule").write_text(yaml.safe_dump(rules))
        document |= {"rule_files": [str(tmp_path / f"{alert}.rule")], "tests": tests[alert]}
        (tmp_path / f"{alert}.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", *tmp_path.glob("*.yml"))


def test_promtool_accepts_the_configuration(tmp_path):
    written = block("Monitoring", "scrape_configs:")
    assert {job["job_name"] for job in yaml.safe_load(written)["scrape_configs"]} == {"stackmgr"}
    config = written.replace("/etc/prometheus/stackmgr-alerts.yml", str(ALERTS))
    (tmp_path / "prometheus.yml").write_text(config)
    promtool("check", "config", tmp_path / "prometheus.yml")
