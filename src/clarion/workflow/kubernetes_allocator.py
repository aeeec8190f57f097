"""The allocator for Kubernetes: a task's consumers are the replicas of a Deployment.

A task's Deployment has the labels `clarion.workflow` (the workflow's name; empty where it has none) and `clarion.task`,
or the name WORKFLOW-TASK. Characters that Kubernetes does not take are `-` there. Replicas are set through the
Deployment's scale, with the version that was read, so that two who change it at once do not undo each other unseen.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException, OpenApiException

from clarion.model.errors import BadSettings
from clarion.workflow.allocators import AllocationRefused, AllocatorUnavailable

T = TypeVar("T")
WORKFLOW_LABEL = "clarion.workflow"
TASK_LABEL = "clarion.task"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONFLICT, _TOO_MANY, _SERVER_ERROR = 409, 429, 500
_log = logging.getLogger(__name__)


def connect(context: str | None = None) -> tuple[client.ApiClient, str]:
    """Return a client of the cluster that this pod is in, or that kubectl uses, and the namespace to work in."""
    settings = client.Configuration()
    try:
        if context is None and _NAMESPACE_FILE.exists():
            config.load_incluster_config(client_configuration=settings)
            namespace = _NAMESPACE_FILE.read_text().strip()
        else:
            config.load_kube_config(context=context, client_configuration=settings)
            active = config.list_kube_config_contexts()[1]
            namespace = str(active.get("context", {}).get("namespace", "default"))
    except (config.ConfigException, OSError) as error:
        raise BadSettings(f"no Kubernetes cluster can be found: {error}") from error
    settings.retries = 0  # they are counted here
    return client.ApiClient(settings), namespace


class KubernetesDeployments:
    """Sets the replicas of each task's Deployment."""

    def __init__(
        self,
        workflow: str,
        tasks: Iterable[str],
        api: client.ApiClient,
        namespace: str = "default",
        *,
        timeout_s: float = 10.0,
        attempts: int = 5,
        first_delay_s: float = 0.2,
    ) -> None:
        self._workflow = workflow
        self._tasks = tuple(tasks)
        self._api = api
        self._apps = client.AppsV1Api(api)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._first_delay_s = first_delay_s

    def scale(self, consumers: Mapping[str, int]) -> None:
        """Have each task's Deployment get this many replicas. Where one fails, those before it have theirs."""
        found = self._deployments()
        for task, count in consumers.items():
            if task not in found:
                raise AllocationRefused(
                    f"there is no Deployment of task {task} in namespace {self._namespace}: it has the labels"
                    f" {WORKFLOW_LABEL}={label_of(self._workflow)} and {TASK_LABEL}={label_of(task)}, or the name"
                    f" {name_of(self._workflow, task)}"
                )
            name = str(found[task].metadata.name)
            self._call("patch", "deployments/scale", partial(self._set_replicas, name, count))

    def observed(self) -> dict[str, int]:
        """Return how many replicas of each task's Deployment are ready; tasks without a Deployment are left out."""
        return {task: int(one.status.ready_replicas or 0) for task, one in self._deployments().items()}

    def close(self) -> None:
        """Close connections; Deployments stay as they are."""
        self._api.close()

    def _deployments(self) -> dict[str, Any]:
        listed = self._call("list", "deployments", self._list)
        by_label = {
            labels[TASK_LABEL]: one
            for one in listed
            if (labels := one.metadata.labels or {}).get(WORKFLOW_LABEL) == label_of(self._workflow)
            and TASK_LABEL in labels
        }
        by_name = {one.metadata.name: one for one in listed}
        found = {
            task: by_label.get(label_of(task)) or by_name.get(name_of(self._workflow, task)) for task in self._tasks
        }
        return {task: one for task, one in found.items() if one is not None}

    def _list(self) -> list[Any]:
        found = self._apps.list_namespaced_deployment(self._namespace, _request_timeout=self._timeout_s)
        items = list(found.items)
        if any(one.metadata is None or one.status is None for one in items):
            raise ValueError("Deployments without metadata or status")
        return items

    def _set_replicas(self, name: str, count: int) -> None:
        scale = self._apps.read_namespaced_deployment_scale(name, self._namespace, _request_timeout=self._timeout_s)
        if scale.spec is None or scale.metadata is None:
            raise ValueError("a scale without spec or metadata")
        if scale.spec.replicas == count:
            return
        version = scale.metadata.resource_version
        self._apps.patch_namespaced_deployment_scale(
            name,
            self._namespace,
            {"metadata": {"resourceVersion": version}, "spec": {"replicas": count}},
            _request_timeout=self._timeout_s,
        )

    def _call(self, verb: str, resource: str, request: Callable[[], T]) -> T:
        """Return what a request returns; it is made again where somebody else was quicker, or nothing usable came."""
        delay_s, trouble = self._first_delay_s, ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(delay_s)
                delay_s *= 2
            try:
                return request()
            except ApiException as error:
                if error.status in (401, 403):
                    raise self._forbidden(verb, resource, error) from error
                status = int(error.status or 0)
                if status and status not in (_CONFLICT, _TOO_MANY) and status < _SERVER_ERROR:
                    raise AllocationRefused(f"Kubernetes refuses to {verb} {resource}: {_told(error)}") from error
                trouble = _told(error)
            except urllib3.exceptions.HTTPError as error:
                trouble = f"{type(error).__name__}: {error}"
            except (OpenApiException, ValueError, TypeError, AttributeError, KeyError) as error:
                trouble = f"the answer is not what Kubernetes answers ({type(error).__name__}: {error})"
            _log.warning("attempt %d to %s %s failed: %s", attempt + 1, verb, resource, trouble[:500])
        raise AllocatorUnavailable(
            f"Kubernetes did not {verb} {resource} in {self._attempts} attempts; the last one: {trouble[:500]}"
        )

    def _forbidden(self, verb: str, resource: str, error: ApiException) -> AllocationRefused:
        verbs = "get, patch" if resource == "deployments/scale" else verb
        return AllocationRefused(
            f"Kubernetes does not allow to {verb} {resource} in namespace {self._namespace}: {_told(error)}."
            f' The Role needs the rule {{apiGroups: ["apps"], resources: ["{resource}"], verbs: [{verbs}]}},'
            " as in deploy/kubernetes/manager.yaml"
        )


def label_of(name: str) -> str:
    """Return a name as a label's value, which has letters, digits, `-`, `_` and `.`, up to 63."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:63].strip("-_.")


def name_of(workflow: str, task: str) -> str:
    """Return the name of a task's Deployment that has no labels."""
    return re.sub(r"[^a-z0-9-]", "-", f"{workflow}-{task}".lower()).strip("-")


def _told(error: ApiException) -> str:
    """Return what the server said, in a line."""
    return " ".join(f"{error.status} {error.reason}: {error.body or ''}".split())[:500]
