"""The units and manifests of deploy/, against each other and as they run."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tomllib
from collections.abc import Iterator

import kubernetes_validate
import pytest
import yaml
from gunicorn.config import Backlog, Timeout

import stackmgr
from stackmgr.server.clients import BUFFER_BUDGET
from stackmgr.settings import Settings
from stackmgr.start_check import CHECK_SECONDS
from tests.deploy.units import DEPLOY, EXPECTED, GRACEFUL_TIMEOUT_SECONDS, unit, values
from tests.support.processes import completed
from tests.support.programs import require
from tests.support.server import free_port, listens, send_request
from tests.support.waiting import eventually

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
ENVIRONMENT = (DEPLOY / "stackmgr.env.example").read_text()
COMPOSE, NODE, *OBJECTS = (
    document
    for name in ("compose.yaml", "patroni/patroni.yml", "kubernetes.yaml")
    for document in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))
)
SERVICES = COMPOSE.pop("services")
WORKFLOWS = [*(DEPLOY.parent / ".github" / "workflows").glob("*.yml")]
DOCUMENTS = {path.stem: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
DOCUMENTS["hooks"] = yaml.safe_load((DEPLOY.parent / ".pre-commit-config.yaml").read_text())
TOOLS = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]
DOCUMENTS["pyproject"] = {name: TOOLS[name] for name in ("mypy", "pytest", "importlinter")}
DOCUMENTS |= SERVICES | {"compose": COMPOSE, "patroni": NODE} | {each["kind"]: each for each in OBJECTS}
WORKERS = int(re.search(r"^WEB_CONCURRENCY=(\d+)$", ENVIRONMENT, re.MULTILINE)[1])
CHECK, COMMAND = (" ".join(json.loads(found)) for found in re.findall(r"\bCMD (\[.*\])\n", CONTAINERFILE))
MEMORY, TASKS, START_SECONDS = (
    values("stackmgr.service", key)[0] for key in ("MemoryMax", "TasksMax", "TimeoutStartSec")
)
PAUSE = 10  # seconds in which nodes still send a stopping pod new connections
PATIENCE_SECONDS = 60.0
UNITS = ("stackmgr.service", "stackmgr.socket", "stackmgr-backup.service", "stackmgr-backup.timer")
USER = 65532
SHARED = EXPECTED["parts"] | {
    "VERSION": stackmgr.__version__, "CHECK": CHECK, "COMMAND": COMMAND, "WORKERS": WORKERS, "USER": USER,
    "MEMORY": MEMORY, "memory": MEMORY.lower(), "TASKS": TASKS, "START_SECONDS": START_SECONDS,
    "START_PROBES": int(START_SECONDS) // 2, "STOP_SECONDS": GRACEFUL_TIMEOUT_SECONDS + 10, "PAUSE": PAUSE,
    "POD_SECONDS": GRACEFUL_TIMEOUT_SECONDS + PAUSE + 10, "SHA": "[0-9a-f]{40}",
}  # fmt: skip
# The settings of a file; by default NAME=VALUE.
SETTINGS_OF = {
    "nginx.conf": r"^ *([a-z_]+) ([^;{]+);", "nginx.conf, maps": r'^ +("~.*"|"") +(\S.*);$',
    "nginx.conf, log": r'"(\w+)":"\$(\w+)"', "release": r"\bbuild (--quiet --format \S+) (--timestamp) ",
    "Containerfile": r"^([A-Z]+|    (?:&&|CMD)) (.*)$", "gunicorn.conf.py": r'^([a-z]\w+) = ([\w.]+|".*")$',
}  # fmt: skip


def expected(kind: str, name: str) -> str:
    text = EXPECTED[kind][name]
    for _ in range(2):  # the parts have names too
        text = re.sub(r"(?<!\$)\{(\w+)\}", lambda found: str(SHARED.get(found[1], found[0])), text)
    return " ".join(text.split())


def leaves(node: object, name: str = "") -> Iterator[str]:
    """Yield each value with its key, and a list of texts as one, but for scripts, which tests run.

    What holds others comes before them: `key:`, and a `-` for each item of a list.
    """
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict):
                yield f"{key}:"
            yield from leaves(value, key)
    elif isinstance(node, list) and any(isinstance(each, dict) for each in node):
        yield f"{name}:"
        for each in node:
            yield "-"
            yield from leaves(each, name)
    elif name not in ("apiVersion", "kind", "entrypoint") and "-euc" not in str(node):
        yield f"{name} {' '.join(node) if isinstance(node, list) else node}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_manifest_has_what_it_needs_and_no_more(name):
    document = {key: value for key, value in DOCUMENTS[name].items() if not str(key).startswith("x-")}
    text = re.sub("([:-]);(?= )", r"\1", "; ".join(leaves(document)))
    found = re.sub("@[0-9a-f]{40}", f"@{SHARED['SHA']}", text)
    assert " ".join(found.split()) == expected("manifests", name)
    assert document.get("permissions", {}) == {}


@pytest.mark.parametrize("name", EXPECTED["files"])
def test_a_file_sets_what_it_needs_and_no_more(name):
    text = (DEPLOY / name.partition(",")[0]).read_text()
    settings = re.findall(SETTINGS_OF.get(name, r"^([\w-]+) ?= ?(.*)$"), text, re.MULTILINE)
    found = "; ".join(" ".join(" ".join(each).split()) for each in settings)
    assert found == expected("files", name)


def sh(command: list[str], **replacements: str) -> list[str]:
    script = command[2].replace("$$", "$")
    for old, new in replacements.items():
        script = script.replace(old, new)
    return [*command[:2], script, *command[3:]]


def test_a_container_takes_its_password_from_its_file(tmp_path):
    (tmp_path / "password").write_text('it\'s "secret"\n')
    entrypoint = sh(SERVICES["service"]["entrypoint"])
    command = [*entrypoint, "sh", "-c", 'printf %s "$PGPASSWORD|$*"', "sh", "a b", "c"]
    environ = {"PASSWORD_FILE": str(tmp_path / "password")}
    assert subprocess.check_output(command, env=environ, text=True) == 'it\'s "secret"|a b c'


def test_nginx_of_compose_has_the_same_file(tmp_path):
    places = {"/stackmgr/nginx.conf": shlex.quote(str(DEPLOY / "nginx.conf")),
        "/etc/nginx/conf.d": str(tmp_path)}  # fmt: skip
    command = sh(SERVICES["nginx"]["command"], **places, **{"exec nginx": "echo"})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    written = (tmp_path / "stackmgr.conf").read_text()
    assert "server service:8000 " in written
    assert "ssl_certificate     /run/secrets/fullchain.pem;" in written
    assert not re.search(r"127\.0\.0\.1:8000|/var/log|/etc/stackmgr|listen \[", written)


@pytest.mark.parametrize("release", ["1.29.0", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", OBJECTS, ids=[each["kind"] for each in OBJECTS])
def test_objects_are_valid_for_kubernetes(document, release):
    kubernetes_validate.validate(document, release, strict=True)


def test_node_has_the_recommended_settings():
    script = (DEPLOY / "postgresql" / "roles.sql").read_text(encoding="utf-8")
    recommended = re.findall(r"\('(\w+)', '([\w-]+)'\)", script.partition("Recommended")[2])
    assert len(recommended) == 7
    given = expected("manifests", "patroni").replace("initdb data-checksums", "data_checksums on")
    assert {f" {name} {value};" for name, value in recommended} <= {*re.findall(r" \w+ \S+;", given)}


def test_systemd_accepts_the_units_and_finds_nothing_open_but_what_the_service_needs(tmp_path):
    program = require(shutil.which("systemd-analyze"), "systemd-analyze")
    for name in UNITS:
        (tmp_path / name).write_text(unit(f"postgresql/{name}" if "backup" in name else name))
    for arguments in (("verify", *UNITS), ("security", "--offline=true", "--json=short", UNITS[0])):
        ended = completed([program, *arguments], cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    needed = {
        "PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies_AF_UNIX", "DeviceAllow", "PrivateMounts",
        "RestrictAddressFamilies_AF_INET_INET6", "RootDirectoryOrRootImage",
    }  # fmt: skip
    assert {each["json_field"] for each in json.loads(ended.stdout) if not each["set"]} == needed


def test_a_backup_is_full_each_seventh_day_and_reports_damage(tmp_path):
    _, *scripts = values("postgresql/stackmgr-backup.service", "ExecStart")
    back_up, verify, stamp = (shlex.split(line.replace("%%", "%"))[2] for line in scripts)
    week = f"pgbackrest() {{ echo $2; }}; date() {{ echo $day; }}; for day in $(seq 7); do {back_up}; done"
    assert completed(["/bin/sh", "-c", week]).stdout.split() == ["--type=incr"] * 6 + ["--type=full"]
    for damage in ("", "damaged"):
        ended = completed(["/bin/sh", "-c", f"pgbackrest() {{ printf '{damage}'; }}; {verify}"])
        assert ended.returncode == bool(damage)
    subprocess.run(stamp.replace("/var/lib/prometheus/node-exporter", str(tmp_path)), shell=True, check=True)  # noqa: S602
    [written] = tmp_path.iterdir()
    assert re.fullmatch(r"stackmgr_backup_timestamp_seconds \d{10}\n", written.read_text()), written
    assert written.suffix == ".prom"


def test_systemd_never_gives_up_and_bounds_memory_and_tasks():
    service, socket_unit = (dict(re.findall(r"^(\w+)=(.*)$", unit(name), re.MULTILINE)) for name in UNITS[:2])
    assert service["MemoryMax"] == f"{2 * WORKERS * 512 + 256}M"
    assert f"\n#STACKMGR_METRICS_DIR=/run/{service['RuntimeDirectory']}/metrics\n" in ENVIRONMENT
    assert ENVIRONMENT.startswith(f"# {service['EnvironmentFile']}: ")
    assert int(service["TimeoutStartSec"]) > CHECK_SECONDS + Timeout.default
    assert f" {BUFFER_BUDGET >> 20} that clients make it hold (BUFFER_BUDGET)" in unit(UNITS[0])
    assert int(service["TasksMax"]) >= 2 * WORKERS * (Settings.concurrency + 10)
    assert int(socket_unit["Backlog"]) >= Backlog.default
    [admin] = re.findall(r"^#STACKMGR_ADMIN_BIND=(.*)$", ENVIRONMENT, re.MULTILINE)
    assert f"\n#ListenStream={admin}\n" in unit(UNITS[1])


def test_reload_begins_with_a_check(database_url):
    check, _ = values("stackmgr.service", "ExecReload")
    for url, outcome in ((database_url, 0), (f"{database_url} dbname=postgres", 1)):
        checked = completed(shlex.split(check), env=os.environ | {"STACKMGR_DATABASE_URL": url})
        assert checked.returncode == outcome, checked.stderr


def test_service_takes_the_socket_of_systemd_and_alone_notifies_it(database_url, tmp_path):
    program = require(shutil.which("systemd-socket-activate"), "systemd-socket-activate")
    port = free_port()
    environment = {"STACKMGR_DATABASE_URL": database_url, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    passed = [f"--setenv={name}={value}" for name, value in environment.items()]
    (command,) = values("stackmgr.service", "ExecStart")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(environment["NOTIFY_SOCKET"])
        notified.settimeout(PATIENCE_SECONDS)
        line = [program, f"--listen=127.0.0.1:{port}", *passed, *shlex.split(command)]
        output = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(line, **output, start_new_session=True)
        try:
            # The first connection is also what starts the service.
            eventually(lambda: listens(port), PATIENCE_SECONDS)
            assert send_request(port, "/")[0] == 404
            assert notified.recv(4096) == b"READY=1\nSTATUS=serving"  # gunicorn's own would come first
            process.send_signal(signal.SIGHUP)
            assert send_request(port, "/")[0] == 404
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
