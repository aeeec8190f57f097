"""The manifests in deploy/: valid for Kubernetes, and in agreement with the workflow, the allocator and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from clarion.workflow.definition import Workflow, from_yaml
from clarion.workflow.kubernetes_allocator import TASK_LABEL, WORKFLOW_LABEL, label_of, name_of

DEPLOY = Path(__file__).parents[3] / "deploy"
FILES = sorted(DEPLOY.glob("*/*.yaml"))
MANIFESTS: list[tuple[str, dict[str, Any]]] = [
    (file.relative_to(DEPLOY).as_posix(), one) for file in FILES for one in yaml.safe_load_all(file.read_text())
]


def of_kind(kind: str, folder: str = "") -> list[dict[str, Any]]:
    return [one for file, one in MANIFESTS if one["kind"] == kind and file.startswith(folder)]


@pytest.fixture
def flow() -> Workflow:
    (found,) = of_kind("ConfigMap")
    return from_yaml(found["data"]["workflow.yaml"]).check()


@pytest.mark.parametrize(
    ("file", "manifest"),
    [pytest.param(*one, id=f"{one[0]}-{one[1]['kind']}-{place}") for place, one in enumerate(MANIFESTS)],
)
def test_a_manifest_is_what_kubernetes_takes(file: str, manifest: dict[str, Any]) -> None:
    if manifest["kind"] == "ScaledObject":  # KEDA's own: its fields are looked at below
        assert manifest["apiVersion"] == "keda.sh/v1alpha1"
        return
    kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_each_task_has_a_deployment_that_the_allocator_finds(flow: Workflow) -> None:
    workers = [one for one in of_kind("Deployment") if TASK_LABEL in one["metadata"].get("labels", {})]
    found = {one["metadata"]["labels"][TASK_LABEL]: one for one in workers}
    assert set(found) == {label_of(task) for task in flow.tasks}
    for task in flow.tasks:
        one = found[label_of(task)]
        assert one["metadata"]["labels"][WORKFLOW_LABEL] == label_of(flow.name)
        assert one["metadata"]["name"] == name_of(flow.name, task)
        assert "replicas" not in one["spec"]  # or what is applied again would undo the plan
        args = one["spec"]["template"]["spec"]["containers"][0]["args"]
        assert args[args.index("--task") + 1] == task


def test_pods_have_the_labels_that_their_deployment_and_service_select() -> None:
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind("Deployment") + of_kind("StatefulSet")]
    for one in of_kind("Deployment") + of_kind("StatefulSet"):
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    for service in of_kind("Service"):
        assert service["spec"]["selector"] in pods


def test_the_manager_may_do_what_the_allocator_does_and_nothing_else() -> None:
    (role,), (binding,), (account,) = of_kind("Role"), of_kind("RoleBinding"), of_kind("ServiceAccount")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {
        ("deployments", "get"), ("deployments", "list"), ("deployments/scale", "get"), ("deployments/scale", "patch"),
    }  # fmt: skip
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    manager = next(one for one in of_kind("Deployment", "kubernetes/") if "manager" in one["metadata"]["name"])
    assert manager["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_keda_scales_each_task_by_the_scaler_and_nobody_else_does(flow: Workflow) -> None:
    services = {one["metadata"]["name"]: one for one in of_kind("Service", "keda/")}
    scaled = {one["spec"]["scaleTargetRef"]["name"]: one["spec"] for one in of_kind("ScaledObject")}
    assert set(scaled) == {name_of(flow.name, task) for task in flow.tasks}
    for task in flow.tasks:
        (trigger,) = scaled[name_of(flow.name, task)]["triggers"]
        assert (trigger["type"], trigger["metricType"], trigger["metadata"]["task"]) == (
            "external",
            "AverageValue",
            task,
        )
        host, port = trigger["metadata"]["scalerAddress"].split(":")
        assert services[host.split(".")[0]]["spec"]["ports"][0]["port"] == int(port)
    (manager,) = (one for one in of_kind("Deployment", "keda/") if "manager" in one["metadata"]["name"])
    args = manager["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--allocator") + 1] == "none"
    (scaler,) = (one for one in of_kind("Deployment", "keda/") if "scaler" in one["metadata"]["name"])
    assert scaler["spec"]["template"]["spec"]["containers"][0]["args"][:3] == ["workflow", "keda-scaler", flow.name]
