"""deploy/kubernetes.yaml, against the schemas of Kubernetes and what the other files of deploy/ state."""

import re

import kubernetes_validate
import pytest
import yaml

import stackmgr
from tests.deploy.units import DEPLOY, values

OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
JOB, DEPLOYMENT, BUDGET, SERVICE, POLICY = OBJECTS
PODS = {each["kind"]: each["spec"]["template"] for each in (JOB, DEPLOYMENT)}
MIGRATE, SERVE = (pod["spec"]["containers"][0] for pod in PODS.values())
each_pod = pytest.mark.parametrize("kind", PODS)


@pytest.mark.parametrize("release", ["1.29.0", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", ["Job", "Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"])
def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(kind, release):
    [document] = [each for each in OBJECTS if each["kind"] == kind]
    kubernetes_validate.validate(document, release, strict=True)


@each_pod
def test_a_pod_has_no_rights_and_its_secret_in_a_file(kind):
    pod = PODS[kind]["spec"]
    [container] = pod["containers"]
    assert container["image"].endswith(f"/stackmgr:{stackmgr.__version__}")
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"\nUSER {user}:{user}\n" in (DEPLOY / "Containerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    # Kubernetes would set STACKMGR_PORT and the like, as no setting of the service.
    assert pod["enableServiceLinks"] is False
    environ = {each["name"]: each["value"] for each in container["env"]}
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    folder, _, _ = environ["STACKMGR_DATABASE_URL_FILE"].rpartition("/")
    [volume] = [each for each in pod["volumes"] if each["name"] == mounted[folder]]
    assert volume["secret"]["defaultMode"] & 0o007 == 0
    assert "STACKMGR_DATABASE_URL" not in environ


def test_only_the_job_has_the_login_of_the_operator():
    secrets = [pod["spec"]["volumes"][0]["secret"]["secretName"] for pod in PODS.values()]
    assert secrets == ["stackmgr-operator", "stackmgr-service"]


def test_probes_ask_the_admin_listener_which_the_service_does_not_publish():
    environ = {each["name"]: each["value"] for each in SERVE["env"]}
    ports = {each["name"]: each["containerPort"] for each in SERVE["ports"]}
    assert environ["STACKMGR_ADMIN_BIND"] == f"0.0.0.0:{ports['admin']}"
    probes = {name: SERVE[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/live",
        "liveness": "/live",
        "readiness": "/ready",
    }
    assert [port["targetPort"] for port in SERVICE["spec"]["ports"]] == ["http"]
    assert ports["http"] == int(
        re.search(r"^EXPOSE (\d+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[1]
    )


def test_a_pod_is_given_time_to_complete_its_requests_and_to_replace_a_worker():
    graceful = int(
        re.search(r"^graceful_timeout = (\d+)$", (DEPLOY / "gunicorn.conf.py").read_text(), re.MULTILINE)[1]
    )
    [_, pause] = SERVE["lifecycle"]["preStop"]["exec"]["command"]
    assert PODS["Deployment"]["spec"]["terminationGracePeriodSeconds"] > graceful + int(pause)
    liveness = SERVE["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 40


def test_an_upgrade_and_a_drained_node_leave_pods_that_serve():
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert DEPLOYMENT["spec"]["replicas"] > BUDGET["spec"]["maxUnavailable"]
    labels = PODS["Deployment"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert BUDGET["spec"]["selector"]["matchLabels"] == labels
    assert SERVICE["spec"]["selector"] == labels
    assert PODS["Job"]["metadata"]["labels"] != labels


def test_memory_is_bounded_as_under_systemd():
    [memory] = values("stackmgr.service", "MemoryMax")
    assert SERVE["resources"]["limits"]["memory"] == f"{memory}i"


def test_the_operators_port_is_open_to_one_namespace_only():
    of_clients, of_operators = POLICY["spec"]["ingress"]
    assert of_clients == {"ports": [{"port": "http"}]}
    assert [each["port"] for each in of_operators["ports"]] == ["admin"]
    assert of_operators["from"]
    assert POLICY["spec"]["podSelector"]["matchLabels"] == SERVICE["spec"]["selector"]
