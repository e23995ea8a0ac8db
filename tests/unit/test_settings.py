"""Settings from the environment: accepted values, and one message with every problem, without secrets."""

import json
import os
from unittest.mock import Mock

import pytest

from stackmgr import paths, start_check, startup
from stackmgr.operate import check
from stackmgr.operate.preflight import Findings
from stackmgr.settings import SettingsError
from stackmgr.stacks import whitelist

URL = "postgresql://stackmgr:hunter2@localhost/stackmgr"
NUMBERS = ("STACKMGR_CONCURRENCY", "STACKMGR_DATABASE_CONNECTIONS", "STACKMGR_DATABASE_TIMEOUT")
CHOICES = {
    "STACKMGR_VERIFIER": "database, unkey", "STACKMGR_SQL_VARIANT": "plain, citus",
    "STACKMGR_LOG_LEVEL": "debug, info, warning, error", "STACKMGR_LOG_FORMAT": "json, text",
}  # fmt: skip
NO_NUMBERS = (
    "0", "1001", "-1", "+4", " 4", "4 ", "4\n", "4.0", "4e0", "four", "0x4", "1_0", "\u0664", "\u00b2",
    "9" * 5000,
)  # fmt: skip
RULES = [
    *((name, NO_NUMBERS, "a whole number from 1 to 1000") for name in NUMBERS),
    *((name, ("Database", "JSON", "INFO", "database ", "none", " "), f"one of: {choices}")
      for name, choices in CHOICES.items()),
    ("STACKMGR_ADMIN_BIND", ("9100", ":9100", "localhost", "localhost:", "h:0", "h:65536"),
     "an address and a port, such as 127.0.0.1:9108"),
]  # fmt: skip
# What a worker is built of by a setting.
BUILT = [
    ("DATABASE_URL", f"{URL}2", "url", f"{URL}2"), ("DATABASE_CONNECTIONS", "1000", "pool_size", 1000),
    ("DATABASE_TIMEOUT", "0001", "deadline", 1), ("SQL_VARIANT", "citus", "variant", "citus"),
    ("LOG_FORMAT", "text", "observers", ["text"]), ("LOG_LEVEL", "debug", "observers", ["json"]),
    ("TOKENS", "/of/tokens", "spellings", "those of /of/tokens"),
    *(("LOG_LEVEL", level, "observers", []) for level in ("warning", "error")),
]  # fmt: skip


def prepared(**environ):
    return startup.prepare({"STACKMGR_DATABASE_URL": URL} | environ).settings


def problems(**environ):
    with pytest.raises(SettingsError) as caught:
        startup.prepare({"STACKMGR_DATABASE_URL": URL} | environ)
    assert str(caught.value) == "; ".join(caught.value.problems)
    assert "hunter" not in str(caught.value)
    return caught.value.problems


def test_a_connection_string_is_enough():
    chosen = prepared()
    assert chosen.database_url == URL
    assert chosen.tokens == paths.DEFAULT_WHITELIST
    assert (chosen.verifier, chosen.concurrency, chosen.database_timeout) == ("database", 64, 5)
    assert (chosen.log_level, chosen.log_format) == ("info", "json")
    empty = dict.fromkeys(("STACKMGR_TOKENS", *NUMBERS, *CHOICES), "")
    assert prepared(WEB_CONCURRENCY="999", **empty) == chosen


def test_other_variables_are_ignored():
    # Kubernetes gives a container such names for every service of its namespace.
    others = {"STACKMGR_PORT": "tcp://10.0.0.1:80", "STACKMGR_SERVICE_HOST": "10.0.0.1", "PGHOST": "x"}
    assert prepared(**others) == prepared()


@pytest.mark.parametrize(("name", "texts", "rule"), RULES)
def test_any_other_value_breaks_a_rule(name, texts, rule):
    for text in texts:
        assert problems(**{name: text}) == [f"{name} must be {rule}"]


def test_waits_end_before_nginx_does():
    names = ("STACKMGR_QUEUE_TIMEOUT", "STACKMGR_VERIFY_TIMEOUT", "STACKMGR_DATABASE_TIMEOUT")
    longest = dict(zip(names, ("5", "19.9", "5"), strict=True))
    assert prepared(**longest).verify_timeout == 19.9
    for name in names:
        [problem] = problems(**longest | {name: "20"})
        assert problem.endswith("s together: lower one, nginx waits only 30 s")


def test_metrics_need_a_listener_and_a_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("sys.executable", "/my env/python")
    named = "extra == 'metrics'", 'extra == "dev"', "python_version > '3'", 'extra == "metrics"'
    required = [f"{each}[a] >={each}; {mark}" for each, mark in enumerate(named)]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    needs, is_set = problems(STACKMGR_METRICS_DIR="/metrics", STACKMGR_ADMIN_BIND="")
    assert needs.endswith(" needs packages: '/my env/python' -m pip install '0[a] >=0' '3[a] >=3'")
    assert is_set.startswith("STACKMGR_METRICS_DIR is set without STACKMGR_ADMIN_BIND, the listener")


@pytest.mark.parametrize(("name", "text", "part", "value"), BUILT)
def test_a_setting_has_its_effect(monkeypatch, name, text, part, value):
    made = {}
    monkeypatch.setattr(whitelist, "load", lambda path: Mock(spellings=f"those of {path}"))
    monkeypatch.setattr(startup, "Database", lambda url, **parts: made.update(parts, url=str(url)))
    monkeypatch.setattr(startup, "create_app", lambda **parts: made.update(parts))
    monkeypatch.setattr(startup.logs, "request_writer", lambda style: style)
    given = {"STACKMGR_DATABASE_URL": URL, f"STACKMGR_{name}": text}
    startup.assemble(startup.prepare(given), {}, serves=False)
    assert made[part] == value


def test_a_master_knows_the_settings(monkeypatch):
    values = {"queue_timeout": 0.25, "concurrency": 7, "metrics_dir": "/metrics"}
    values |= {"log_level": "error", "log_format": "text", "admin_bind": "[::1]:9108"}
    for name, value in {**values, "database_url": URL}.items():
        monkeypatch.setenv(f"STACKMGR_{name.upper()}", str(value))
    monkeypatch.setattr(check, "_findings", lambda _: Findings())
    monkeypatch.setattr(check, "os", Mock(environ=os.environ, isatty=lambda _: False))
    check.check_start()
    known = json.loads(check.os.write.call_args.args[1])
    assert {**known, **values, "admin_port": 9108, "problems": []} == known


def test_a_start_without_a_check_fails(monkeypatch):
    monkeypatch.setattr(start_check, "run_check", lambda _: None)
    with pytest.raises(SystemExit, match=r"^1$"):
        start_check.checked_start()


def test_metrics_observe_the_waits_for_a_connection(monkeypatch):
    metrics, database = Mock(), Mock()
    monkeypatch.setattr(startup, "of_worker", lambda _: metrics)
    monkeypatch.setattr(startup, "Database", lambda *_, **__: database)
    monkeypatch.setattr(startup, "atexit", atexit := Mock())
    given = {
        "DATABASE_URL": URL,
        "METRICS_DIR": "/metrics",
        "ADMIN_BIND": "localhost:9108",
        "LOG_LEVEL": "error",
    }
    startup.build({f"STACKMGR_{name}": text for name, text in given.items()})
    metrics.start.assert_called_once_with(database.stats)
    database.on_wait.assert_called_once_with(metrics.connection_waits.observe)
    atexit.register.assert_called_once_with(database.close)


def test_without_a_check_nothing_starts(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(SystemExit, match="1"):
        start_check.checked_start()


@pytest.mark.parametrize("verifier", ["database", "unkey"])
def test_a_secret_is_hidden_in_any_repr(verifier):
    others = {"VERIFIER": verifier, "UNKEY_ROOT_KEY": "hunter2", "QUEUE_TIMEOUT": "0.25", "CONCURRENCY": "7"}
    given = {f"STACKMGR_{name}": value for name, value in others.items()} | {"STACKMGR_DATABASE_URL": URL}
    checked = startup.prepare(given)
    of_a_worker = startup.prepare({startup.PREPARED: checked.dump()})
    assert of_a_worker == checked
    for chosen in (checked.settings, of_a_worker.settings):
        held = {"url": chosen.database_url, "settings": chosen, "nested": [chosen.database_url]}
        for shown in (repr(chosen), str(chosen), f"{chosen}", repr(held)):
            assert "hunter2" not in shown
        assert {repr(chosen.database_url), repr(chosen.unkey_root_key)} == {"Secret(…)"}
