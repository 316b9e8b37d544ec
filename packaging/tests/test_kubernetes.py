"""The manifests of Kubernetes, rendered by kustomize and checked by the schemas of the API."""

import re

import kubernetes_validate
import pytest
import yaml
from conftest import PACKAGING, program, run

KUBERNETES = PACKAGING / "kubernetes"
BUILDS = ["base", "overlays/example"]
# Resources of operators that clusters may have; the API of Kubernetes has no schema of them.
OTHERS = {"ServiceMonitor"}


def rendered(build: str) -> list[dict]:
    return list(yaml.safe_load_all(run(program("kubectl"), "kustomize", str(KUBERNETES / build))))


def of(build: str, kind: str, name: str) -> dict:
    found = [it for it in rendered(build) if it["kind"] == kind and re.sub(r"-[a-z0-9]{10}$", "", it["metadata"]["name"]) == name]
    assert len(found) == 1, (kind, name, found)
    return found[0]


def configuration() -> dict:
    return yaml.safe_load(of("base", "ConfigMap", "tooldock")["data"]["tooldock.yaml"])


@pytest.mark.parametrize("build", BUILDS)
def test_manifests_fit_the_schemas_of_kubernetes(build: str) -> None:
    resources = rendered(build)
    assert len(resources) >= 10
    for resource in resources:
        if resource["kind"] in OTHERS:
            assert resource["apiVersion"] and resource["metadata"]["name"]
            continue
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_a_key_that_kubernetes_does_not_know_is_refused() -> None:
    resource = of("base", "StatefulSet", "tooldock")
    resource["spec"]["template"]["spec"]["terminationGracePeriod"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["tooldock", "valkey"])
@pytest.mark.parametrize("build", BUILDS)
def test_pods_are_confined_as_the_level_restricted_asks(build: str, name: str) -> None:
    pod = of(build, "StatefulSet", name)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_a_pod_has_more_time_to_end_than_its_pause_and_requests_have() -> None:
    pod = of("base", "StatefulSet", "tooldock")["spec"]["template"]["spec"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = int(configuration()["replicas"]["grace"].removesuffix("s"))
    assert pod["terminationGracePeriodSeconds"] > pause + 2 * grace


def test_probes_ask_the_metrics_listener() -> None:
    container = of("base", "StatefulSet", "tooldock")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listeners = {it["profile"]: int(it["address"].rsplit(":", 1)[1]) for it in configuration()["listeners"]}
    assert (ports["core"], ports["metrics"]) == (listeners["core"], listeners["metrics"])
    assert ports["replicas"] == int(configuration()["replicas"]["address"].rsplit(":", 1)[1])
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {it["port"] for it in paths.values()} == {"metrics"}
    assert paths["readinessProbe"]["path"] == "/ready"
    assert paths["livenessProbe"]["path"] == paths["startupProbe"]["path"] == "/health"


def test_replicas_are_named_by_their_pods_and_found_by_the_headless_service() -> None:
    stateful = of("base", "StatefulSet", "tooldock")
    assert stateful["spec"]["replicas"] == 2
    container = stateful["spec"]["template"]["spec"]["containers"][0]
    fields = {it["name"]: it["valueFrom"]["fieldRef"]["fieldPath"] for it in container["env"] if "valueFrom" in it}
    assert fields == {"REPLICA_ID": "metadata.name", "POD_IP": "status.podIP"}
    name, port = configuration()["replicas"]["peers"].removeprefix("dns:").split(":")
    service = of("base", "Service", name)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert int(port) in {it["port"] for it in service["spec"]["ports"]}
    assert stateful["spec"]["serviceName"] == name


def test_secrets_are_files_of_a_secret_that_no_manifest_holds() -> None:
    resources = rendered("overlays/example")
    assert not [it for it in resources if it["kind"] == "Secret"]
    container = of("base", "StatefulSet", "tooldock")["spec"]["template"]["spec"]["containers"][0]
    files = {it["name"]: it["value"] for it in container["env"] if it["name"].endswith("_FILE")}
    mount = next(it["mountPath"] for it in container["volumeMounts"] if it["name"] == "secrets")
    assert len(files) == 4 and all(value.startswith(f"{mount}/") for value in files.values())
    assert f"password_file={mount}/valkey_password" in configuration()["sessions"]["store"]
    # The page that says how the Secret is made names each file.
    page = (PACKAGING.parent / "docs/kubernetes.md").read_text()
    for value in [*files.values(), "valkey_password"]:
        assert f"--from-file={value.rsplit('/', 1)[-1]}" in page, value


def test_the_port_between_replicas_is_open_to_replicas_alone() -> None:
    policy = of("base", "NetworkPolicy", "tooldock")["spec"]
    rules = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert rules["replicas"] == [{"podSelector": policy["podSelector"]}]
    valkey = of("base", "NetworkPolicy", "valkey")["spec"]
    assert valkey["ingress"][0]["from"] == [{"podSelector": policy["podSelector"]}]
