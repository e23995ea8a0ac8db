"""A service with invalid settings or surroundings does not start, and reports every problem at once."""

import json
import os
import re
import subprocess

import pytest

from tests.support.server import GUNICORN_COMMAND, free_port


def failed_start(*arguments, **environ):
    """Start gunicorn, which must end by itself, and return what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STACKMGR_")}
    ended = subprocess.run(
        [*GUNICORN_COMMAND, "--bind", f"127.0.0.1:{free_port()}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=kept | {f"STACKMGR_{name}": str(value) for name, value in environ.items()},
    )
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert "Booting worker" not in ended.stderr
    return ended.stderr


def test_every_problem_is_named_at_once(tmp_path):
    (tmp_path / "tokens.json").write_text('{"chain_id": 1, "tokens": []}')
    said = messages(failed_start(CONCURRENCY="0", VERIFIER="somebody", TOKENS=tmp_path / "tokens.json"))
    settings = ("STACKMGR_DATABASE_URL", "STACKMGR_CONCURRENCY", "STACKMGR_VERIFIER")
    for name in (*settings, "chain_id", "30 tokens"):
        assert [line for line in said if name in line]


def messages(said: str) -> list[str]:
    """Return the messages of the log lines that stopped the start."""
    lines = [json.loads(line) for line in said.splitlines()]
    return [line["message"] for line in lines if line["level"] == "error"]


@pytest.mark.parametrize(
    "url", ["postgresql://user:hunter2@host/db?nothing=1", "host=x password=hunter2 nothing=1", "hunter2"]
)
def test_a_connection_string_that_cannot_be_read_is_not_repeated(url):
    said = failed_start(DATABASE_URL=url)
    (problem,) = messages(said)
    assert problem.startswith("STACKMGR_DATABASE_URL is not a valid PostgreSQL connection string")
    assert "hunter2" not in said


def test_what_stops_the_start_is_text_where_the_log_is():
    said = failed_start(LOG_FORMAT="text")
    assert re.fullmatch(r"\S+ error STACKMGR_DATABASE_URL is not set: .*\n", said)


def test_a_database_without_the_schema_is_named_with_what_to_do(server_url):
    assert "run 'stackmgr migrate'" in failed_start(DATABASE_URL=server_url)


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("", "holds files of something else (notes): choose an empty folder"),
        ("notes/metrics", "cannot be used: Not a directory"),
    ],
)
def test_a_metrics_folder_that_cannot_be_used_stops_the_start_and_stays(
    server_url, tmp_path, folder, problem
):
    (tmp_path / "notes").write_text("kept")
    bind = f"127.0.0.1:{free_port()}"
    said = messages(failed_start(DATABASE_URL=server_url, ADMIN_BIND=bind, METRICS_DIR=tmp_path / folder))
    assert said[-1] == f"STACKMGR_METRICS_DIR: {tmp_path / folder} {problem}"
    # Named together with what is wrong with the database.
    assert "run 'stackmgr migrate'" in said[0]
    assert (tmp_path / "notes").read_text() == "kept"


def test_a_metrics_folder_that_cannot_be_created_is_named(database_url):
    # No user may create it, not even root, to whom access(2) says otherwise.
    bind = f"127.0.0.1:{free_port()}"
    said = failed_start(DATABASE_URL=database_url, ADMIN_BIND=bind, METRICS_DIR="/proc/stackmgr/metrics")
    assert messages(said)[-1].startswith("STACKMGR_METRICS_DIR: /proc")


def test_workers_that_would_share_one_pool_are_not_started(database_url):
    assert "unset preload_app" in failed_start("--preload", DATABASE_URL=database_url)
