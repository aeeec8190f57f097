"""The KEDA scaler over real gRPC: the plan is what the autoscaler is told, and no plan is an error and not a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from tests.integration.waiting import DEADLINE_S, eventually

from clarion.model.errors import BadSettings, Unreachable
from clarion.workflow.keda_scaler import MESSAGES, METRIC, SERVICE, KedaScaler


class Plans:
    """A source of plans that can fail."""

    def __init__(self) -> None:
        self.plan: dict[str, int] = {"A": 3, "B": 1}
        self.broken = False

    def __call__(self) -> Mapping[str, int]:
        if self.broken:
            raise Unreachable("no broker answers")
        return self.plan


class Keda:
    """What KEDA does."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def call(self, method: str, request: Any, answer: str) -> Any:
        called = self._channel.unary_unary(
            f"/{SERVICE}/{method}", type(request).SerializeToString, MESSAGES[answer].FromString
        )
        return called(request, timeout=DEADLINE_S)

    def stream(self, task: str) -> Any:
        request = reference(task)
        return self._channel.unary_stream(
            f"/{SERVICE}/StreamIsActive", type(request).SerializeToString, MESSAGES["IsActiveResponse"].FromString
        )(request)

    def metric(self, task: str) -> float:
        request = MESSAGES["GetMetricsRequest"](scaledObjectRef=reference(task), metricName=METRIC)
        (value,) = self.call("GetMetrics", request, "GetMetricsResponse").metricValues
        assert value.metricName == METRIC
        assert value.metricValue == value.metricValueFloat
        return float(value.metricValueFloat)


def reference(task: str) -> Any:
    metadata = {"task": task} if task else {}
    return MESSAGES["ScaledObjectRef"](name="workers-a", namespace="default", scalerMetadata=metadata)


@pytest.fixture
def plans() -> Plans:
    return Plans()


@pytest.fixture
def keda(plans: Plans) -> Iterator[Keda]:
    scaler = KedaScaler(plans, "127.0.0.1:0")
    with grpc.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:
        yield Keda(channel)
    scaler.close()


def test_the_metric_is_the_planned_consumers_with_a_target_of_one_each(keda: Keda, plans: Plans) -> None:
    (spec,) = keda.call("GetMetricSpec", reference("A"), "GetMetricSpecResponse").metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)
    assert keda.metric("A") == 3
    plans.plan = {"A": 5}
    assert keda.metric("A") == 5


def test_a_task_is_active_while_consumers_are_planned_for_it(keda: Keda, plans: Plans) -> None:
    assert keda.call("IsActive", reference("A"), "IsActiveResponse").result
    plans.plan = {"A": 0}
    assert not keda.call("IsActive", reference("A"), "IsActiveResponse").result


def test_a_stream_tells_when_a_task_becomes_active(keda: Keda, plans: Plans) -> None:
    plans.plan = {"A": 0}
    stream = keda.stream("A")
    assert not next(stream).result
    plans.plan = {"A": 2}
    assert next(stream).result
    stream.cancel()


@pytest.mark.parametrize(
    ("task", "broken", "code"),
    [
        ("", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("Z", False, grpc.StatusCode.NOT_FOUND),
        ("A", True, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_what_has_no_plan_is_an_error_and_the_scaler_lives_on(
    keda: Keda, plans: Plans, task: str, broken: bool, code: Any
) -> None:
    plans.broken = broken
    with pytest.raises(grpc.RpcError) as refused:
        keda.metric(task)
    assert refused.value.code() == code
    plans.broken = False
    assert keda.metric("A") == 3


def test_more_streams_than_there_may_be_leave_room_for_calls(keda: Keda) -> None:
    streams = [keda.stream("A") for _ in range(40)]

    def refused() -> int:
        return sum(stream.done() and stream.code() == grpc.StatusCode.RESOURCE_EXHAUSTED for stream in streams)

    eventually(refused, "some are refused")
    assert keda.metric("A") == 3
    for stream in streams:
        stream.cancel()


def test_garbage_is_refused_and_the_scaler_lives_on(keda: Keda) -> None:
    garbage = keda._channel.unary_unary(f"/{SERVICE}/GetMetrics")
    with pytest.raises(grpc.RpcError):
        garbage(b"\xff\xff\xff", timeout=DEADLINE_S)
    with pytest.raises(grpc.RpcError) as unknown:
        keda.call("NoSuchCall", reference("A"), "IsActiveResponse")
    assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert keda.metric("A") == 3


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"256\.0\.0\.1"):
        KedaScaler(Plans(), "256.0.0.1:nonsense")


def test_messages_are_on_the_wire_as_keda_writes_them() -> None:
    request = MESSAGES["GetMetricsRequest"](scaledObjectRef=reference("A"), metricName="m")
    metadata = b"\x1a\x09\x0a\x04task\x12\x01A"
    scaled = b"\x0a\x09workers-a\x12\x07default" + metadata
    assert request.SerializeToString() == b"\x0a" + bytes([len(scaled)]) + scaled + b"\x12\x01m"
    value = MESSAGES["MetricValue"](metricName="m", metricValue=2, metricValueFloat=2.0)
    assert value.SerializeToString() == b"\x0a\x01m\x10\x02\x19" + b"\x00" * 7 + b"\x40"
