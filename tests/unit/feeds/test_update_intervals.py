"""How often channels change, found from polls that see at most one change each."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from clarion.feeds.update_intervals import UNCHANGED_S, UpdateIntervals, update_intervals

POLL_S = 1800.0


def estimate(gaps_s: NDArray[np.float64], changed: NDArray[np.bool_]) -> UpdateIntervals:
    """Return what is found of channels, a row for each, with a gap and whether a change was found for each look."""
    count, looks = gaps_s.shape
    channels = np.repeat(np.arange(count), looks).reshape(gaps_s.shape)
    return update_intervals(
        gaps_s[changed], channels[changed], unchanged_s=(gaps_s * ~changed).sum(axis=1), looks=np.full(count, looks)
    )


def watch(interval_s: float, gaps_s: NDArray[np.float64], dice: np.random.Generator) -> NDArray[np.bool_]:
    """Return which looks find a change of channels that change by chance, by counting the changes in every gap."""
    return dice.poisson(gaps_s / interval_s) > 0


def spaced(kind: str, dice: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float64]:
    if kind == "evenly":
        return np.full(size, POLL_S)
    if kind == "at random":
        return dice.exponential(POLL_S, size)
    return np.where(dice.random(size) < 0.1, dice.exponential(9 * POLL_S, size), dice.exponential(POLL_S / 9, size))


@pytest.mark.parametrize("kind", ["evenly", "at random", "in bursts"])
@pytest.mark.parametrize("interval_s", [600.0, 1800.0, 7200.0, 36_000.0])
def test_the_true_interval_is_found_however_polls_are_spaced(kind: str, interval_s: float) -> None:
    dice = np.random.default_rng(3)
    gaps_s = spaced(kind, dice, (20, 5000))
    found = estimate(gaps_s, watch(interval_s, gaps_s, dice))
    assert found.measured.all()
    assert found.update_interval_s == pytest.approx(interval_s, rel=0.15)
    assert np.mean(found.update_interval_s) == pytest.approx(interval_s, rel=0.03)


def test_the_rate_is_hardly_biased_with_few_polls_where_counting_changes_is_far_off() -> None:
    dice = np.random.default_rng(4)
    gaps_s = spaced("at random", dice, (4000, 50))
    changed = watch(POLL_S, gaps_s, dice)
    found = estimate(gaps_s, changed)
    counted = changed.sum(axis=1) / gaps_s.sum(axis=1)
    assert np.mean(1 / found.update_interval_s) == pytest.approx(1 / POLL_S, rel=0.03)
    assert np.mean(counted) < 0.6 / POLL_S


def test_the_range_holds_the_true_interval_in_95_of_100_cases() -> None:
    dice = np.random.default_rng(5)
    gaps_s = spaced("at random", dice, (4000, 100))
    found = estimate(gaps_s, watch(2 * POLL_S, gaps_s, dice))
    held = (found.low_s < 2 * POLL_S) & (found.high_s > 2 * POLL_S)
    assert held.mean() == pytest.approx(0.95, abs=0.02)


def test_changes_that_a_hub_told_of_count_at_their_moment() -> None:
    dice = np.random.default_rng(6)
    gaps_s = dice.exponential(POLL_S, (20, 2000))  # from one change to the next: nothing else makes anybody look
    channels = np.repeat(np.arange(20), 2000)
    found = update_intervals(np.zeros(gaps_s.size), channels, unchanged_s=gaps_s.sum(axis=1), looks=np.full(20, 2000))
    assert found.update_interval_s == pytest.approx(gaps_s.mean(axis=1), rel=1e-3)


def test_evenly_spaced_polls_give_the_published_estimator() -> None:
    looks = np.arange(1, 61)
    for changes in (1, 7, 60):
        changed = (looks <= changes)[None, :]
        found = estimate(np.full((1, 60), POLL_S), changed)
        published = -np.log((60 - changes + 0.5) / (60 + 0.5)) / POLL_S
        assert 1 / found.update_interval_s[0] == pytest.approx(published, rel=1e-9)


def test_a_channel_that_was_not_seen_to_change_gets_a_guess_and_a_bound() -> None:
    none = np.array([], np.float64), np.array([], np.int64)
    found = update_intervals(*none, unchanged_s=np.array([600.0, 30 * 86_400.0, 0.0]), looks=np.array([1, 9, 0]))
    assert not found.measured.any()
    assert found.update_interval_s.tolist() == [UNCHANGED_S, 60 * 86_400.0, UNCHANGED_S]
    assert found.low_s[:2].tolist() == [200.0, 10 * 86_400.0]
    assert np.isnan(found.low_s[2])
    assert np.isnan(found.high_s).all()


def test_gaps_of_every_length_and_of_none_have_an_answer() -> None:
    gaps_s = np.array([[0.0, 1e-6, 1.0, 1e3, 1e9], [1e9, 1e9, 1e9, 1e9, 1e-6]])
    found = estimate(gaps_s, np.ones_like(gaps_s, bool))
    assert np.isfinite(found.update_interval_s).all()
    assert (found.update_interval_s > 0).all()
    assert (found.low_s < found.update_interval_s).all()


def test_what_is_found_of_a_channel_does_not_depend_on_the_others() -> None:
    dice = np.random.default_rng(7)
    gaps_s = spaced("in bursts", dice, (50, 100))
    changed = watch(POLL_S, gaps_s, dice)
    changed[::10] = True
    whole = estimate(gaps_s, changed)
    alone = [estimate(gaps_s[[at]], changed[[at]]) for at in range(50)]
    assert [one.low_s[0] for one in alone] == whole.low_s.tolist()
    assert [one.update_interval_s[0] for one in alone] == whole.update_interval_s.tolist()


def test_no_channels_give_no_intervals() -> None:
    found = estimate(np.empty((0, 5)), np.empty((0, 5), bool))
    assert [len(column) for column in found] == [0, 0, 0, 0]
