"""Erlang's formulas: textbook values, and the definition summed in 60 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest

from clarion.queueing.erlang import erlang_b, erlang_c, queue_length_mmm


def _defined(servers: int, load: float) -> tuple[float, float]:
    """Return Erlang B and C as they are defined, by sums of load^k / k!."""
    with localcontext() as context:
        context.prec = 60
        offered, term, total = Decimal(load), Decimal(1), Decimal(1)
        for count in range(1, servers + 1):
            term = term * offered / count
            total += term
        waits = term * servers / (servers - offered)
        return float(term / total), float(waits / (total - term + waits))


@pytest.mark.parametrize("servers", [1, 2, 3, 10, 100, 1000, 10_000])
@pytest.mark.parametrize("busy", [0.1, 0.5, 0.9, 0.99, 0.9999])
def test_both_formulas_are_right_to_1e_9_with_up_to_10_000_servers(servers: int, busy: float) -> None:
    load = servers * busy
    blocked, waits = _defined(servers, load)
    assert erlang_b(servers, load) == pytest.approx(blocked, rel=1e-9, abs=1e-300)
    assert erlang_c(servers, load) == pytest.approx(waits, rel=1e-9, abs=1e-300)


def test_textbook_values() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)  # 2 rho^2 / (1 + rho)
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)
    assert queue_length_mmm(3, 2.0) == pytest.approx(8 / 9)
    assert queue_length_mmm(1, 0.5) == pytest.approx(0.5)
    assert erlang_b(5, 3.0) == pytest.approx(0.11005434782608696)


def test_without_a_steady_state_everybody_waits_behind_infinitely_many() -> None:
    assert erlang_c(2, 2.0) == 1
    assert queue_length_mmm(2, 2.0) == math.inf
    assert queue_length_mmm(2, 5.0) == math.inf


def test_where_nothing_arrives_nobody_waits() -> None:
    assert (erlang_b(3, 0.0), erlang_c(3, 0.0), queue_length_mmm(3, 0.0)) == (0, 0, 0)
