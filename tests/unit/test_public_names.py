"""Whatever `clarion` says it has can be imported from it."""

from __future__ import annotations

import pytest

import clarion


@pytest.mark.parametrize("name", clarion.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert hasattr(clarion, name)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = clarion.nonsense
