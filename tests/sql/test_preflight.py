"""The check of a database before the service starts."""

from datetime import datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr.operate import migrations, preflight
from tests.support.clusters import new_database


@pytest.fixture
def own_url(server_url):
    """A migrated database that a test may damage."""
    with new_database(server_url) as url:
        migrations.apply(url)
        yield url


def damage(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command.encode())


def test_a_correct_database_has_no_problem(own_url):
    assert preflight.examine(own_url).problems == []


def test_a_superuser_is_more_than_the_service_needs(own_url):
    assert any("superuser" in warning for warning in preflight.examine(own_url).warnings)


def test_an_unreachable_database_is_a_warning_because_it_may_recover():
    findings = preflight.examine("postgresql://somebody:hush@127.0.0.1:1/x")
    assert (findings.problems, findings.reachable) == ([], False)
    assert "hush" not in str(findings.warnings)


def test_a_schema_that_was_never_applied_is_named(server_url):
    with new_database(server_url) as url:
        assert any("stackmgr migrate" in problem for problem in preflight.examine(url).problems)


def test_each_migration_that_is_missing_is_named(own_url):
    damage(own_url, "DELETE FROM stackmgr.schema_migrations WHERE version >= 2")
    problems = preflight.examine(own_url).problems
    assert len(problems) == len(migrations.available()) - 1
    assert str(migrations.available()[1]) in problems[0]


def test_a_missing_grant_is_named_until_a_migration_restores_it(own_url):
    damage(own_url, "REVOKE INSERT ON stackmgr.stacks FROM stackmgr_app")
    damage(own_url, "REVOKE EXECUTE ON FUNCTION stackmgr.name_is_blank FROM stackmgr_app")
    lacking = "stackmgr_app lacks EXECUTE ON stackmgr.name_is_blank, INSERT ON stackmgr.stacks"
    assert preflight.examine(own_url).problems == [f"{lacking}: run 'stackmgr migrate'"]
    reported: list[str] = []
    assert migrations.apply(own_url, report=reported.append) == []
    assert reported == [f"{lacking.replace('lacks', 'lacked')}: granted again"]
    assert preflight.examine(own_url).problems == []


def test_a_migration_that_was_another_when_it_was_applied_is_named(own_url):
    damage(own_url, "UPDATE stackmgr.schema_migrations SET checksum = sha256('another') WHERE version = 2")
    [problem] = preflight.examine(own_url).problems
    assert f"{migrations.available()[1]} differs" in problem


def test_a_newer_schema_is_a_warning_so_that_an_older_release_can_go_on(own_url):
    later = """
    INSERT INTO stackmgr.schema_migrations (version, slug, checksum)
    VALUES (9000, 'later', sha256('later'))
    """
    damage(own_url, later)
    findings = preflight.examine(own_url)
    assert findings.problems == []
    assert any("9000" in warning for warning in findings.warnings)


def test_a_server_that_takes_no_writes_is_a_warning(own_url):
    read_only = make_conninfo(own_url, options="-c default_transaction_read_only=on")
    assert any("takes no writes" in warning for warning in preflight.examine(read_only).warnings)


def test_a_login_whose_writes_skip_foreign_keys_is_a_problem(own_url):
    replica = make_conninfo(own_url, options="-c session_replication_role=replica")
    assert any("foreign keys" in problem for problem in preflight.examine(replica).problems)


def test_an_encoding_that_cannot_hold_every_name_is_a_problem(server_url):
    with new_database(server_url, encoding="SQL_ASCII") as url:
        assert any("UTF8" in problem for problem in preflight.examine(url).problems)


@pytest.mark.parametrize("seconds", [-60, 60])
def test_a_clock_that_is_behind_or_ahead_is_a_warning(own_url, monkeypatch, seconds):
    clock = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=seconds))
    monkeypatch.setattr(preflight, "datetime", clock)
    assert any("more than 5 seconds" in warning for warning in preflight.examine(own_url).warnings)
