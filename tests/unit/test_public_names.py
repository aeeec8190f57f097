"""Whatever `clarion` says it has can be imported from it."""

from __future__ import annotations

import pytest

import clarion
import clarion.admin


@pytest.mark.parametrize("name", clarion.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert hasattr(clarion, name)


def test_what_a_user_of_links_catches_or_annotates_is_there() -> None:
    wanted = {"LinkDescription", "LinkedBroker", "LinksDescription", "ReadOnly", "SubscribeOutcome", "Trace"}
    assert wanted <= set(clarion.__all__)
    assert issubclass(clarion.ReadOnly, clarion.ClarionError)
    assert clarion.Trace is clarion.admin.Trace


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = clarion.nonsense
