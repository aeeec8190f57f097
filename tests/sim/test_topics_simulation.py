"""Many topics in simulated time, with the core of the real publisher: what the one tuner makes of a load."""

from __future__ import annotations

import pytest

from clarion.sim.topics_simulation import TopicsModel, TopicsOutcome, simulate_topics


def run(topics: int, load_per_s: float, seconds: float = 3.0, **more: float | str) -> TopicsOutcome:
    return simulate_topics(TopicsModel(topics=topics, load_per_s=load_per_s, seconds=seconds, **more), seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [1, 100, 2000])
def test_what_is_put_is_answered_in_about_a_transfer_and_a_half_however_many_topics_there_are(topics: int) -> None:
    outcome = run(topics, 5000)
    assert outcome.unanswered == 0
    assert outcome.p50_ms < 3.0
    assert outcome.requests < 5000


def test_the_cost_of_a_message_falls_with_the_load_of_all_topics_together() -> None:
    costs = [run(2000, load_per_s, 2.0).broker_us for load_per_s in (500, 5000, 20_000, 60_000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0] / 4


def test_a_broker_at_its_limit_makes_batches_grow_instead_of_what_waits_for_it() -> None:
    """One batch a message would take all of its time twice over."""
    outcome = run(2000, 100_000, 1.5)
    assert outcome.unanswered == 0
    assert outcome.messages_per_batch > 1.5
    assert outcome.p99_ms < 200


@pytest.mark.parametrize("topics", [1, 100, 2000])
def test_after_a_broker_that_was_slow_everything_is_as_before_within_its_last_commit(topics: int) -> None:
    outcome = run(topics, 3000, 8.0, slow_from_s=2.0, slow_until_s=4.0)
    assert outcome.unanswered == 0
    assert outcome.recovered_s is not None
    assert outcome.recovered_s <= 2.2
    assert outcome.poll_interval_ms <= 2.0


def test_a_lone_message_leaves_at_once() -> None:
    outcome = run(5, 20, 10.0)
    assert outcome.batches_per_request < 1.1
    assert outcome.p50_ms == pytest.approx(0.3 + 0.08 + 1.0, abs=0.05)


def test_a_broker_of_before_gets_a_request_for_each_batch() -> None:
    assert run(100, 2000, version=1).batches_per_request == 1.0


def test_the_same_seed_gives_the_same_run() -> None:
    assert run(50, 2000) == run(50, 2000)


def test_what_cannot_be_run_is_refused() -> None:
    for wrong in ({"topics": 0}, {"load_per_s": 0.0}, {"load_per_s": 1e9}):
        with pytest.raises(ValueError, match=r"topics are|load|messages"):
            TopicsModel(**wrong)
