"""A KEDA external scaler: a cluster's autoscaler asks it over gRPC, and follows the plan.

The metric of a task is how many consumers are planned for it, with a target of 1 for each replica, so that there are as
many replicas as planned. The trigger's metadata names the task. Where there is no plan the call fails; then replicas
stay as they are, or become what the ScaledObject's `fallback` says.

The service is externalscaler.ExternalScaler of KEDA 2; its messages are described here, so nothing is generated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from clarion.model.errors import BadSettings, ClarionError

PlanSource: TypeAlias = Callable[[], Mapping[str, int]]  # consumers by task; a ClarionError where there is no plan yet
SERVICE = "externalscaler.ExternalScaler"
METRIC = "planned-consumers"
_THREADS = 32
_MAX_STREAMS = 24  # each has a thread, and others must be answered beside them
_LOOK_S = 1.0  # how often a stream looks whether a task became active
_log = logging.getLogger(__name__)

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ScaledObjectRef": {"name": (1, "string"), "namespace": (2, "string"), "scalerMetadata": (3, "map")},
    "IsActiveResponse": {"result": (1, "bool")},
    "MetricSpec": {"metricName": (1, "string"), "targetSize": (2, "int64"), "targetSizeFloat": (3, "double")},
    "GetMetricSpecResponse": {"metricSpecs": (1, "[MetricSpec]")},
    "GetMetricsRequest": {"scaledObjectRef": (1, "ScaledObjectRef"), "metricName": (2, "string")},
    "MetricValue": {"metricName": (1, "string"), "metricValue": (2, "int64"), "metricValueFloat": (3, "double")},
    "GetMetricsResponse": {"metricValues": (1, "[MetricValue]")},
}


def _described() -> dict[str, Any]:
    """Return the classes of the messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="clarion/externalscaler.proto", package="externalscaler", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL, "int64": kinds.TYPE_INT64}
    scalars["double"] = kinds.TYPE_DOUBLE
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            repeated = kind == "map" or kind.startswith("[")
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            one = message.field.add(name=name, number=number, label=label)
            if kind in scalars:
                one.type = scalars[kind]
                continue
            one.type = kinds.TYPE_MESSAGE
            one.type_name = f".externalscaler.{kind.strip('[]')}"
            if kind == "map":  # a map is a list of entries of a key and a value
                entry_name = f"{name[0].upper()}{name[1:]}Entry"
                one.type_name = f".externalscaler.{message_name}.{entry_name}"
                entry = message.nested_type.add(name=entry_name)
                entry.options.map_entry = True
                for part_number, part in enumerate(("key", "value"), 1):
                    entry.field.add(name=part, number=part_number, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{name}"))
        for name in _MESSAGES
    }


MESSAGES = _described()


class KedaScaler:
    """Answers KEDA at an address until it is closed."""

    def __init__(self, plan: PlanSource, listen: str) -> None:
        self._plan = plan
        self._closing = threading.Event()
        self._streams = threading.Semaphore(_MAX_STREAMS)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, "clarion-keda"), maximum_concurrent_rpcs=4 * _THREADS)
        unary, streamed = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "IsActive": unary(self._is_active, *_codec("ScaledObjectRef")),
            "StreamIsActive": streamed(self._stream_is_active, *_codec("ScaledObjectRef")),
            "GetMetricSpec": unary(self._metric_spec, *_codec("ScaledObjectRef")),
            "GetMetrics": unary(self._metrics, *_codec("GetMetricsRequest")),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        try:
            self.port: int = self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise BadSettings(f"KEDA cannot be answered at {listen}: {error}") from error
        self._server.start()

    def close(self) -> None:
        """Answer what was asked, and stop."""
        self._closing.set()
        self._server.stop(grace=2.0).wait()

    # The calls.

    def _is_active(self, reference: Any, context: Any) -> Any:
        return MESSAGES["IsActiveResponse"](result=self._planned(reference, context) > 0)

    def _stream_is_active(self, reference: Any, context: Any) -> Iterator[Any]:
        """Tell whether a task is active, and again whenever that changes."""
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"there are {_MAX_STREAMS} streams already")
        try:
            told: bool | None = None
            while context.is_active() and not self._closing.is_set():
                active = self._planned(reference, context) > 0
                if active is not told:
                    told = active
                    yield MESSAGES["IsActiveResponse"](result=active)
                self._closing.wait(_LOOK_S)
        finally:
            self._streams.release()

    def _metric_spec(self, reference: Any, context: Any) -> Any:
        _task_of(reference, context)
        spec = MESSAGES["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return MESSAGES["GetMetricSpecResponse"](metricSpecs=[spec])

    def _metrics(self, request: Any, context: Any) -> Any:
        planned = self._planned(request.scaledObjectRef, context)
        name = request.metricName or METRIC
        value = MESSAGES["MetricValue"](metricName=name, metricValue=planned, metricValueFloat=float(planned))
        return MESSAGES["GetMetricsResponse"](metricValues=[value])

    def _planned(self, reference: Any, context: Any) -> int:
        task = _task_of(reference, context)
        try:
            plan = self._plan()
        except (ClarionError, OSError) as error:
            _log.warning("KEDA asks for %s, and there is no plan: %s", task, error)
            context.abort(grpc.StatusCode.UNAVAILABLE, f"there is no plan: {error}")
        if task not in plan:
            context.abort(grpc.StatusCode.NOT_FOUND, f"the plan has no task {task}; it has {', '.join(plan)}")
        return plan[task]


def _codec(request: str) -> tuple[Any, Any]:
    return MESSAGES[request].FromString, lambda answer: answer.SerializeToString()


def _task_of(reference: Any, context: Any) -> str:
    task = reference.scalerMetadata.get("task", "")
    if not task:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the trigger's metadata has no task: write task: NAME")
    return str(task)
