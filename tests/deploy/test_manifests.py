"""The units and manifests of deploy/, against each other and as they run."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess

import kubernetes_validate
import pytest
import yaml
from gunicorn.config import Backlog, Timeout

import stackmgr
from stackmgr.server.clients import BUFFER_BUDGET
from stackmgr.settings import Settings
from stackmgr.start_check import CHECK_SECONDS
from tests.deploy.units import DEPLOY, GRACEFUL_TIMEOUT_SECONDS, unit, values
from tests.support.processes import completed
from tests.support.programs import require
from tests.support.server import free_port, listens, send_request
from tests.support.waiting import eventually

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
[HEALTH_CHECK] = map(yaml.safe_load, re.findall(r"HEALTHCHECK.*\\\n +CMD (\[.*\])", CONTAINERFILE))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def sh(command: list[str], **replacements: str) -> list[str]:
    script = command[2].replace("$$", "$")
    for old, new in replacements.items():
        script = script.replace(old, new)
    return [*command[:2], script, *command[3:]]


def test_compose_has_the_images_command():
    service = SERVICES["service"]
    assert COMPOSE["x-image"]["image"] == f"localhost/stackmgr:{stackmgr.__version__}"
    # An image in OCI format has none, and nginx would wait for a healthy service in vain.
    assert service["healthcheck"]["test"] == ["CMD", *HEALTH_CHECK]
    [command] = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    assert service["command"] == yaml.safe_load(command)
    assert int(service["stop_grace_period"].removesuffix("s")) > GRACEFUL_TIMEOUT_SECONDS


def test_a_container_waits_for_what_it_needs():
    assert {name: each["depends_on"] for name, each in SERVICES.items() if "depends_on" in each} == {
        "operator": {"postgres": {"condition": "service_healthy"}},
        "service": {"operator": {"condition": "service_completed_successfully"}},
        # It resolves the address once.
        "nginx": {"service": {"condition": "service_healthy", "restart": True}},
    }


def test_container_writes_nowhere_and_is_bounded():
    for name in ("operator", "service"):
        assert SERVICES[name]["secrets"] == [f"{name}_password"]
    for container in map(SERVICES.get, ("operator", "service", "nginx")):
        assert container["read_only"] is True
        assert container["cap_drop"] == ["ALL"]
        assert container["security_opt"] == ["no-new-privileges:true"]
    of_unit = [values("stackmgr.service", key)[0] for key in ("MemoryMax", "TasksMax")]
    assert [SERVICES["service"]["mem_limit"].upper(), str(SERVICES["service"]["pids_limit"])] == of_unit
    assert all(container["pids_limit"] for container in SERVICES.values())
    assert [name for name, container in SERVICES.items() if "mem_limit" not in container] == ["postgres"]


def test_a_container_takes_its_password_from_its_file(tmp_path):
    (tmp_path / "password").write_text('it\'s "secret"\n')
    entrypoint = sh(SERVICES["service"]["entrypoint"])
    command = [*entrypoint, "sh", "-c", 'printf %s "$PGPASSWORD|$*"', "sh", "a b", "c"]
    environ = {"PASSWORD_FILE": str(tmp_path / "password")}
    assert subprocess.check_output(command, env=environ, text=True) == 'it\'s "secret"|a b c'


def test_nginx_of_compose_has_the_same_file(tmp_path):
    places = {
        "/stackmgr/nginx.conf": shlex.quote(str(DEPLOY / "nginx.conf")),
        "/etc/nginx/conf.d": str(tmp_path),
    }
    command = sh(SERVICES["nginx"]["command"], **places, **{"exec nginx": "echo"})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    written = (tmp_path / "stackmgr.conf").read_text()
    assert "server service:8000 " in written
    assert "ssl_certificate     /run/secrets/fullchain.pem;" in written
    assert not re.search(r"127\.0\.0\.1:8000|/var/log|/etc/stackmgr|listen \[", written)


OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
JOB, DEPLOYMENT, BUDGET, SERVICE, POLICY = OBJECTS
PODS = {each["kind"]: each["spec"]["template"] for each in (JOB, DEPLOYMENT)}
SERVE = PODS["Deployment"]["spec"]["containers"][0]


@pytest.mark.parametrize("release", ["1.29.0", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", OBJECTS, ids=[each["kind"] for each in OBJECTS])
def test_objects_are_valid_for_kubernetes(document, release):
    kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.parametrize(("kind", "secret"), [("Job", "operator"), ("Deployment", "service")])
def test_pod_has_no_rights_and_one_secret(kind, secret):
    pod = PODS[kind]["spec"]
    [container] = pod["containers"]
    assert container["image"].endswith(f"/stackmgr:{stackmgr.__version__}")
    user = pod["securityContext"]["runAsUser"]
    as_user = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), user)  # the last may read the secret
    assert pod["securityContext"] == as_user | {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert user > 0
    assert f"\nUSER {user}:{user}\n" in CONTAINERFILE
    bounds = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    assert container["securityContext"] == bounds | {"capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False
    # Kubernetes would set STACKMGR_PORT and the like, as no setting of the service.
    assert pod["enableServiceLinks"] is False
    environ = {each["name"]: each["value"] for each in container["env"]}
    assert "STACKMGR_DATABASE_URL" not in environ
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    folder = environ["STACKMGR_DATABASE_URL_FILE"].rpartition("/")[0]
    [volume] = [each["secret"] for each in pod["volumes"] if each["name"] == mounted[folder]]
    assert volume["defaultMode"] & 0o007 == 0
    assert volume["secretName"] == f"stackmgr-{secret}"


def test_probes_ask_the_admin_listener():
    environ = {each["name"]: each["value"] for each in SERVE["env"]}
    ports = {each["name"]: each["containerPort"] for each in SERVE["ports"]}
    assert environ["STACKMGR_ADMIN_BIND"] == f"0.0.0.0:{ports['admin']}"
    for name, path in (("startup", "/live"), ("liveness", "/live"), ("readiness", "/ready")):
        probe = SERVE[f"{name}Probe"]["httpGet"]
        assert (probe["port"], probe["path"]) == ("admin", path)
    assert [port["targetPort"] for port in SERVICE["spec"]["ports"]] == ["http"]
    assert f"\nEXPOSE {ports['http']}\n" in CONTAINERFILE
    of_clients, of_operators = POLICY["spec"]["ingress"]
    assert of_clients == {"ports": [{"port": "http"}]}
    assert [each["port"] for each in of_operators["ports"]] == ["admin"]
    assert of_operators["from"]


def test_pod_has_the_units_memory_and_times_and_an_upgrade_leaves_pods_that_serve():
    [memory] = values("stackmgr.service", "MemoryMax")
    assert SERVE["resources"]["limits"]["memory"] == f"{memory}i"
    [_, pause] = SERVE["lifecycle"]["preStop"]["exec"]["command"]
    assert PODS["Deployment"]["spec"]["terminationGracePeriodSeconds"] > GRACEFUL_TIMEOUT_SECONDS + int(pause)
    readiness = SERVE["readinessProbe"]
    assert int(pause) >= readiness["periodSeconds"] * readiness["failureThreshold"]
    liveness = SERVE["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 40
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert DEPLOYMENT["spec"]["replicas"] > BUDGET["spec"]["maxUnavailable"]
    labels = PODS["Deployment"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"]["matchLabels"] for each in (DEPLOYMENT, BUDGET)]
    selectors += [SERVICE["spec"]["selector"], POLICY["spec"]["podSelector"]["matchLabels"]]
    assert selectors == [labels] * 4
    assert PODS["Job"]["metadata"]["labels"] != labels


NODE = yaml.safe_load((DEPLOY / "patroni" / "patroni.yml").read_text(encoding="utf-8"))
DYNAMIC = NODE["bootstrap"]["dcs"]


def test_node_has_the_recommended_settings():
    script = (DEPLOY / "postgresql" / "roles.sql").read_text(encoding="utf-8")
    recommended = dict(re.findall(r"\('(\w+)', '([\w-]+)'\)", script.partition("Recommended")[2]))
    assert len(recommended) == 7
    assert "data-checksums" in NODE["bootstrap"]["initdb"]
    del recommended["data_checksums"]
    settings = DYNAMIC["postgresql"]["parameters"] | NODE["postgresql"]["parameters"]
    assert {name: settings.get(name) for name in recommended} == recommended


PATIENCE_SECONDS = 60.0
UNITS = ("stackmgr.service", "stackmgr.socket", "stackmgr-backup.service", "stackmgr-backup.timer")


def test_systemd_accepts_the_units(tmp_path):
    program = require(shutil.which("systemd-analyze"), "systemd-analyze")
    for name in UNITS:
        (tmp_path / name).write_text(unit(f"postgresql/{name}" if "backup" in name else name))
    for arguments in (("verify", *UNITS), ("security", "--offline=true", "--threshold=15", UNITS[0])):
        ended = completed([program, *arguments], cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_a_backup_is_full_each_seventh_day_and_reports_damage():
    _, back_up, verify, _ = values("postgresql/stackmgr-backup.service", "ExecStart")
    back_up, verify = (shlex.split(line.replace("%%", "%"))[2] for line in (back_up, verify))
    week = f"pgbackrest() {{ echo $2; }}; date() {{ echo $day; }}; for day in $(seq 7); do {back_up}; done"
    assert completed(["/bin/sh", "-c", week]).stdout.split() == ["--type=incr"] * 6 + ["--type=full"]
    for damage in ("", "damaged"):
        ended = completed(["/bin/sh", "-c", f"pgbackrest() {{ printf '{damage}'; }}; {verify}"])
        assert ended.returncode == bool(damage)


def test_systemd_never_gives_up_and_bounds_memory_and_tasks():
    assert values("stackmgr.service", "Restart") == ["always"]
    assert values("stackmgr.service", "StartLimitIntervalSec") == ["0"]
    assert int(*values("stackmgr.service", "TimeoutStopSec")) > GRACEFUL_TIMEOUT_SECONDS
    assert int(*values("stackmgr.service", "TimeoutStartSec")) > CHECK_SECONDS + Timeout.default
    assert int(*values("stackmgr.socket", "Backlog")) >= Backlog.default
    # The master alone gets SIGTERM, so that it does not replace workers that end; SIGKILL goes to all.
    assert values("stackmgr.service", "KillMode") == ["mixed"]
    environment = (DEPLOY / "stackmgr.env.example").read_text()
    workers = int(re.search(r"^WEB_CONCURRENCY=(\d+)$", environment, re.MULTILINE)[1])
    assert values("stackmgr.service", "MemoryMax") == [f"{2 * workers * 512 + 256}M"]
    assert f" {BUFFER_BUDGET >> 20} that clients make it hold (BUFFER_BUDGET)" in unit("stackmgr.service")
    assert int(*values("stackmgr.service", "TasksMax")) >= 2 * workers * (Settings.concurrency + 10)
    assert values("stackmgr.service", "OOMPolicy") == ["continue"]


def test_reload_begins_with_a_check(database_url):
    check, hang_up = values("stackmgr.service", "ExecReload")
    assert hang_up == "/bin/kill -s HUP $MAINPID"
    for url, outcome in ((database_url, 0), (f"{database_url} dbname=postgres", 1)):
        checked = completed(shlex.split(check), env=os.environ | {"STACKMGR_DATABASE_URL": url})
        assert checked.returncode == outcome, checked.stderr


def test_service_takes_the_socket_of_systemd(database_url, tmp_path):
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
            assert notified.recv(4096).startswith(b"READY=1")
            process.send_signal(signal.SIGHUP)
            assert send_request(port, "/")[0] == 404
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
