"""The parts of Containerfile and compose.yaml, without a container engine; test_image.py builds the image."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import stackmgr
from stackmgr import paths
from tests.deploy.units import values
from tests.support.server import free_port, running_service

DEPLOY = paths.directory("deploy")
ROOT = DEPLOY.parent
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def sh(command: list[str], **replacements: str) -> list[str]:
    """Return a command of the compose file as a container's shell gets it."""
    script = command[2].replace("$$", "$")
    for old, new in replacements.items():
        script = script.replace(old, new)
    return [*command[:2], script, *command[3:]]


def test_every_file_that_the_image_copies_exists_and_none_is_fetched():
    copies = re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()[:-1]]
    assert {"stackmgr", "sql", "schemas", "deploy"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert not re.search(r"^ADD ", CONTAINERFILE, re.MULTILINE)


def test_the_image_runs_as_an_unprivileged_user():
    last_stage = CONTAINERFILE.rpartition("\nFROM ")[2]
    user = int(re.findall(r"^USER (\d+):\d+$", last_stage, re.MULTILINE)[-1])
    assert user > 0


def health_check(port: int) -> int:
    _, *arguments = yaml.safe_load(re.search(r"HEALTHCHECK.*\\\n +CMD (\[.*\])", CONTAINERFILE)[1])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "STACKMGR_ADMIN_BIND": f"127.0.0.1:{port}"},
        check=False,
        stderr=subprocess.DEVNULL,
    ).returncode


def test_the_health_check_detects_whether_the_service_responds(database_url):
    port = free_port()
    with running_service(database_url, env={"STACKMGR_ADMIN_BIND": f"127.0.0.1:{port}"}):
        assert health_check(port) == 0
    assert health_check(port) != 0


def test_compose_names_the_image_of_this_version():
    assert COMPOSE["x-image"]["image"] == f"localhost/stackmgr:{stackmgr.__version__}"


def test_compose_repeats_the_health_check_of_the_image():
    """An image in OCI format has none, and nginx would wait for a healthy service in vain."""
    command = yaml.safe_load(re.search(r"HEALTHCHECK.*\\\n +CMD (\[.*\])", CONTAINERFILE)[1])
    assert SERVICES["service"]["healthcheck"]["test"] == ["CMD", *command]


@pytest.mark.parametrize("name", ["operator", "service", "nginx"])
def test_a_container_can_write_nowhere_and_has_no_more_rights_than_it_names(name):
    container = SERVICES[name]
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]


def test_memory_and_tasks_are_bounded_as_under_systemd():
    [memory] = values("stackmgr.service", "MemoryMax")
    [tasks] = values("stackmgr.service", "TasksMax")
    service = SERVICES["service"]
    assert (service["mem_limit"].upper(), service["pids_limit"]) == (memory, int(tasks))
    assert all(container["pids_limit"] for container in SERVICES.values())
    assert [name for name, container in SERVICES.items() if "mem_limit" not in container] == ["postgres"]


def test_only_nginx_is_published_and_the_database_is_on_a_network_without_a_way_out():
    assert [name for name, container in SERVICES.items() if "ports" in container] == ["nginx"]
    assert SERVICES["postgres"]["networks"] == ["database"]
    assert COMPOSE["networks"]["database"]["internal"] is True
    assert "database" not in SERVICES["nginx"]["networks"]


def test_every_file_that_the_compose_file_names_exists_or_is_a_secret():
    mounts = [mount for container in SERVICES.values() for mount in container.get("volumes", [])]
    assert all((DEPLOY / mount.split(":")[0]).exists() for mount in mounts if mount.startswith("./"))
    assert {Path(secret["file"]).parent.name for secret in COMPOSE["secrets"].values()} == {"secrets"}
    for container in SERVICES.values():
        assert set(container.get("secrets", [])) <= set(COMPOSE["secrets"])
        build = container.get("build")
        assert build is None or (DEPLOY / build["context"] / build["dockerfile"]).exists()


def test_no_secret_stands_in_the_compose_file():
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"://\w+:[^/@]+@", text)
    assert not re.search(r"PASSWORD: ", text)


def test_migrations_come_before_the_service_and_the_service_before_nginx():
    assert SERVICES["operator"]["command"] == ["stackmgr", "migrate"]
    conditions = {
        name: {on: what["condition"] for on, what in SERVICES[name]["depends_on"].items()}
        for name in ("operator", "service", "nginx")
    }
    assert conditions == {
        "operator": {"postgres": "service_healthy"},
        "service": {"operator": "service_completed_successfully"},
        "nginx": {"service": "service_healthy"},
    }


def test_a_container_takes_its_password_from_its_file(tmp_path):
    (tmp_path / "password").write_text('it\'s "secret"\n')
    printed = subprocess.run(
        [*sh(SERVICES["service"]["entrypoint"]), "sh", "-c", 'printf %s "$PGPASSWORD|$*"', "sh", "a b", "c"],
        env={"PASSWORD_FILE": str(tmp_path / "password")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == 'it\'s "secret"|a b c'


def test_nginx_in_a_container_has_the_same_file_with_its_own_places(tmp_path):
    (tmp_path / "etc").mkdir()
    places = {
        "/stackmgr/nginx.conf": shlex.quote(str(DEPLOY / "nginx.conf")),
        "/etc/nginx/conf.d": str(tmp_path / "etc"),
    }
    command = sh(SERVICES["nginx"]["command"], **places, **{"exec nginx": "echo"})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    written = (tmp_path / "etc" / "stackmgr.conf").read_text()
    assert "server service:8000 " in written
    assert "ssl_certificate     /run/secrets/fullchain.pem;" in written
    assert not re.search(r"127\.0\.0\.1:8000|/var/log|/etc/stackmgr|listen \[", written)


def test_the_service_starts_in_a_container_as_it_does_under_systemd():
    started = shlex.join(SERVICES["service"]["command"])
    assert started == shlex.join(yaml.safe_load(re.search(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)[1]))
    waits = re.search(r"^graceful_timeout = (\d+)$", (DEPLOY / "gunicorn.conf.py").read_text(), re.MULTILINE)
    assert int(SERVICES["service"]["stop_grace_period"].removesuffix("s")) > int(waits[1])
