"""That the difference engine tells what a person would, over the pairs that are kept; see difference_quality."""

from __future__ import annotations

import pytest
from tests.unit.feeds.difference_quality import Outcome, outcome, pairs, quality


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [outcome(pair) for pair in pairs()]


def test_nearly_all_that_is_told_is_what_a_person_would_tell(outcomes: list[Outcome]) -> None:
    assert quality(outcomes).precision > 0.88


def test_nearly_all_that_a_person_would_tell_is_told(outcomes: list[Outcome]) -> None:
    assert quality(outcomes).recall > 0.96


def test_pairs_that_the_engine_was_not_made_with_are_told_nearly_as_well(outcomes: list[Outcome]) -> None:
    found = quality(one for one in outcomes if one.pair.held_out)
    assert found.precision > 0.79
    assert found.recall > 0.96


def test_pairs_of_each_kind_are_kept(outcomes: list[Outcome]) -> None:
    forms = [one.form for one in outcomes]
    assert min(forms.count("feed"), forms.count("page")) > 30
    assert sum(not one.pair.changes for one in outcomes) > 50, "noise alone must be told from changes"
    assert len({one.pair.name for one in outcomes}) == len(outcomes)
