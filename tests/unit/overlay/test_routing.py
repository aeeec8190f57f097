"""Routing: a table's rows, how long ways are, and what it costs to tell a wedge."""

from __future__ import annotations

import pytest

from clarion.overlay import Ring, RoutingTable, ring_id, route, wedge_tree

_RING = Ring([f"node-{number}" for number in range(256)])


def test_a_node_names_about_log_n_rows_of_the_others() -> None:
    table = RoutingTable(_RING, "node-7")
    assert len(table.rows[0]) == 15
    assert 2 <= len(table.rows) <= 4
    assert len(table.leaves) == 16
    assert "node-7" not in table.leaves


def test_a_name_that_is_not_on_the_ring_has_no_table() -> None:
    with pytest.raises(ValueError, match="not on this ring"):
        RoutingTable(_RING, "stranger")


def test_ways_are_about_as_long_as_an_id_has_digits_that_matter() -> None:
    hops = [len(route(_RING, f"node-{number % 256}", ring_id(f"channel {number}"))) - 1 for number in range(100)]
    assert 1.2 < sum(hops) / len(hops) < 2.5
    assert max(hops) <= 4


def test_the_owner_of_a_place_is_already_there() -> None:
    place = ring_id("channel")
    assert route(_RING, _RING.owner(place), place) == [_RING.owner(place)]
    assert route(Ring(["only"]), "only", place) == ["only"]


def test_all_nodes_are_told_with_a_message_each_in_a_few_hops() -> None:
    tree = wedge_tree(_RING, ring_id("channel"), 0)
    assert len(tree.edges) == 255
    assert tree.depth <= 5
    assert len(set(tree.told)) == 256


def test_nobody_is_told_where_the_owner_polls_alone() -> None:
    place = ring_id("channel")
    assert wedge_tree(_RING, place, _RING.levels) == (_RING.owner(place), (), 0)
    assert wedge_tree(Ring(["only"]), place, 0) == ("only", (), 0)


def test_an_owner_outside_of_the_wedge_tells_one_in_it() -> None:
    ring = Ring([str(number) for number in range(20)])
    places = [ring_id(str(number)) for number in range(1000, 2000)]
    place = next(one for one in places if len(ring.wedge(one, 1)) > 1 and ring.owner(one) not in ring.wedge(one, 1))
    tree = wedge_tree(ring, place, 1)
    assert tree.root == ring.owner(place)
    assert [teller for teller, _ in tree.edges].count(tree.root) == 1
    assert sorted(tree.told) == sorted(ring.pollers(place, 1))


def test_an_empty_wedge_costs_nothing() -> None:
    ring = Ring([str(number) for number in range(20)])
    place = next(one for one in map(ring_id, map(str, range(1000, 2000))) if not ring.wedge(one, 1))
    assert wedge_tree(ring, place, 1).edges == ()
