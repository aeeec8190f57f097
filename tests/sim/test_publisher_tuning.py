"""What tuning promises, in simulated time: whatever N was, whatever the load does, however slow the subscriber is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.sim import (
    PROFILES,
    SLOW_SUBSCRIBER,
    TABLE_II,
    Outcome,
    Parameters,
    Poisson,
    Run,
    Step,
    Stepped,
    Traced,
    simulate,
    sweep,
)

_TUNED = ("literal", "recheck", "eager")
_both_profiles = pytest.mark.parametrize("profile", list(PROFILES))


def _parameters(profile: str, **changes: Any) -> Parameters:
    return replace(Parameters(seconds=120.0, **PROFILES[profile]), **changes)


def _mean_ms(parameters: Parameters, seeds: range = range(1, 3)) -> float:
    return float(np.mean([simulate(parameters, seed=seed).response_ms["mean"] for seed in seeds]))


@_both_profiles
@pytest.mark.parametrize("tuning", _TUNED)
def test_the_first_batch_size_does_not_matter(profile: str, tuning: str) -> None:
    parameters = _parameters(profile, tuning=tuning, seconds=80.0)
    seeds = range(1, 2) if tuning == "eager" else range(1, 3)  # eager forgets N at its first poll
    found = [_mean_ms(replace(parameters, batch_size=batch_size), seeds) for batch_size in (1, 10, 50)]
    assert max(found) <= 1.05 * min(found)


@_both_profiles
@pytest.mark.parametrize("tuning", ["recheck", "eager"])
def test_the_mean_batch_size_rises_with_the_load(profile: str, tuning: str) -> None:
    """As does the literal algorithm's, whose means are held to the reference's rising ones elsewhere."""
    found = [
        simulate(
            _parameters(profile, tuning=tuning, arrivals=Poisson(load_per_s), seconds=70.0), seed=1
        ).batch_size_mean
        for load_per_s in (1.75, 17.5, 35.0, 55.0)
    ]
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def _size_by_second(outcomes: list[Outcome], until_s: int) -> Any:
    """Return N in each second: the mean over its polls, or as the last poll left it, and over the runs."""
    by_run = []
    for outcome in outcomes:
        assert outcome.trace is not None
        sizes: list[list[int]] = [[] for _ in range(until_s)]
        for sample in outcome.trace:
            sizes[min(int(sample.at_s), until_s - 1)].append(sample.batch_size)
        last, found = 1.0, []
        for second in sizes:
            last = float(np.mean(second)) if second else last
            found.append(last)
        by_run.append(found)
    return np.mean(by_run, axis=0)


@_both_profiles
@pytest.mark.parametrize("tuning", _TUNED)
def test_the_batch_size_settles_within_three_seconds_of_each_step(profile: str, tuning: str) -> None:
    """Settled: a second's mean N is within a quarter, or 1, of the mean on that step. The loads are Table II's, each
    for 50 s: what comes later says nothing more of the first three."""
    steps = tuple(Step(50.0 * place, 50.0 * place + 50.0, step.load_per_s) for place, step in enumerate(TABLE_II))
    parameters = _parameters(profile, arrivals=Stepped(steps), seconds=None, tuning=tuning, keep_trace=True)
    outcomes = [simulate(parameters, seed=seed) for seed in (1, 2)]
    sizes = _size_by_second(outcomes, 250)
    for step in steps[1:]:
        start, end = int(step.start_s), int(step.end_s)
        level = sizes[start + 20 : end].mean()
        assert np.abs(sizes[start : start + 3] - level).min() <= max(1.0, 0.25 * level), step


@_both_profiles
@pytest.mark.parametrize("batch_size", [5, 10, 50])
def test_without_tuning_a_slow_subscriber_costs_messages(profile: str, batch_size: int) -> None:
    parameters = _parameters(profile, **SLOW_SUBSCRIBER, tuning="fixed", batch_size=batch_size)
    outcome = simulate(parameters, seed=1)
    assert outcome.dropped > 0.05 * outcome.offered


@_both_profiles
@pytest.mark.parametrize("tuning", _TUNED)
def test_tuned_a_slow_subscriber_costs_no_message(profile: str, tuning: str) -> None:
    parameters = _parameters(profile, **SLOW_SUBSCRIBER, tuning=tuning)
    outcomes = [simulate(replace(parameters, batch_size=batch_size), seed=batch_size) for batch_size in (1, 50)]
    assert [outcome.dropped for outcome in outcomes] == [0, 0]
    assert all(outcome.delivered > 2500 for outcome in outcomes)  # the subscriber was kept at work


@pytest.mark.parametrize("tuning", _TUNED)
def test_it_is_the_credit_gate_that_saves_them(tuning: str) -> None:
    parameters = _parameters("store-heavy", **SLOW_SUBSCRIBER, tuning=tuning, gated=False)
    outcome = simulate(parameters, seed=1)
    assert outcome.dropped > 0.05 * outcome.offered


_bursts = st.lists(  # seconds after the one before, requests, seconds that they are spread over
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.05, 0.15, 0.3, 1.0]) | st.floats(0.0, 0.5),
        st.sampled_from([1, 5, 20, 60]) | st.integers(1, 150),
        st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    ),
    min_size=1, max_size=10,
)  # fmt: skip
_servers = st.fixed_dictionaries(
    {
        "tuning": st.sampled_from(_TUNED),
        "takes_all": st.booleans(),
        "polls_on_arrival": st.booleans(),
        "workers": st.sampled_from([1, 2, 5, 20]),
        "buffer": st.sampled_from([1, 10, 100]),
        "read_fixed_s": st.sampled_from([0.0, 0.04, 0.13]),
        "read_each_s": st.sampled_from([0.0, 0.002, 0.01]),
        "rtt_s": st.sampled_from([0.001, 0.14, 0.5]),
    }
)
_subscribers = st.sampled_from(
    [{}, {"subscriber_per_s": 25.0, "vacation_s": 1.0, "room": 50}, {"subscriber_per_s": 5.0, "room": 1}]
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(_bursts, st.sampled_from([1, 5, 20]), _servers, _subscribers)
def test_receiving_is_never_starved_whatever_comes(
    bursts: list[tuple[float, int, float]], times: int, servers: dict[str, Any], subscriber: dict[str, Any]
) -> None:
    """No more than the buffer holds come while receiving may stand still, which is for one transfer and one read; then
    none is dropped, whatever the load is. What takes no bounded time takes none here."""
    longest_read_s = servers["read_fixed_s"] + servers["read_each_s"] * servers["workers"]
    if servers["tuning"] != "eager":  # its N grows while a publish takes less than the longest T_poll
        longest_read_s = max(longest_read_s, Parameters().poll_max_s + servers["read_each_s"])
    stall_s = servers["rtt_s"] + longest_read_s
    times_s: list[float] = []
    for time_s in _moments(bursts * times):
        if len(times_s) < servers["buffer"] or time_s - times_s[-servers["buffer"]] > stall_s + 1e-9:
            times_s.append(time_s)
    parameters = Parameters(
        arrivals=Traced(np.array(times_s)), seconds=times_s[-1] + 2.0, warm_up_s=0.0,
        receive_s=0.0, publish_s=0.0, write_s=0.0, rtt_cv=0.0, **servers, **subscriber,
    )  # fmt: skip
    outcome = simulate(parameters, seed=1)
    assert outcome.offered == len(times_s)
    assert outcome.dropped == 0
    assert outcome.buffer_peak <= servers["buffer"]


def _moments(bursts: list[tuple[float, int, float]]) -> list[float]:
    """Return when each request of some bursts comes, in order."""
    found, begin_s = [], 0.0
    for after_s, requests, spread_s in bursts:
        begin_s += after_s
        found += [begin_s + spread_s * place / requests for place in range(requests)]
    return sorted(found)


_loads = st.lists(  # seconds and requests a second
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from([5.0, 80.0, 150.0, 250.0, 350.0, 500.0])),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(_loads, st.sampled_from(list(PROFILES)), st.integers(0, 99))
def test_of_random_bursts_none_is_dropped_that_a_fixed_batch_size_receives(
    loads: list[tuple[float, float]], profile: str, seed: int
) -> None:
    steps, begin_s = [], 0.0
    for seconds, load_per_s in loads:
        steps.append(Step(begin_s, begin_s + seconds, load_per_s))
        begin_s += seconds
    parameters = _parameters(profile, arrivals=Stepped(tuple(steps)), seconds=begin_s + 1.0, warm_up_s=0.0)
    fixed = simulate(replace(parameters, tuning="fixed", batch_size=parameters.workers), seed=seed)
    for tuning in _TUNED:
        assert simulate(replace(parameters, tuning=tuning), seed=seed).dropped <= fixed.dropped, tuning


def test_after_a_stall_a_gated_publisher_goes_on() -> None:
    """The broker's room is used up and no ACK is under way: only a window update can tell of new room."""
    burst = Stepped((Step(0.0, 20.0, 30.0),))
    for tuning in _TUNED:
        parameters = _parameters(
            "store-light", arrivals=burst, seconds=150.0, tuning=tuning, room=3, subscriber_per_s=100.0, vacation_s=0.5
        )
        outcome = simulate(parameters, seed=1)
        assert (outcome.delivered, outcome.dropped) == (outcome.offered, 0), tuning


@_both_profiles
@pytest.mark.parametrize("load_per_s", [1.75, 17.5, 35.0, 55.0])
def test_eager_beats_recheck_and_every_fixed_batch_size(profile: str, load_per_s: float) -> None:
    parameters = _parameters(profile, arrivals=Poisson(load_per_s), seconds=250.0 if load_per_s < 10 else 55.0)
    eager_ms = _mean_ms(replace(parameters, tuning="eager"))
    assert eager_ms < _mean_ms(replace(parameters, tuning="recheck"))
    for batch_size in (1, 3, 5, 10):
        fixed_ms = _mean_ms(replace(parameters, tuning="fixed", batch_size=batch_size))
        assert eager_ms < fixed_ms, batch_size


def test_publishers_on_one_broker_share_it_evenly() -> None:
    """Also where the subscriber cannot read all that they have."""
    for changes in ({}, {"subscriber_per_s": 40.0, "room": 50}):
        parameters = _parameters("store-light", arrivals=Poisson(17.5), publishers=5, tuning="eager", **changes)
        outcome = simulate(parameters, seed=1)
        assert len(outcome.publishers) == 5
        assert outcome.jain_throughput > 0.98
        assert outcome.least_share > 0.8
        assert sum(publisher.delivered for publisher in outcome.publishers) == outcome.delivered


def test_the_same_seed_gives_the_same_run_here_and_in_other_processes() -> None:
    runs = [Run(_parameters("store-light", tuning=tuning, seconds=40.0), 7) for tuning in ("eager", "literal")]
    heard: list[tuple[int, int]] = []
    there = sweep(runs, processes=2, on_done=lambda done, of: heard.append((done, of)))
    here = sweep(runs, processes=1)
    assert [one.to_dict() for one in there] == [one.to_dict() for one in here]
    assert heard == [(1, 2), (2, 2)]
    assert here[0].to_dict() != simulate(runs[0].parameters, seed=8).to_dict()


def test_every_message_is_accounted_for() -> None:
    for tuning in ("fixed", *_TUNED):
        for changes in ({}, dict(SLOW_SUBSCRIBER)):
            parameters = _parameters("store-heavy", **{**changes, "seconds": 60.0}, tuning=tuning, batch_size=10)
            outcome = simulate(parameters, seed=3)
            assert outcome.offered == outcome.delivered + outcome.dropped + outcome.unfinished
