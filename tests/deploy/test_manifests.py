"""The units and manifests of deploy/, against each other and as they run."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator

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
from tests.support.server import SETTINGS, free_port, listens, send_request
from tests.support.waiting import eventually

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
ENVIRONMENT = (DEPLOY / "stackmgr.env.example").read_text()
COMPOSE, NODE, *OBJECTS = (
    document
    for name in ("compose.yaml", "patroni/patroni.yml", "kubernetes.yaml")
    for document in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))
)
SERVICES = COMPOSE.pop("services")
DOCUMENTS = SERVICES | {"compose": COMPOSE, "patroni": NODE} | {each["kind"]: each for each in OBJECTS}
WORKERS = int(re.search(r"^WEB_CONCURRENCY=(\d+)$", ENVIRONMENT, re.MULTILINE)[1])
CHECK, COMMAND = (" ".join(json.loads(found)) for found in re.findall(r"\bCMD (\[.*\])\n", CONTAINERFILE))
MEMORY, TASKS, START_SECONDS = (
    values("stackmgr.service", key)[0] for key in ("MemoryMax", "TasksMax", "TimeoutStartSec")
)
PAUSE = 10  # seconds in which nodes still send a stopping pod new connections
USER = 65532
HARDENED = f"""init True; read_only True; cap_drop ALL; security_opt no-new-privileges:true;
restart {{}}; pids_limit {TASKS}; mem_limit {{}}; image """
OF_IMAGE = f"""{HARDENED}localhost/stackmgr:{stackmgr.__version__}; context ..;
dockerfile deploy/Containerfile; tmpfs /tmp; networks {{}}; command {{}};
STACKMGR_DATABASE_URL postgresql://stackmgr_{{login}}@postgres/stackmgr;
PASSWORD_FILE /run/secrets/{{login}}_password;{{}} secrets {{login}}_password;"""
LABELS = "app.kubernetes.io/name stackmgr; app.kubernetes.io/component"
# enableServiceLinks would set STACKMGR_PORT and the like; fsGroup may read the secret.
POD = f"""automountServiceAccountToken False; enableServiceLinks False; runAsNonRoot True; runAsUser {USER};
runAsGroup {USER}; fsGroup {USER}; type RuntimeDefault;"""
CONTAINER = f"""image registry.example.com/stackmgr:{stackmgr.__version__};{{}}
name STACKMGR_DATABASE_URL_FILE; value /run/secrets/stackmgr/url;{{}} allowPrivilegeEscalation False;
readOnlyRootFilesystem True; drop ALL; cpu {{}}; memory {{}}; memory {{}}; name secrets;
mountPath /run/secrets/stackmgr; readOnly True;{{}} name secrets; secretName stackmgr-{{login}};
defaultMode {0o440}"""
TLS = "sslmode verify-full; sslrootcert /etc/patroni/tls/ca.pem;"
# Every value, in the order of the file.
NEEDED = {
    "postgres": f"""image docker.io/library/postgres:18; restart unless-stopped; pids_limit {TASKS};
        networks database; shm_size 1g; stop_grace_period 60s;
        POSTGRES_PASSWORD_FILE /run/secrets/superuser_password; POSTGRES_INITDB_ARGS --data-checksums;
        secrets superuser_password operator_password service_password; volumes data:/var/lib/postgresql
        ./postgresql/roles.sql:/stackmgr/roles.sql:ro
        ./postgresql/init.sh:/docker-entrypoint-initdb.d/stackmgr.sh:ro;
        test CMD pg_isready --quiet --host=127.0.0.1 --username=postgres; interval 2s; timeout 3s;
        retries 60""",
    "operator": OF_IMAGE.format("no", "1g", "database", "stackmgr migrate", "", login="operator")
    + "condition service_healthy",
    # An image in OCI format has no health check, and nginx would wait for a healthy service in vain.
    "service": OF_IMAGE.format(
        "unless-stopped", MEMORY.lower(), "database edge", COMMAND, f" WEB_CONCURRENCY {WORKERS};",
        login="service",
    )
    + f"""test CMD {CHECK}; interval 2s; timeout 5s; start_period {START_SECONDS}s;
        stop_grace_period {GRACEFUL_TIMEOUT_SECONDS + 10}s; condition service_completed_successfully""",
    # It resolves the address once: it restarts with the service.
    "nginx": HARDENED.format("unless-stopped", "1g")
    + """docker.io/library/nginx:1.28; cap_add CHOWN NET_BIND_SERVICE SETGID SETUID; networks edge;
        ports 443:443; tmpfs /etc/nginx/conf.d /var/cache/nginx:size=768m /run;
        secrets fullchain.pem privkey.pem; volumes ./nginx.conf:/stackmgr/nginx.conf:ro;
        condition service_healthy; restart True""",
    "compose": "name stackmgr; internal True; file ./secrets/superuser_password; "
    "file ./secrets/operator_password; file ./secrets/service_password; file ./secrets/fullchain.pem; "
    "file ./secrets/privkey.pem",
    "Job": f"""name stackmgr-migrate; {LABELS} migrate; backoffLimit 6; {LABELS} migrate;
        restartPolicy OnFailure; {POD} name migrate; """
    + CONTAINER.format(" command stackmgr migrate;", "", "100m", "128Mi", "256Mi", "", login="operator"),
    "Deployment": f"""name stackmgr; {LABELS} service; replicas 2; {LABELS} service;
        maxSurge 1; maxUnavailable 0; {LABELS} service; {POD} maxSkew 1; topologyKey kubernetes.io/hostname;
        whenUnsatisfiable ScheduleAnyway; {LABELS} service;
        terminationGracePeriodSeconds {GRACEFUL_TIMEOUT_SECONDS + PAUSE + 10}; name service; """
    + CONTAINER.format(
        "",
        f""" name STACKMGR_ADMIN_BIND; value 0.0.0.0:9108; name STACKMGR_METRICS_DIR; value /tmp/metrics;
        name WEB_CONCURRENCY; value {WORKERS}; name http; containerPort 8000; name admin; containerPort 9108;
        path /live; port admin; periodSeconds 2; failureThreshold {int(START_SECONDS) // 2};
        path /live; port admin; periodSeconds 10; timeoutSeconds 5; failureThreshold 6;
        path /ready; port admin; periodSeconds 5; timeoutSeconds 3; failureThreshold {PAUSE // 5};
        command sleep {PAUSE};""",
        "1", "256Mi", f"{MEMORY}i", " name memory; mountPath /tmp;", login="service",
    )
    + "; name memory; medium Memory; sizeLimit 64Mi",
    "PodDisruptionBudget": f"name stackmgr; maxUnavailable 1; {LABELS} service",
    "Service": f"name stackmgr; {LABELS} service; name http; port 80; targetPort http",
    "NetworkPolicy": f"""name stackmgr; {LABELS} service; policyTypes Ingress; port http; port admin;
        kubernetes.io/metadata.name monitoring""",
    # Patroni takes at least 20 for ttl, which is at least loop_wait and twice retry_timeout.
    "patroni": """scope stackmgr; name ${NODE}; hosts ${ETCD}; protocol https; cacert /etc/patroni/tls/ca.pem;
        listen ${ADDRESS}:8008; connect_address ${ADDRESS}:8008; username patroni; password ${API_PASSWORD};
        ttl 20; loop_wait 5; retry_timeout 5; primary_start_timeout 60; synchronous_mode True;
        synchronous_mode_strict False; failsafe_mode True; use_pg_rewind True; use_slots True;
        fsync on; full_page_writes on; synchronous_commit on; max_connections 200; wal_compression lz4;
        checkpoint_timeout 15min; max_wal_size 4GB; max_slot_wal_keep_size 16GB;
        password_encryption scram-sha-256; archive_mode on;
        archive_command pgbackrest --stanza=stackmgr archive-push %p; archive_timeout 60s;
        tcp_keepalives_idle 10; tcp_keepalives_interval 2; tcp_keepalives_count 3; wal_sender_timeout 10s;
        wal_receiver_timeout 10s; encoding UTF8; locale C; initdb data-checksums;
        listen ${ADDRESS}:5432; connect_address ${ADDRESS}:5432; bin_dir /usr/lib/postgresql/15/bin;
        data_dir /var/lib/postgresql/15/stackmgr; pgpass /var/lib/postgresql/stackmgr.pgpass; """
    + "".join(
        f"username {name}; password ${{{login}_PASSWORD}}; {TLS} "
        for name, login in (("postgres", "SUPERUSER"), ("replicator", "REPLICATION"), ("rewinder", "REWIND"))
    )
    + """unix_socket_directories /var/run/postgresql; ssl on; ssl_cert_file /etc/patroni/tls/node.pem;
        ssl_key_file /etc/patroni/tls/node.key; pg_hba local all postgres peer
        hostssl replication replicator ${DATABASES} scram-sha-256
        hostssl postgres rewinder ${DATABASES} scram-sha-256 hostssl all postgres ${DATABASES} scram-sha-256
        hostssl all stackmgr_service,stackmgr_operator ${SERVICES} scram-sha-256;
        mode automatic; device /dev/watchdog""",
}  # fmt: skip


def leaves(node: object, name: str = "") -> Iterator[str]:
    """Yield each value with its key, and a list of texts as one, but for scripts, which tests run."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, key)
    elif isinstance(node, list) and any(isinstance(each, dict) for each in node):
        for each in node:
            yield from leaves(each, name)
    elif name not in ("apiVersion", "kind", "entrypoint") and "-euc" not in str(node):
        yield f"{name} {' '.join(node) if isinstance(node, list) else node}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_manifest_has_what_it_needs_and_no_more(name):
    document = {key: value for key, value in DOCUMENTS[name].items() if not key.startswith("x-")}
    assert "; ".join(leaves(document)) == " ".join(NEEDED[name].replace(";", "; ").split())


def test_an_image_has_the_user_and_the_times_of_the_manifests():
    lines = (f"USER {USER}:{USER}", "EXPOSE 8000", "STOPSIGNAL SIGTERM", "WORKDIR /")
    lines += (
        "ENV PATH=/opt/stackmgr/bin:$PATH PYTHONDONTWRITEBYTECODE=1 STACKMGR_ADMIN_BIND=127.0.0.1:9108",
    )
    assert {*lines} <= {*CONTAINERFILE.splitlines()}
    assert f"\nHEALTHCHECK --interval=10s --timeout=5s --start-period={START_SECONDS}s " in CONTAINERFILE


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
    given = NEEDED["patroni"].replace("initdb data-checksums", "data_checksums on").replace("\n", " ")
    assert {f" {name} {value};" for name, value in recommended} <= {*re.findall(r" \w+ \S+;", given)}


PATIENCE_SECONDS = 60.0
UNITS = ("stackmgr.service", "stackmgr.socket", "stackmgr-backup.service", "stackmgr-backup.timer")


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
    check, *scripts = values("postgresql/stackmgr-backup.service", "ExecStart")
    assert check == "pgbackrest --stanza=stackmgr check"
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
    files = int(re.search(r"\bmin\(_hard, (\d+)\)", SETTINGS.read_text())[1])
    given = {
        "Requires": "stackmgr.socket", "After": "stackmgr.socket network-online.target",
        "Wants": "network-online.target", "StartLimitIntervalSec": "0",
        "Type": "notify", "NotifyAccess": "main", "EnvironmentFile": "/etc/stackmgr/stackmgr.env",
        "Restart": "always", "RestartSec": "1",
        # The master alone gets SIGTERM, so that it does not replace workers that end; SIGKILL goes to all.
        "KillMode": "mixed", "OOMPolicy": "continue", "MemoryMax": f"{2 * WORKERS * 512 + 256}M",
        "LimitNOFILE": str(files), "LimitCORE": "0", "LogRateLimitIntervalSec": "0", "DynamicUser": "yes",
        "RuntimeDirectory": "stackmgr", "RuntimeDirectoryMode": "0700", "SystemCallErrorNumber": "EPERM",
        "WantedBy": "multi-user.target", "Also": "stackmgr.socket",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    }  # fmt: skip
    assert service | given == service
    assert f"\n#STACKMGR_METRICS_DIR=/run/{given['RuntimeDirectory']}/metrics\n" in ENVIRONMENT
    assert ENVIRONMENT.startswith(f"# {given['EnvironmentFile']}: ")
    [start], checks = (values(UNITS[0], key) for key in ("ExecStart", "ExecStartPre"))
    assert checks == values(UNITS[0], "ExecReload")[:1] == [start.replace(" -c ", " --check-config -c ")]
    assert int(service["TimeoutStopSec"]) > GRACEFUL_TIMEOUT_SECONDS
    assert int(service["TimeoutStartSec"]) > CHECK_SECONDS + Timeout.default
    assert f" {BUFFER_BUDGET >> 20} that clients make it hold (BUFFER_BUDGET)" in unit(UNITS[0])
    assert int(service["TasksMax"]) >= 2 * WORKERS * (Settings.concurrency + 10)
    [address] = re.findall(r"^ +server (\S+) ", (DEPLOY / "nginx.conf").read_text(), re.MULTILINE)
    assert socket_unit["ListenStream"] == address
    assert socket_unit["WantedBy"] == "sockets.target"
    assert int(socket_unit["Backlog"]) >= Backlog.default
    [admin] = re.findall(r"^#STACKMGR_ADMIN_BIND=(.*)$", ENVIRONMENT, re.MULTILINE)
    assert f"\n#ListenStream={admin}\n" in unit(UNITS[1])
    backup = "".join(unit(f"postgresql/{name}") for name in UNITS[2:])
    lines = "Type=oneshot User=postgres OnCalendar=02:30 Persistent=true WantedBy=timers.target"
    assert {*lines.split()} <= {*backup.splitlines()}


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
