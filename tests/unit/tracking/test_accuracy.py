"""What accuracy asks of filters and clocks (Theorem 1, Corollary 2), and what is refused."""

from __future__ import annotations

import pytest

from clarion.tracking.accuracy import Accuracy, CannotKeep, efpp_of, fpp_for


def test_five_nines_with_two_filters_is_the_documents_example() -> None:
    assert fpp_for(1e-5, 2) == pytest.approx(5e-6, rel=1e-4)
    assert efpp_of(fpp_for(1e-5, 2), 2) == pytest.approx(1e-5)
    shape = Accuracy(efpp=1e-5).shape(2521)
    assert shape.bits / 2521 == pytest.approx(26, abs=0.7)


def test_clocks_that_could_put_a_stamp_into_three_filters_are_refused_with_what_would_do() -> None:
    Accuracy(capacity=1000, peak_per_s=5000, skew_s=0.1)
    with pytest.raises(ValueError, match=r"more than 2 filters .* skew_s at most 0\.1,"):
        Accuracy(capacity=1000, peak_per_s=5000, skew_s=0.101)
    with pytest.raises(ValueError, match=r"skew_s at most 0\.05,"):
        Accuracy(capacity=1000, peak_per_s=5000, skew_s=0.1, jitter_s=0.1)
    Accuracy(capacity=1000, peak_per_s=5000, skew_s=0.2, overlap=2)


def test_a_filter_that_is_made_before_it_is_full_lasts_no_longer_than_that() -> None:
    assert Accuracy(capacity=10_000, peak_per_s=100, persist_s=2.0).filter_min_s == 2.0
    assert Accuracy(peak_per_s=1).filter_min_s == 600.0
    with pytest.raises(CannotKeep, match=r"lasts 0\.1 s: more than 2 filters .* many keys would stay exact") as told:
        Accuracy(capacity=10_000, peak_per_s=100, persist_s=0.1)
    assert told.value.peak_max_per_s == 0.0, "however few there are"


@pytest.mark.parametrize(
    "wrong",
    [{"efpp": 0.0}, {"efpp": 1.0}, {"overlap": -1}, {"capacity": 0}, {"skew_s": -1.0}, {"persist_s": 0.0},
     {"peak_per_s": 0.0}, {"jitter_s": float("inf")}, {"skew_s": float("nan")}],
)  # fmt: skip
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not "):
        Accuracy(**wrong)  # type: ignore[arg-type]
