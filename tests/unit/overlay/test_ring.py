"""The ring: who owns an id, who is next, and who is in its wedge."""

from __future__ import annotations

import hashlib

import pytest

from clarion.model.errors import BadSettings
from clarion.overlay import ID_BITS, Ring, ring_id, shared_digits

_CIRCLE = 1 << ID_BITS


def test_an_id_is_the_sha1_of_any_bytes_so_that_nodes_brokers_topics_and_urls_are_on_one_ring() -> None:
    for name in (b"node-1", b"tcp://127.0.0.1:5590", b"alerts/\xff\x00", b"https://example.org/feed", b""):
        assert ring_id(name) == int(hashlib.sha1(name).hexdigest(), 16)
    assert ring_id("caf\u00e9") == ring_id("caf\u00e9".encode())
    ring = Ring(["tcp://127.0.0.1:5590", "tcp://127.0.0.1:5591"])
    assert ring.owner(ring_id(b"topic \xff")) in ring


def test_shared_digits_are_counted_from_the_highest_on_in_every_base() -> None:
    one = 0xABCD << (ID_BITS - 16)
    assert [shared_digits(one, 0xABC0 << (ID_BITS - 16), base) for base in (2, 4, 16, 256)] == [12, 6, 3, 1]
    assert shared_digits(one, one, 16) == 40
    assert shared_digits(one, one ^ 1, 2) == 159


@pytest.mark.parametrize("base", [0, 1, 3, 8, 64, 1 << 161])
def test_a_base_whose_digits_do_not_fill_an_id_is_refused(base: int) -> None:
    with pytest.raises(BadSettings, match="base of a ring"):
        Ring(["a"], base)


@pytest.mark.parametrize(
    ("nodes", "base", "levels"),
    [(0, 16, 0), (1, 16, 0), (2, 16, 1), (16, 16, 1), (17, 16, 2), (1024, 16, 3), (1024, 2, 10)],
)
def test_the_highest_level_is_the_least_that_leaves_the_owner_alone(nodes: int, base: int, levels: int) -> None:
    assert Ring(map(str, range(nodes)), base).levels == levels


def test_a_ring_without_nodes_has_no_owner() -> None:
    with pytest.raises(ValueError, match="no owner"):
        Ring().owner(0)


def test_the_highest_id_and_the_lowest_are_neighbours() -> None:
    ring = Ring([str(number) for number in range(50)])
    first, last = ring.names[0], ring.names[-1]
    assert (
        set(ring.successors(_CIRCLE - 1, 2))
        == set(ring.successors(0, 2))
        <= {first, last, *ring.names[:2], *ring.names[-2:]}
    )
    gap = (ring_id(first) - ring_id(last)) % _CIRCLE
    assert ring.owner((ring_id(last) + gap // 3) % _CIRCLE) == last
    assert ring.owner((ring_id(last) + 2 * gap // 3) % _CIRCLE) == first


def test_an_empty_wedge_leaves_the_owner_to_poll() -> None:
    ring = Ring([str(number) for number in range(20)])
    place = next(one for one in map(ring_id, map(str, range(1000, 2000))) if not ring.wedge(one, 1))
    assert ring.levels == 2
    assert ring.pollers(place, 1) == (ring.owner(place),)


def test_an_owner_outside_of_the_wedge_polls_with_it() -> None:
    ring = Ring([str(number) for number in range(20)])
    places = [ring_id(str(number)) for number in range(1000, 2000)]
    place = next(one for one in places if ring.wedge(one, 1) and ring.owner(one) not in ring.wedge(one, 1))
    assert ring.pollers(place, 1) == (*ring.wedge(place, 1), ring.owner(place))
    assert ring.pollers(place, 0) == ring.names


def test_rings_of_the_same_nodes_are_equal_however_they_came_about() -> None:
    ring = Ring(["a", "b", "c"])
    assert (
        ring == Ring(["c", "b", "a", "a"]) == Ring(["a", "c"]).with_node("b") == ring.with_node("d").without_node("d")
    )
    assert len({ring, Ring(["c", "a", "b"])}) == 1
    assert ring != Ring(["a", "b", "c"], base=4)
