"""The GI/G/m approximations against what is known exactly, and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clarion.queueing import APPROXIMATIONS, Approximation, queue_length, waiting_time
from clarion.queueing.erlang import queue_length_mmm
from clarion.queueing.gi_g_m import StationTable, gamma_p95


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize(("servers", "load"), [(1, 0.3), (2, 1.9), (30, 25.0)])
def test_both_are_exact_for_exponential_times(approximation: Approximation, servers: int, load: float) -> None:
    assert queue_length(servers, load, 1, 1, approximation) == pytest.approx(queue_length_mmm(servers, load))


@pytest.mark.parametrize("scv", [0.0, 0.5, 2.0])
def test_one_server_and_random_arrivals_follow_pollaczek_and_khinchine(scv: float) -> None:
    assert queue_length(1, 0.8, 1, scv) == pytest.approx(0.8**2 * (1 + scv) / 2 / 0.2)
    assert queue_length(1, 0.8, 1, 0, "whitt") == pytest.approx(0.8**2 / 2 / 0.2)


def test_whitt_has_the_correction_of_cosmetatos_for_constant_service() -> None:
    gamma = 0.5 * (math.sqrt(14) - 2) / (16 * 2 * 0.5)
    assert queue_length(2, 1.0, 1, 0, "whitt") == pytest.approx((1 + gamma) / 2 / 3)


def test_whitt_follows_its_equation_2_25_where_arrivals_vary_less_than_service() -> None:
    servers, busy, arrivals, service = 3, 0.8, 0.25, 0.5
    gamma = (1 - busy) * 2 * (math.sqrt(19) - 2) / (16 * 3 * busy)
    phi_3 = (1 - 4 * gamma) * math.exp(-2 * (1 - busy) / (3 * busy))
    phi_4 = (1 + gamma + phi_3) / 2
    mean = (arrivals + service) / 2
    psi = phi_4 ** (2 * (1 - mean))
    phi = (service - arrivals) / (4 * mean) * phi_3 + (service + 3 * arrivals) / (4 * mean) * psi
    expected = phi * mean * queue_length_mmm(servers, servers * busy)
    assert queue_length(servers, servers * busy, arrivals, service, "whitt") == pytest.approx(expected)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_more_variation_never_means_fewer_waiting(approximation: Approximation) -> None:
    steps = [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 8.0]
    for servers in (1, 2, 7, 60):
        for busy in (0.05, 0.5, 0.95):
            for service in steps:
                found = [queue_length(servers, servers * busy, each, service, approximation) for each in steps]
                assert found == sorted(found)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_constant_times_make_nobody_wait_and_overload_makes_everybody(approximation: Approximation) -> None:
    assert queue_length(2, 1.5, 0, 0, approximation) == 0
    assert queue_length(2, 0.0, 1, 1, approximation) == 0
    assert queue_length(2, 2.0, 0, 0, approximation) == math.inf


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_a_table_tells_what_the_formula_tells(approximation: Approximation) -> None:
    loads, service, arrivals = np.array([0.0, 0.4, 2.0, 31.7]), np.array([1.0, 0.0, 0.5, 3.0]), np.full(4, 0.7)
    table = StationTable(loads, service, approximation)
    assert table.least.tolist() == [1, 1, 3, 32]
    for more in (0, 1, 5, 40):
        servers = table.least + more
        expected = [
            queue_length(int(m), a, ca2, cs2, approximation)
            for m, a, ca2, cs2 in zip(servers, loads, arrivals, service, strict=True)
        ]
        assert table.queues(servers, arrivals) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert table.queues(np.array([1, 1, 2, 32]), arrivals)[2] == math.inf


def test_the_waiting_time_of_exponential_times_is_exact() -> None:
    wait = waiting_time(1, 0.5, 1.0, queue_length(1, 0.5, 1, 1), 1)
    assert wait.mean == pytest.approx(1.0)
    assert wait.variance == pytest.approx(3.0)  # (2 - rho) rho / (mu - lambda)^2


def test_nobody_waiting_takes_no_time_and_no_steady_state_forever() -> None:
    assert waiting_time(1, 0.5, 1.0, 0.0, 0.0) == (0, 0)
    assert waiting_time(1, 0.0, 1.0, 0.0, 1.0) == (0, 0)
    assert waiting_time(1, 2.0, 1.0, math.inf, 1.0) == (math.inf, math.inf)


def test_the_percentile_is_near_the_gamma_distributions() -> None:
    assert gamma_p95(1.0, 1.0) == pytest.approx(-math.log(0.05), rel=0.01)
    assert gamma_p95(2.0, 2.0) == pytest.approx(4.7439, rel=0.01)  # two exponential times of mean 1
    assert gamma_p95(0.5, 0.5) == pytest.approx(3.8415 / 2, rel=0.03)  # half a chi-squared of one degree
    assert gamma_p95(3.0, 0.0) == 3
    assert gamma_p95(math.inf, math.inf) == math.inf
