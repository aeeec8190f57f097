"""Values as they travel between tasks."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from clarion.model.errors import PermanentError
from clarion.workflow import Reference
from clarion.workflow.job_messages import pack, unpack


def test_a_reference_travels_inside_of_other_values() -> None:
    reference = Reference.of([3], 5, "abc")
    assert unpack(pack({"image": reference})) == {"image": str(reference)}
    assert unpack(pack([reference])) == [reference]


def test_a_single_number_of_numpy_travels_as_a_number() -> None:
    value = {"cells": np.int64(3), "area": np.float32(0.5), "sharp": np.bool_(True)}
    assert unpack(pack(value)) == {"cells": 3, "area": 0.5, "sharp": True}


def test_an_array_is_refused_with_what_to_do() -> None:
    with pytest.raises(PermanentError, match="ndarray; of an array, give its bytes or tolist"):
        pack({"image": np.zeros(3)})


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": (1, {"b": -math.inf})}, {"x": np.float64("nan")}])
def test_a_number_that_json_has_not_is_refused_and_does_not_become_none(value: Any) -> None:
    with pytest.raises(PermanentError, match=r"JSON can hold.*(nan|inf)"):
        pack(value)


def test_nothing_beside_none_is_looked_at_with_other_eyes() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert unpack(pack({"a": None, "at": moment, "n": 2**70, "t": "null"})) == {
        "a": None, "at": "2026-01-01T00:00:00Z", "n": 2**70, "t": "null",
    }  # fmt: skip
    deep: Any = None
    for _ in range(500):
        deep = [deep]
    assert unpack(pack(deep)) == deep
