"""deploy/kubernetes.yaml, against the schemas of Kubernetes and what the other files of deploy/ state."""

import kubernetes_validate
import pytest
import yaml

import stackmgr
from tests.deploy.units import DEPLOY, GRACEFUL_TIMEOUT_SECONDS, values

OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
JOB, DEPLOYMENT, BUDGET, SERVICE, POLICY = OBJECTS
PODS = {each["kind"]: each["spec"]["template"] for each in (JOB, DEPLOYMENT)}
SERVE = PODS["Deployment"]["spec"]["containers"][0]
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


@pytest.mark.parametrize("release", ["1.29.0", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", OBJECTS, ids=[each["kind"] for each in OBJECTS])
def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(document, release):
    kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.parametrize(("kind", "secret"), [("Job", "operator"), ("Deployment", "service")])
def test_a_pod_has_no_rights_and_its_own_secret_in_a_file(kind, secret):
    pod = PODS[kind]["spec"]
    [container] = pod["containers"]
    assert container["image"].endswith(f"/stackmgr:{stackmgr.__version__}")
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert user > 0
    assert f"\nUSER {user}:{user}\n" in CONTAINERFILE
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
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


def test_probes_ask_the_admin_listener_which_the_service_does_not_publish():
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


def test_a_pod_has_memory_as_under_systemd_and_time_to_complete_its_requests_and_to_replace_a_worker():
    [memory] = values("stackmgr.service", "MemoryMax")
    assert SERVE["resources"]["limits"]["memory"] == f"{memory}i"
    [_, pause] = SERVE["lifecycle"]["preStop"]["exec"]["command"]
    assert PODS["Deployment"]["spec"]["terminationGracePeriodSeconds"] > GRACEFUL_TIMEOUT_SECONDS + int(pause)
    readiness = SERVE["readinessProbe"]
    assert int(pause) >= readiness["periodSeconds"] * readiness["failureThreshold"]
    liveness = SERVE["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 40


def test_an_upgrade_and_a_drained_node_leave_pods_that_serve():
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert DEPLOYMENT["spec"]["replicas"] > BUDGET["spec"]["maxUnavailable"]
    labels = PODS["Deployment"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"]["matchLabels"] for each in (DEPLOYMENT, BUDGET)]
    selectors += [SERVICE["spec"]["selector"], POLICY["spec"]["podSelector"]["matchLabels"]]
    assert selectors == [labels] * 4
    assert PODS["Job"]["metadata"]["labels"] != labels
