"""Acks on their way to be durable: what is said when, of one topic or of many. What carries them is tested with those
who send it."""

from __future__ import annotations

from clarion.subscriber.acks import Acks, without


def noted(*topics: str, at_once: int = 10) -> Acks[str]:
    acks: Acks[str] = Acks(at_once)
    for topic in topics:
        acks.note(topic, 0, 1)
    return acks


def test_what_is_acked_in_order_is_one_range() -> None:
    acks = noted("a")
    acks.note("a", 1, 5)
    assert acks.take_next(0.0) == {"a": [(0, 5)]}


def test_a_topic_dropped_while_its_acks_are_under_way_leaves_the_request_under_way() -> None:
    acks = noted("a")
    assert acks.take_next(0.0) == {"a": [(0, 1)]}
    assert acks.drop("a") == [(0, 1)]
    acks.note("b", 0, 1)
    assert acks.take_next(0.0) == {}, "whose answer would be taken for that of the first"
    acks.answered()
    assert acks.take_next(0.0) == {"b": [(0, 1)]}


def test_a_request_is_bounded_over_all_topics_together() -> None:
    acks = noted("a", "b", "c", at_once=4)
    for start in range(2, 12, 2):
        acks.note("b", start, start + 1)
    said: list[tuple[str, int]] = []
    while ranges := acks.take_next(0.0):
        assert sum(map(len, ranges.values())) <= 4
        said += [(topic, start) for topic, some in ranges.items() for start, _ in some]
        acks.answered()
    assert sorted(said) == [("a", 0), *[("b", start) for start in range(0, 12, 2)], ("c", 0)]
    assert acks.done()


def test_what_was_not_taken_is_said_again_with_what_came_meanwhile() -> None:
    acks = noted("a")
    acks.take_next(0.0)
    acks.note("a", 4, 5)
    acks.send_again(1.0)
    assert acks.total == 2
    assert acks.take_next(0.5) == {}
    assert acks.take_next(1.0) == {"a": [(0, 1), (4, 5)]}


def test_a_part_can_be_taken_out_of_ranges() -> None:
    assert without([(0, 4), (6, 8)], 2, 7) == [(0, 2), (7, 8)]
    assert without([(0, 4)], 4, 6) == [(0, 4)]
