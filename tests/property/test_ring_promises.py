"""Rings and routes for any nodes: the nearest owns, little moves, every way ends, a wedge is told once each."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.overlay import ID_BITS, Ring, RoutingTable, ring_id, route, shared_digits, wedge_tree

_CIRCLE = 1 << ID_BITS
_PLACES = st.integers(0, _CIRCLE - 1) | st.sampled_from([0, _CIRCLE - 1, _CIRCLE // 2])


@st.composite
def _rings(draw: st.DrawFn, most: int = 60) -> Ring:
    count, seed = draw(st.integers(1, most)), draw(st.integers(0, 10_000))
    return Ring((f"{seed}-{number}" for number in range(count)), draw(st.sampled_from([2, 4, 16, 256])))


def _distance(name: str, place: int) -> int:
    ahead = (ring_id(name) - place) % _CIRCLE
    return min(ahead, _CIRCLE - ahead)


@given(_rings(), _PLACES, st.integers(0, 70))
def test_the_nearest_nodes_own_an_id_and_succeed_each_other(ring: Ring, place: int, count: int) -> None:
    nearest = sorted(ring.names, key=lambda name: _distance(name, place))
    assert ring.successors(place, count) == nearest[:count]
    assert ring.owner(place) == nearest[0]


@given(_rings(), _PLACES, st.integers(0, 5))
def test_a_wedge_is_who_has_that_many_digits_in_common(ring: Ring, place: int, level: int) -> None:
    alike = [name for name in ring.names if shared_digits(ring_id(name), place, ring.base) >= level]
    assert list(ring.wedge(place, level)) == alike
    pollers = ring.pollers(place, level)
    assert ring.owner(place) in pollers
    assert set(pollers) <= {*alike, ring.owner(place)}
    assert len(set(pollers)) == len(pollers)


@settings(max_examples=40, deadline=None)
@given(_rings(), st.lists(_PLACES, min_size=1, max_size=8), st.text(min_size=1, max_size=5))
def test_who_joins_takes_over_from_others_and_who_leaves_hands_to_successors(
    ring: Ring, places: list[int], name: str
) -> None:
    joined = ring.with_node(name)
    for place in places:
        before, after = ring.owner(place), joined.owner(place)
        assert after in (before, name)
        left = joined.without_node(after)
        if len(left):
            assert left.owner(place) == joined.successors(place, 2)[1]
    assert joined.without_node(name) == ring.without_node(name)


@given(_rings(), st.data())
def test_a_row_names_nodes_with_so_many_digits_in_common_and_that_digit_next(ring: Ring, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(ring.names))
    table = RoutingTable(ring, name)
    named = [entry for row in table.rows for entry in row.values()]
    assert len(set(named)) == len(named)
    bits = ring.base.bit_length() - 1
    for number, row in enumerate(table.rows):
        for digit, entry in row.items():
            assert shared_digits(ring_id(entry), table.id, ring.base) == number
            assert ring_id(entry) >> (ID_BITS - bits * (number + 1)) & (ring.base - 1) == digit
        next_digits = {
            ring_id(one) >> (ID_BITS - bits * (number + 1)) & (ring.base - 1)
            for one in ring.wedge(table.id, number)
            if shared_digits(ring_id(one), table.id, ring.base) == number
        }
        assert set(row) == next_digits


@settings(max_examples=60, deadline=None)
@given(_rings(200), _PLACES, st.data())
def test_a_route_ends_at_the_owner_and_gains_a_digit_at_each_hop(ring: Ring, place: int, data: st.DataObject) -> None:
    path = route(ring, data.draw(st.sampled_from(ring.names)), place)
    assert path[-1] == ring.owner(place)
    assert len(set(path)) == len(path)
    shared = [shared_digits(ring_id(name), place, ring.base) for name in path]
    assert all(one <= other for one, other in pairwise(shared[:-1]))
    assert len(path) - 1 <= math.log2(len(ring)) + 20


@settings(max_examples=60, deadline=None)
@given(_rings(), _PLACES, st.integers(0, 7))
def test_every_poller_of_a_channel_is_told_of_an_update_once(ring: Ring, place: int, level: int) -> None:
    tree = wedge_tree(ring, place, level)
    assert sorted(tree.told) == sorted(ring.pollers(place, level))
    depth = {ring.owner(place): 0}
    for teller, told in tree.edges:
        assert told not in depth
        depth[told] = depth[teller] + 1
    assert tree.depth == max(depth.values())
    assert len(tree.edges) == len(depth) - 1
