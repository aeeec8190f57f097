"""Archived messages are put again when they are due, on a clock of the test's own."""

from __future__ import annotations

import pytest

from clarion.model.errors import InvalidRequest
from clarion.pipeline.jobs.replay import Pace, Replayed, play, together
from clarion.pipeline.lake.lake_reader import LakeMessage

START_US = 1_800_000_000_000_000


class _Clock:
    """Time passes when somebody waits, or is slow."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.puts: list[tuple[float, str, list[int]]] = []
        self.put_takes_s = 0.0

    def wait(self, wait_s: float) -> None:
        assert wait_s > 0
        self.now_s += wait_s

    def put(self, topic: str, group: list[LakeMessage]) -> None:
        self.puts.append((round(self.now_s - 100, 6), topic, [one.offset for one in group]))
        self.now_s += self.put_takes_s


def _message(offset: int, at_s: float, topic: str = "a") -> LakeMessage:
    return LakeMessage(topic, offset, START_US + round(at_s * 1e6), bytes(16), None, None, b"")


def test_the_original_pace_keeps_the_gaps() -> None:
    clock = _Clock()
    rows = [_message(0, 0), _message(1, 1.5), _message(0, 1.5, "b"), _message(2, 10)]
    done = play(rows, Pace(1.0), clock.put, now_s=lambda: clock.now_s, wait=clock.wait)
    assert clock.puts == [(0.0, "a", [0]), (1.5, "a", [1]), (1.5, "b", [0]), (10.0, "a", [2])]
    assert done._replace(took_s=0.0, late_s=0.0) == Replayed(4, 0.0, 0.0, {"a": 2, "b": 0})
    assert done.took_s == pytest.approx(10.0)
    assert done.late_s == pytest.approx(0.0, abs=1e-6)


def test_a_speed_divides_the_gaps() -> None:
    clock = _Clock()
    rows = [_message(0, 0), _message(1, 100), _message(2, 150)]
    play(rows, Pace(50.0), clock.put, now_s=lambda: clock.now_s, wait=clock.wait)
    assert [at for at, _, _ in clock.puts] == [0.0, 2.0, 3.0]


def test_what_a_slow_broker_delays_is_told_and_caught_up() -> None:
    clock = _Clock()
    clock.put_takes_s = 1.5
    rows = [_message(offset, offset * 1.0) for offset in range(3)] + [_message(3, 10)]
    done = play(rows, Pace(1.0), clock.put, now_s=lambda: clock.now_s, wait=clock.wait)
    assert [at for at, _, _ in clock.puts] == [0.0, 1.5, 3.0, 10.0]
    assert done.late_s == pytest.approx(1.0)


def test_messages_of_one_commit_go_together_in_order() -> None:
    rows = [_message(0, 0), _message(1, 0), _message(0, 0, "b"), _message(2, 1), _message(3, 1)]
    assert [[one.offset for one in group] for group in together(rows)] == [[0, 1], [0], [2, 3]]
    many = [_message(offset, 0) for offset in range(25_000)]
    assert [len(group) for group in together(many)] == [10_000, 10_000, 5_000]


def test_ctrl_c_tells_how_far_it_came() -> None:
    clock = _Clock()

    def wait(wait_s: float) -> None:
        clock.wait(wait_s)
        if clock.now_s > 105:
            raise KeyboardInterrupt

    rows = [_message(offset, offset * 2.0) for offset in range(100)]
    done = play(rows, Pace(1.0), clock.put, now_s=lambda: clock.now_s, wait=wait)
    assert done.stopped
    assert done.messages == 3
    assert done.reached == {"a": 2}


def test_progress_is_told_also_while_it_waits() -> None:
    clock = _Clock()
    told: list[Replayed] = []
    rows = [_message(0, 0), _message(1, 5)]
    play(rows, Pace(1.0), clock.put, on_progress=told.append, now_s=lambda: clock.now_s, wait=clock.wait)
    assert len(told) >= 9
    assert told[0].messages == 1
    assert told[0].took_s < told[-1].took_s


def test_nothing_to_play_is_no_trouble() -> None:
    assert play([], Pace(1.0), _Clock().put) == Replayed(0, 0.0, 0.0, {})


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(InvalidRequest, match="a speed is"):
        Pace(speed)
