"""Values as they travel between tasks."""

from __future__ import annotations

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
