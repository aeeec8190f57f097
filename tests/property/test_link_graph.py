"""Routes between linked brokers: each one that can be reached is, once, by a shortest way, whoever computes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clarion.overlay.link_graph import Announcement, LinkGraph

brokers = st.integers(1, 9)
links = st.sets(st.tuples(brokers, brokers), max_size=20)


def _graph(told: set[tuple[int, int]], one_way: set[tuple[int, int]] = frozenset()) -> LinkGraph:  # type: ignore[assignment]
    graph = LinkGraph()
    for broker in range(1, 10):
        linked = {other for pair in told for other in pair if broker in pair} | {b for a, b in one_way if a == broker}
        assert graph.hear(Announcement(broker, f"b{broker}", b"", 1, tuple(sorted(linked))))
    return graph


def _distances(told: set[tuple[int, int]], origin: int) -> dict[int, int]:
    found, level, steps = {origin: 0}, {origin}, 0
    while level:
        steps += 1
        level = {b for pair in told for a, b in (pair, pair[::-1]) if a in level and b not in found}
        found |= dict.fromkeys(level, steps)
    return found


@given(links, links, brokers)
def test_each_broker_is_reached_once_by_a_shortest_way(
    told: set[tuple[int, int]], one_way: set[tuple[int, int]], origin: int
) -> None:
    both = told | {(a, b) for a, b in one_way if (b, a) in one_way}
    graph = _graph(told, one_way)
    expected = _distances({pair for pair in both if pair[0] != pair[1]}, origin)
    hops: dict[int, int] = {}
    queue = [(origin, list(range(1, 10)), 0)]
    while queue:
        here, to, steps = queue.pop()
        assert here not in hops, "a broker has it from one neighbour"
        hops[here] = steps
        for neighbour, beyond in graph.split(origin, here, [each for each in to if each != here]).items():
            queue.append((neighbour, beyond, steps + 1))
    wanted = {broker: steps for broker, steps in expected.items() if broker <= 9}
    assert hops == wanted
    assert set(graph.reached_from(origin)) == set(wanted) - {origin}


@given(links, links, brokers)
def test_a_broker_expects_what_is_sent_from_who_sends_it_on(
    told: set[tuple[int, int]], one_way: set[tuple[int, int]], origin: int
) -> None:
    graph = _graph(told, one_way)
    for broker in range(1, 10):
        senders = [here for here in range(1, 10) if broker in graph.split(origin, here, [broker])]
        assert senders == [each for each in [graph.parent(origin, broker)] if each is not None]


def test_an_older_announcement_is_no_news_and_changes_nothing() -> None:
    graph = _graph({(1, 2), (2, 3)})
    assert not graph.hear(Announcement(2, "b2", b"", 1, ()))
    assert graph.split(1, 1, [3]) == {2: [3]}
    assert graph.hear(Announcement(2, "b2", b"", 2, (1,)))
    assert graph.split(1, 1, [3]) == {}


def test_a_broker_that_is_forgotten_is_not_reached() -> None:
    graph = _graph({(1, 2), (2, 3), (3, 1)})
    graph.forget(2)
    graph.forget(2)
    assert set(graph.reached_from(1)) == {3}
