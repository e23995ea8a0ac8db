"""The configuration of a PostgreSQL node under Patroni; `python -m tests.faults patroni` runs it."""

import re

import yaml

from stackmgr import paths

DEPLOY = paths.directory("deploy")
NODE = yaml.safe_load((DEPLOY / "patroni" / "patroni.yml").read_text(encoding="utf-8"))
DYNAMIC = NODE["bootstrap"]["dcs"]


def test_a_node_has_every_server_setting_that_is_recommended():
    script = (DEPLOY / "postgresql" / "roles.sql").read_text(encoding="utf-8")
    recommended = dict(re.findall(r"\('(\w+)', '([\w-]+)'\)", script.partition("Recommended")[2]))
    assert len(recommended) == 7
    assert "data-checksums" in NODE["bootstrap"]["initdb"]
    del recommended["data_checksums"]
    settings = DYNAMIC["postgresql"]["parameters"] | NODE["postgresql"]["parameters"]
    assert {name: settings.get(name) for name in recommended} == recommended


def test_only_a_synchronous_standby_is_promoted_and_a_leader_outlives_two_retries():
    assert DYNAMIC["synchronous_mode"] is True
    assert DYNAMIC["loop_wait"] + 2 * DYNAMIC["retry_timeout"] <= DYNAMIC["ttl"]


def test_no_connection_over_the_network_is_trusted_or_in_the_clear():
    rules = [rule.split() for rule in NODE["postgresql"]["pg_hba"]]
    assert {(rule[0], rule[-1]) for rule in rules} == {("local", "peer"), ("hostssl", "scram-sha-256")}
