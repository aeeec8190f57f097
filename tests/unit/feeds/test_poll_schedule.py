"""Who polls which channel, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clarion.feeds.poll_schedule import Slot, Watched, host_stretches, next_poll_s, poll_phase_s, slots_of
from clarion.overlay import Ring, ring_id

RING = Ring([f"n{number}" for number in range(16)])


def _watched(*names: str, host: str = "a.example") -> dict[str, Watched]:
    return {name: Watched(ring_id(name), host, 1) for name in names}


def test_the_polls_of_a_wedge_are_evenly_spaced() -> None:
    channels = _watched("c")
    slots = [slots_of(node, RING, channels, {"c": 0}, 32.0, 1e9)["c"] for node in RING.names]
    moments = sorted(next_poll_s(slot, 1000.0) for slot in slots)
    apart = [later - earlier for earlier, later in pairwise(moments)]
    assert apart == pytest.approx([2.0] * 15)
    assert sum(slot.is_owner for slot in slots) == 1


def test_a_channel_without_a_level_is_polled_by_its_owner_alone() -> None:
    slots = {node: slots_of(node, RING, _watched("c"), {}, 32.0, 1e9) for node in RING.names}
    assert [node for node, some in slots.items() if some] == [RING.owner(ring_id("c"))]


def test_a_new_owner_goes_on_at_the_moments_of_the_old_one() -> None:
    channels = _watched("c")
    owner = RING.owner(ring_id("c"))
    after = RING.without_node(owner)
    heir = after.owner(ring_id("c"))
    assert slots_of(heir, after, channels, {}, 32.0, 1e9) == slots_of(owner, RING, channels, {}, 32.0, 1e9)


def test_who_is_not_on_the_ring_polls_nothing() -> None:
    assert slots_of("stranger", RING, _watched("c"), {"c": 0}, 32.0, 1e9) == {}


def test_a_moment_lies_ahead_however_the_numbers_are_rounded() -> None:
    slot = Slot(0.1, 0.3, 1, True)
    at_s = 1e9
    for _ in range(1000):
        following_s = next_poll_s(slot, at_s)
        assert following_s > at_s
        at_s = following_s


def test_channels_are_not_all_polled_at_the_same_moment() -> None:
    phases = {round(poll_phase_s(0, 1, 100.0, ring_id(f"c{number}")), 3) for number in range(100)}
    assert len(phases) == 100


def test_all_nodes_together_keep_to_what_a_host_is_asked_to_bear() -> None:
    names = [f"c{number}" for number in range(20)]
    channels = _watched(*names) | _watched("alone", host="b.example")
    levels = dict.fromkeys(names, 0)
    assert host_stretches(RING, channels, levels, 32.0, 5.0) == {"a.example": 20 * 16 / 32.0 / 5.0}
    polls_per_s = sum(
        1 / slot.interval_s
        for node in RING.names
        for name, slot in slots_of(node, RING, channels, levels, 32.0, 5.0).items()
        if name != "alone"
    )
    assert polls_per_s == pytest.approx(5.0)
