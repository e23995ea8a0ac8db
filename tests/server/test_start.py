"""The start and the stop of a service: every problem is reported, and every client gets a response."""

import contextlib
import json
import os
import re
import signal

import psutil
import pytest

from tests.server.gunicorn_process import get
from tests.support.http_wire import connect
from tests.support.processes import completed
from tests.support.server import GUNICORN_COMMAND, free_port, running_service


def failed_start(*arguments, **environ):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STACKMGR_")}
    command = [*GUNICORN_COMMAND, "--bind", f"127.0.0.1:{free_port()}", *arguments]
    given = {f"STACKMGR_{name}": str(value) for name, value in environ.items()}
    ended = completed(command, timeout=60, env=kept | given)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert "Booting worker" not in ended.stderr
    return ended.stderr


def messages(said: str) -> list[str]:
    lines = [json.loads(line) for line in said.splitlines()]
    return [line["message"] for line in lines if line["level"] == "error"]


def test_a_failed_start_is_logged_as_text():
    said = failed_start(LOG_FORMAT="text")
    assert re.fullmatch(r"\S+ error STACKMGR_DATABASE_URL is not set: .*\n", said)


@pytest.mark.parametrize(("folder", "problem"), [
    ("", "holds files of something else (notes): choose an empty folder"),
    ("notes/metrics", "cannot be used: Not a directory"),
])  # fmt: skip
def test_an_unusable_metrics_folder_stays(server_url, tmp_path, folder, problem):
    (tmp_path / "notes").write_text("kept")
    bind = f"127.0.0.1:{free_port()}"
    said = messages(failed_start(DATABASE_URL=server_url, ADMIN_BIND=bind, METRICS_DIR=tmp_path / folder))
    assert said[-1] == f"STACKMGR_METRICS_DIR: {tmp_path / folder} {problem}"
    # Named together with what is wrong with the database.
    assert "run 'stackmgr migrate'" in said[0]
    assert (tmp_path / "notes").read_text() == "kept"


def test_a_second_start_leaves_the_metrics(database_url, tmp_path):
    folder = tmp_path / "new" / "metrics"
    env = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port()}", "STACKMGR_METRICS_DIR": str(folder)}
    with running_service(database_url, env=env):
        files = {path: path.stat().st_ino for path in folder.iterdir()}
        bind = f"127.0.0.1:{free_port()}"
        said = failed_start(DATABASE_URL=database_url, ADMIN_BIND=bind, METRICS_DIR=folder)
        assert messages(said) == [f"STACKMGR_METRICS_DIR: {folder}: in use by another service"]
        assert {path: path.stat().st_ino for path in folder.iterdir()} == files


def test_workers_of_a_killed_master_delay_no_start(database_url, tmp_path):
    env = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port()}", "STACKMGR_METRICS_DIR": str(tmp_path)}
    with running_service(database_url, env=env) as killed:
        workers = psutil.Process(killed.pid).children()
        for worker in workers:
            worker.suspend()  # or a request would keep it
        killed.process.kill()
        env["STACKMGR_ADMIN_BIND"] = f"127.0.0.1:{free_port()}"
        with running_service(database_url, env=env) as next_one:
            assert "in use" not in next_one.log()
        for worker in workers:
            worker.kill()


@pytest.mark.parametrize("given", ["--preload", "--worker-class=gthread", "--worker-class=sync --threads=1"])
def test_settings_of_a_base_image_are_rejected(database_url, monkeypatch, given):
    monkeypatch.setenv("GUNICORN_CMD_ARGS", given)
    named = "unset preload_app" if given == "--preload" else "unset worker_class, also in GUNICORN_CMD_ARGS"
    assert named in failed_start(DATABASE_URL=database_url)


@pytest.mark.parametrize("sent_before", [True, False])
def test_a_stop_serves_waiting_connections(database_url, sent_before):
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running_service(database_url, env={"WEB_CONCURRENCY": "2"}))
        workers = psutil.Process(service.pid).children()
        assert len(workers) == 2
        for worker in workers:
            worker.suspend()  # so that all of them are still in the listener's queue when the signal comes
        clients = [stack.enter_context(connect(service.port)) for _ in range(100)]
        for client in clients if sent_before else []:
            client.send(get("/"))
        service.process.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.resume()
        for client in clients if not sent_before else []:
            client.send(get("/"))
        assert [client.response().status for client in clients] == [404] * 100
        assert service.process.wait(60) == 0
