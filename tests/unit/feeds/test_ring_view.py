"""The view of the ring: who is on it, by one log and no node's clock."""

from __future__ import annotations

import pytest

from clarion.feeds.politeness import Throttled
from clarion.feeds.ring_view import (
    Aggregate,
    Beat,
    Levels,
    RingView,
    decode_ring_message,
    encode_ring_message,
)
from clarion.model.errors import PermanentError


def _beat(node: str, number: int = 1, *, incarnation: str = "a", leaving: bool = False) -> Beat:
    return Beat(
        node=node, incarnation=incarnation, number=number, beat_s=2.0, base=16, poll_interval_s=60.0, scheme="lite",
        leaving=leaving,
    )  # fmt: skip


def _tell(view: RingView, at_s: float, *beats: Beat) -> None:
    for beat in beats:
        view.on_message(beat, round(at_s * 1e6))


def test_a_node_that_falls_silent_is_taken_out_after_three_beats_of_another() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x"), _beat("y"))
    for number, at_s in enumerate((2.0, 4.0, 6.0), 2):
        _tell(view, at_s, _beat("x", number))
        view.take_out()
        assert set(view.nodes) == {"x", "y"}
    _tell(view, 8.0, _beat("x", 5))
    view.take_out()
    assert set(view.nodes) == {"x"}
    assert view.ring(16).names == ("x",)


def test_people_see_that_the_last_node_is_silent_though_nobody_takes_it_out() -> None:
    view = RingView()
    _tell(view, 100.0, _beat("x"))
    view.take_out()
    assert not view.nodes["x"].is_silent(round(110e6))
    assert view.nodes["x"].is_silent(round(117e6))


def test_a_broker_that_was_away_takes_nobody_out() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x"), _beat("y"))
    _tell(view, 600.0, _beat("x", 2))
    view.take_out()
    assert set(view.nodes) == {"x", "y"}


def test_beats_that_come_all_at_once_take_nobody_out() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x"), _beat("y"))
    _tell(view, 1.0, *(_beat("x", number) for number in range(2, 20)))
    view.take_out()
    assert set(view.nodes) == {"x", "y"}


def test_a_node_that_leaves_is_gone_at_once_and_its_late_beats_do_not_count() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x"), _beat("y"))
    view.on_message(Aggregate(node="y", clusters=b"1"), 1)
    _tell(view, 1.0, _beat("y", 2, leaving=True), _beat("y", 1))
    assert set(view.nodes) == {"x"}
    assert view.aggregates == {}


def test_who_starts_later_under_a_name_has_it_and_the_earlier_is_told() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x", incarnation="first"))
    _tell(view, 1.0, _beat("x", incarnation="second"))
    _tell(view, 2.0, _beat("x", 2, incarnation="first"))
    assert view.is_retired("x", "first")
    assert not view.is_retired("x", "second")
    assert view.nodes["x"].beat.incarnation == "second"


def test_two_readers_of_one_log_have_one_ring() -> None:
    log = [(float(at), _beat(f"n{at % 5}", at)) for at in range(40)]
    log += [(40.0 + at, _beat(f"n{at % 3}", 40 + at)) for at in range(30)]
    views = [RingView(), RingView()]
    for number, (at_s, beat) in enumerate(log):
        _tell(views[0], at_s, beat)
        views[0].take_out()
        _tell(views[1], at_s, beat)
        if number % 7 == 0:
            views[1].take_out()
    views[1].take_out()
    assert views[0].ring(16) == views[1].ring(16)
    assert set(views[0].nodes) == {"n0", "n1", "n2"}


def test_levels_of_channels_that_are_gone_are_forgotten() -> None:
    view = RingView()
    view.on_message(Levels(node="x", levels={"a": 0, "b": 1}), 1)
    view.on_message(Levels(node="y", levels={"b": 2}), 2)
    assert view.levels == {"a": 0, "b": 2}
    view.forget_levels({"b"})
    assert view.levels == {"b": 2}


def test_a_host_that_throttles_is_known_to_all() -> None:
    view = RingView()
    view.on_message(Throttled(host="h.example", until_s=100.0, calm_s=200.0), 50_000_000)
    assert view.throttle.until_s("h.example") == 100.0


@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"type": "beat"}', b"\xff", b"[1]"])
def test_garbage_on_the_ring_is_no_message(garbage: bytes) -> None:
    with pytest.raises(PermanentError):
        decode_ring_message(garbage)


def test_messages_travel() -> None:
    for one in (_beat("x"), Levels(node="x", levels={"a": 1}), Throttled(host="h", until_s=1.0, calm_s=2.0)):
        assert decode_ring_message(encode_ring_message(one)) == one


@pytest.mark.parametrize("told", ['"base":0', '"base":3', '"beat_s":1e300', '"beat_s":-1', '"poll_interval_s":0'])
def test_a_beat_of_no_possible_ring_is_no_message(told: str) -> None:
    name = told.partition(":")[0]
    others = [one for one in ('"base":16', '"beat_s":1', '"poll_interval_s":1') if not one.startswith(name)]
    said = ",".join(['"type":"beat","node":"x","incarnation":"a","number":1,"scheme":"lite"', told, *others])
    with pytest.raises(PermanentError):
        decode_ring_message(b"{%s}" % said.encode())


def test_a_level_that_no_ring_has_is_no_message() -> None:
    for level in (-1, 161, -(10**24)):
        with pytest.raises(PermanentError):
            decode_ring_message(b'{"type":"levels","node":"x","levels":{"a":%d}}' % level)


def test_clusters_of_who_is_not_on_the_ring_do_not_count() -> None:
    view = RingView()
    view.on_message(Aggregate(node="nobody", clusters=b"garbage"), 1)
    assert not view.aggregates


def test_clusters_of_a_node_that_fell_silent_count_no_more() -> None:
    view = RingView()
    _tell(view, 0.0, _beat("x"), _beat("y"))
    view.on_message(Aggregate(node="y", clusters=b"{}"), 1)
    for number in range(2, 7):
        _tell(view, 2.0 * number, _beat("x", number))
    view.take_out()
    assert not view.aggregates
