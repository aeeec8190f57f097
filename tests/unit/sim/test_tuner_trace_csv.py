"""What a tuner did, as CSV: from a real publisher's samples to the simulator's picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.publisher.tuner import LAN, PAPER, Publish, Sample, Trace, make_tuner, trace_from_csv, trace_to_csv
from clarion.reproduce.publisher_figures import draw_trace, mean_batch_size


def _real_trace(policy: str) -> list[Sample]:
    """What a real publisher keeps: settings for a LAN, a clock that began long ago."""
    trace = Trace(100)
    tuner = make_tuner(policy, LAN, 28_000.0)
    for poll in range(20):
        now_s = 28_000.0 + 0.25 * poll
        decision = tuner.on_poll(pending=poll % 7, now_s=now_s, credit=1_000_000 if poll % 2 else None)
        published = decision.messages if isinstance(decision, Publish) else 0
        trace.add(b"readings", tuner.sample(now_s, poll % 7, published))
        tuner.on_published(took_s=0.001, now_s=now_s + 0.001)
        tuner.on_transferred(took_s=0.003, in_transfer=3)
    return trace.of(b"readings")


@pytest.mark.parametrize("policy", ["eager", "recheck", "literal", "fixed"])
def test_what_is_written_of_a_trace_is_read_again(policy: str) -> None:
    traces = {"readings": _real_trace(policy), 'a "strange", name\n': _real_trace(policy)[:3]}
    assert len(traces["readings"]) == 20
    assert trace_from_csv(trace_to_csv(traces)) == traces


def test_a_real_publishers_trace_is_drawn_by_the_simulators_plots(tmp_path: Path) -> None:
    for number, traces in enumerate(({"readings": _real_trace("eager")}, {"one": _real_trace("eager")[:1]})):
        draw_trace(trace_from_csv(trace_to_csv(traces)), tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_the_mean_n_of_a_trace_is_weighted_by_time() -> None:
    (sample, *_) = _real_trace("fixed")
    trace = [sample._replace(at_s=at_s, batch_size=size) for at_s, size in ((5.0, 1), (8.0, 9), (9.0, 50))]
    assert mean_batch_size(trace) == 3.0
    assert mean_batch_size(trace[:1]) == 1.0


def test_a_trace_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="trace_samples is from 0 on, not -1"):
        Trace(-1)


def test_the_n_of_eager_is_what_leaves_not_what_waits_for_credit() -> None:
    tuner = make_tuner("eager", PAPER, 0.0)
    tuner.on_poll(pending=500, now_s=1.0, credit=7)
    assert tuner.batch_size == 7
    tuner.on_poll(pending=500, now_s=2.0, credit=0)
    assert tuner.batch_size == 7
    tuner.on_poll(pending=500, now_s=3.0)
    assert tuner.batch_size == 500
