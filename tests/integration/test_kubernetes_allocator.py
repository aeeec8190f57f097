"""The allocator for Kubernetes over real HTTP, against a small stand-in of its API with its faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from kubernetes import client

from clarion.model.errors import BadSettings
from clarion.workflow.allocators import AllocationRefused, Allocator, AllocatorUnavailable
from clarion.workflow.kubernetes_allocator import KubernetesDeployments, connect, label_of, name_of

PREFIX = "/apis/apps/v1/namespaces/lab/deployments"


class ApiServer(ThreadingHTTPServer):
    """Deployments by name, and faults that wait for requests of a method."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.deployments: dict[str, dict[str, Any]] = {}
        self.faults: list[tuple[str, str]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, labels: dict[str, str], replicas: int = 1, ready: int | None = 1) -> None:
        self.deployments[name] = {"labels": labels, "replicas": replicas, "ready": ready, "version": 1}

    def replicas(self) -> dict[str, int]:
        return {name: one["replicas"] for name, one in self.deployments.items()}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # who asked is gone


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        self._answer("GET", None)

    def do_PATCH(self) -> None:
        self._answer("PATCH", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, method: str, body: Any) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append((method, path, body))
        for fault in self.server.faults:
            if fault[0] == method:
                self.server.faults.remove(fault)
                if self._fail(fault[1], path):
                    return None
                break
        if path == PREFIX:
            items = [_deployment(name, one) for name, one in self.server.deployments.items()]
            return self._send(200, {"kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": {}, "items": items})
        name = path.removeprefix(f"{PREFIX}/").removesuffix("/scale")
        one = self.server.deployments.get(name)
        if one is None or not path.endswith("/scale"):
            return self._send(404, _status(404, "NotFound"))
        if method == "PATCH":
            if body["metadata"]["resourceVersion"] != str(one["version"]):
                return self._send(409, _status(409, "Conflict"))
            one["replicas"], one["version"] = body["spec"]["replicas"], one["version"] + 1
        return self._send(200, _scale(name, one))

    def _fail(self, fault: str, path: str) -> bool:
        """Do what the fault does, and tell whether that was the answer."""
        match fault:
            case "somebody else is quicker":
                one = self.server.deployments[path.removeprefix(f"{PREFIX}/").removesuffix("/scale")]
                one["replicas"], one["version"] = 7, one["version"] + 1
                return False
            case "hangs":
                self.server.over.wait()
            case "breaks off":
                self.close_connection = True
            case "garbage":
                self._send(200, "{this is no JSON")
            case "another thing":
                self._send(200, {"kind": "Table", "items": [{"rows": 3}], "spec": None})
            case _:
                self._send(int(fault), _status(int(fault), "Reason"))
        return True

    def _send(self, code: int, body: Any) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _deployment(name: str, one: dict[str, Any]) -> dict[str, Any]:
    pod = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "worker", "image": "x"}]}}
    return {
        "metadata": {"name": name, "namespace": "lab", "labels": one["labels"], "resourceVersion": str(one["version"])},
        "spec": {"replicas": one["replicas"], "selector": {"matchLabels": {"app": name}}, "template": pod},
        "status": {} if one["ready"] is None else {"readyReplicas": one["ready"], "replicas": one["replicas"]},
    }


def _scale(name: str, one: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {"name": name, "namespace": "lab", "resourceVersion": str(one["version"])},
        "spec": {"replicas": one["replicas"]},
        "status": {"replicas": one["ready"] or 0},
    }


def _status(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.add("align-workers", {"clarion.workflow": "microscopy", "clarion.task": "align"})
    server.add("microscopy-count", {"app": "by-hand"}, ready=None)
    server.add("align-elsewhere", {"clarion.workflow": "other", "clarion.task": "align"}, replicas=4)
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def allocator(server: ApiServer) -> Iterator[KubernetesDeployments]:
    yield from _allocators(server, timeout_s=60.0)


@pytest.fixture
def hasty(server: ApiServer) -> Iterator[KubernetesDeployments]:
    """One that does not wait long for an answer."""
    yield from _allocators(server, timeout_s=0.2)


def _allocators(server: ApiServer, timeout_s: float) -> Iterator[KubernetesDeployments]:
    settings = client.Configuration(host=server.url)
    settings.retries = 0
    found = KubernetesDeployments(
        "microscopy", ["align", "count"], client.ApiClient(settings), "lab",
        timeout_s=timeout_s, attempts=3, first_delay_s=0.001,
    )  # fmt: skip
    yield found
    found.close()


def test_replicas_are_set_by_label_or_by_name_with_the_version_that_was_read(
    server: ApiServer, allocator: Allocator
) -> None:
    allocator.scale({"align": 3, "count": 2})
    assert server.replicas() == {"align-workers": 3, "microscopy-count": 2, "align-elsewhere": 4}
    patches = [body for method, _, body in server.requests if method == "PATCH"]
    assert patches[0] == {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 3}}
    allocator.scale({"align": 3})
    assert len([1 for method, _, _ in server.requests if method == "PATCH"]) == 2  # nothing to change


def test_observed_are_the_replicas_that_are_ready(server: ApiServer, allocator: Allocator) -> None:
    server.deployments["align-workers"].update(replicas=5, ready=3)
    assert allocator.observed() == {"align": 3, "count": 0}


def test_a_conflict_is_tried_again_with_the_version_of_who_was_quicker(server: ApiServer, allocator: Allocator) -> None:
    server.faults = [("PATCH", "somebody else is quicker")]
    allocator.scale({"align": 3})
    assert server.replicas()["align-workers"] == 3
    assert server.deployments["align-workers"]["version"] == 3


@pytest.mark.parametrize("fault", ["500", "503", "429", "409", "breaks off", "garbage"])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_fault_that_passes_is_tried_again(server: ApiServer, allocator: Allocator, method: str, fault: str) -> None:
    server.faults = [(method, fault)] * 2
    allocator.scale({"align": 3})
    assert server.replicas()["align-workers"] == 3
    assert not server.faults


@pytest.mark.parametrize("fault", ["500", "409", "breaks off", "garbage", "another thing"])
def test_a_fault_that_stays_is_a_typed_error_that_may_pass_later(
    server: ApiServer, allocator: Allocator, fault: str
) -> None:
    server.faults = [("GET", fault)] * 3
    with pytest.raises(AllocatorUnavailable, match="3 attempts"):
        allocator.observed()
    assert allocator.observed() == {"align": 1, "count": 0}


def test_a_server_that_does_not_answer_is_given_up(server: ApiServer, hasty: Allocator) -> None:
    server.faults = [("GET", "hangs")] * 3
    with pytest.raises(AllocatorUnavailable, match="timed out"):
        hasty.observed()


def test_a_server_that_is_gone_is_a_typed_error() -> None:
    server = ApiServer()
    server.server_close()
    for allocator in _allocators(server, timeout_s=60.0):
        with pytest.raises(AllocatorUnavailable, match="refused"):
            allocator.scale({"align": 1})


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("GET", r'resources: \["deployments"\], verbs: \[list\]'),
        ("PATCH", r'resources: \["deployments/scale"\], verbs: \[get, patch\]'),
    ],
)
def test_what_is_forbidden_names_the_rule_that_is_missing_and_is_not_tried_again(
    server: ApiServer, allocator: Allocator, method: str, rule: str
) -> None:
    server.faults = [(method, "403")]
    with pytest.raises(AllocationRefused, match=rule):
        allocator.scale({"align": 3})
    assert server.replicas()["align-workers"] == 1


def test_a_request_that_is_refused_is_not_tried_again(server: ApiServer, allocator: Allocator) -> None:
    server.faults = [("PATCH", "422")]
    with pytest.raises(AllocationRefused, match="422"):
        allocator.scale({"align": 3})


def test_a_task_without_a_deployment_is_refused_with_what_it_would_have(
    server: ApiServer, allocator: Allocator
) -> None:
    del server.deployments["microscopy-count"]
    with pytest.raises(AllocationRefused, match=r"clarion\.task=count, or the name microscopy-count"):
        allocator.scale({"count": 1})
    assert allocator.observed() == {"align": 1}


def test_names_become_what_kubernetes_takes() -> None:
    assert label_of("lab/Zählung 1") == "lab-Z-hlung-1"
    assert label_of("") == ""
    assert name_of("", "Count_All") == "count-all"
    assert len(label_of("x" * 100)) == 63


def test_where_there_is_no_cluster_that_is_said(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(BadSettings, match="no Kubernetes cluster"):
        connect()
