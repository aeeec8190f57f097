"""Decomposition: merge, follow-through and split, forks, joins, and streams that go around."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clarion.queueing import JobClass, Network


def _departing(busy: float, servers: int, arriving: float, service: float) -> float:
    return 1 + (1 - busy**2) * (arriving - 1) + busy**2 / math.sqrt(servers) * (service - 1)


def test_a_chain_follows_through() -> None:
    network = Network([2.0, 4.0], [0.5, 2.0], [JobClass(3.0, 0.25, [(0, ()), (1, (0,))])])
    servers = np.array([2, 1])
    assert network.loads.tolist() == [1.5, 0.75]
    assert network.arrival_scvs(servers).tolist() == pytest.approx([0.25, _departing(0.75, 2, 0.25, 0.5)])


def test_streams_merge_by_rate_and_split_by_share() -> None:
    classes = [JobClass(1.0, 0.2, [(0, ()), (1, (0,))]), JobClass(3.0, 2.0, [(0, ()), (2, (0,))])]
    network = Network([8.0, 2.0, 6.0], [0.5, 1.0, 1.0], classes)
    merged = (1 * 0.2 + 3 * 2.0) / 4
    out = _departing(0.5, 1, merged, 0.5)
    first = 0.25 * out + 0.75 * (0.25 + 0.75 * 0.2)
    second = 0.75 * out + 0.25 * (0.75 + 0.25 * 2.0)
    assert network.arrival_rates.tolist() == [4, 1, 3]
    assert network.arrival_scvs(np.array([1, 1, 1])).tolist() == pytest.approx([merged, first, second])


def test_a_fork_gives_each_branch_the_stream_and_a_join_takes_it_once() -> None:
    route = [(0, ()), (1, (0,)), (2, (0,)), (3, (1, 2))]
    network = Network([5.0] * 4, [0.5, 0.1, 3.0, 1.0], [JobClass(2.0, 0.3, route)])
    assert network.arrival_rates.tolist() == [2, 2, 2, 2]
    found = network.arrival_scvs(np.ones(4, np.int64))
    forked = _departing(0.4, 1, 0.3, 0.5)
    assert found[1:3].tolist() == pytest.approx([forked, forked])
    assert found[3] == pytest.approx((_departing(0.4, 1, forked, 0.1) + _departing(0.4, 1, forked, 3.0)) / 2)


def test_exponential_times_stay_exponential_everywhere() -> None:
    classes = [JobClass(1.0, 1.0, [(0, ()), (1, (0,)), (2, (0, 1))]), JobClass(2.0, 1.0, [(2, ()), (0, (2,))])]
    network = Network([2.0, 3.0, 4.0], [1.0] * 3, classes)
    assert network.arrival_scvs(np.array([2, 1, 3])).tolist() == pytest.approx([1, 1, 1])
    assert network.least_arrival_scvs(np.full(3, math.inf)).tolist() == pytest.approx([1, 1, 1])


def test_one_allocation_or_many_and_one_server_after_another_give_the_same() -> None:
    classes = [
        JobClass(1.0, 0.3, [(0, ()), (1, (0,)), (2, (1,))]),
        JobClass(2.0, 1.7, [(2, ()), (1, (2,)), (0, (1,))]),  # the other way around
    ]
    network = Network([2.0, 1.3, 4.0], [0.4, 1.6, 0.0], classes)
    rows = np.array([[2, 3, 1], [4, 3, 2], [9, 30, 5]])
    together = network.arrival_scvs(rows)
    flow = network.follow(np.array([2, 3, 1]))
    for row, expected in zip(rows, together, strict=True):
        assert network.arrival_scvs(row) == pytest.approx(expected)
        for station, count in enumerate(row):
            while flow.servers[station] < count:
                flow.add(station)
        assert flow.scvs == pytest.approx(expected)
        assert (expected >= network.least_arrival_scvs(np.array([9.0, 30.0, 5.0])) - 1e-12).all()
        assert (expected >= network.least_arrival_scvs(np.full(3, math.inf)) - 1e-12).all()
    only = rows[0].astype(np.float64)
    assert network.table.least.tolist() == rows[0].tolist()
    assert network.least_arrival_scvs(only) == pytest.approx(together[0])  # where there is no choice, it is no bound


def test_where_there_is_no_steady_state_the_length_is_infinite_there_only() -> None:
    network = Network([1.0, 4.0], [1.0, 1.0], [JobClass(2.0, 1.0, [(0, ()), (1, (0,))])])
    lengths = network.lengths(np.array([1, 1]))
    assert lengths[0] == math.inf
    assert lengths[1] == pytest.approx(1.0)


def test_a_class_that_does_not_come_changes_nothing() -> None:
    one = JobClass(1.0, 0.5, [(0, ()), (1, (0,))])
    alone = Network([2.0, 2.0], [0.5, 0.5], [one])
    beside = Network([2.0, 2.0], [0.5, 0.5], [one, JobClass(0.0, 9.0, [(1, ()), (0, (1,))])])
    servers = np.array([1, 1])
    assert beside.lengths(servers).tolist() == alone.lengths(servers).tolist()
