"""The tuner's settings, policies by name, and what can be seen of a tuner."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from clarion.publisher.tuner import (
    LAN,
    PAPER,
    POLICIES,
    Publish,
    Sample,
    Trace,
    TunerSettings,
    Wait,
    make_tuner,
    with_batch_size,
)


def test_the_defaults_are_those_of_table_i() -> None:
    """ "T_poll^min [...] is set to 50 ms. T_poll^max [...] is set to 200 ms. N^min [...] is set to 1. alpha, gamma
    [...] are set to 0.5 and 0.75, respectively. beta [...] is set to 1.2." """
    settings = TunerSettings()
    assert settings == PAPER
    assert (settings.poll_min_s, settings.poll_max_s, settings.batch_size_min) == (0.05, 0.2, 1)
    assert (settings.load_gain, settings.capacity_gain, settings.poll_factor) == (0.5, 0.75, 1.2)


def test_on_a_lan_polls_begin_far_below_the_paper_and_come_with_the_messages() -> None:
    """The issue: "T_poll_min of 50 ms is the paper's, not a LAN's"."""
    assert LAN.poll_min_s < PAPER.poll_min_s / 10
    assert LAN.polls_on_arrival
    assert not PAPER.polls_on_arrival
    assert (LAN.poll_max_s, LAN.poll_factor, LAN.load_gain) == (PAPER.poll_max_s, PAPER.poll_factor, PAPER.load_gain)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size_min": 0},
        {"batch_size": 2, "batch_size_min": 3},
        {"batch_size": 9, "batch_size_max": 8},
        {"poll_min_s": 0.0},
        {"poll_min_s": -1.0},
        {"poll_min_s": 0.3},
        {"wait_s": -0.1},
        {"wait_s": inf},
        {"wait_s": nan},
        {"load_gain": 1.0},
        {"load_gain": -0.1},
        {"capacity_gain": 1.0},
        {"poll_factor": 0.0},
        {"publishes_in_transfer": 0},
        {"poll_min_s": nan},
        {"poll_max_s": inf},
        {"poll_max_s": nan},
        {"load_gain": nan},
        {"capacity_gain": nan},
        {"poll_factor": inf},
        {"poll_factor": nan},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    about = {"load_gain": "gains", "capacity_gain": "gains", "batch_size": "batch sizes"}
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=about.get(name, name)):
        TunerSettings(**wrong)


def test_another_n_to_begin_with_changes_nothing_else() -> None:
    assert with_batch_size(LAN, None) is LAN
    changed = with_batch_size(LAN, 7)
    assert (changed.batch_size, changed.poll_min_s) == (7, LAN.poll_min_s)
    with pytest.raises(ValueError, match="batch sizes"):
        with_batch_size(LAN, 0)


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"fixed, literal, recheck, eager.*'quick'"):
        make_tuner("quick", PAPER, 0.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_poll_can_be_seen_with_what_it_found_and_did(policy: str) -> None:
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_transferred(took_s=0.125, in_transfer=3)
    published = tuner.on_poll(pending=1, now_s=0.5, credit=9)
    assert isinstance(published, Publish)
    first = tuner.sample(0.5, 1, published.messages)
    assert isinstance(tuner.on_poll(pending=0, now_s=0.6), Wait)
    second = tuner.sample(0.6, 0, 0)
    assert first == Sample(0.5, 1, tuner.poll_interval_s, 1.0, 24.0, 9, 1, 1)
    assert (second.at_s, second.credit, second.pending, second.published) == (0.6, -1, 0, 0)
    assert tuner.polls == 2


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_looking_changes_nothing(policy: str) -> None:
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_poll(pending=3, now_s=0.5, credit=2)
    before = vars(tuner).copy()
    assert tuner.sample(0.7, 4, 0) == tuner.sample(0.7, 4, 0)
    assert vars(tuner) == before


def test_a_trace_keeps_the_newest_samples_and_gives_them_by_topic() -> None:
    trace = Trace(3)
    samples = [make_tuner("fixed", PAPER, 0.0).sample(float(at), 0, 0) for at in range(5)]
    for place, sample in enumerate(samples):
        trace.add(b"odd" if place % 2 else b"even", sample)
    assert trace.of(b"even") == [samples[2], samples[4]]
    assert trace.of(b"odd") == [samples[3]]
    assert trace.of(b"none") == []
