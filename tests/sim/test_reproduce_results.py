"""Results over seeds: the best fixed N is one that carries the load, and claims are judged either way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clarion.sim.publisher import Outcome
from clarion.sim.reproduce import QUICK
from clarion.sim.reproduce.cells import FIXED, HEAVY, LITERAL, LOAD, LOADS_PER_S, SLOW, TUNED, Cell, load_cell
from clarion.sim.reproduce.claims.claim import Claim
from clarion.sim.reproduce.claims.congestion import SLOW_RULES
from clarion.sim.reproduce.claims.loads import LOAD_RULES
from clarion.sim.reproduce.results import Results


def _outcome(mean_ms: float = 100.0, *, dropped: int = 0, unfinished: int = 5, size: float = 1.0) -> Outcome:
    """An outcome of 1000 messages in 100 s."""
    told = SimpleNamespace(
        response_ms={"mean": mean_ms}, offered=1000, dropped=dropped, unfinished=unfinished, seconds=100.0,
        batch_size_mean=size,
    )  # fmt: skip
    return cast(Outcome, told)


class _Same(dict[Cell, list[Outcome]]):
    """Gives every cell that is not there the same outcome."""

    def __missing__(self, cell: Cell) -> list[Outcome]:
        return [_outcome()]


def _judge(rules: Any, name: str, outcomes: dict[Cell, list[Outcome]]) -> Claim:
    rule = next(rule for rule in rules if rule.name == name)
    judged: Claim = rule.judge(Results(QUICK, [], outcomes))
    return judged


def test_means_are_over_seeds() -> None:
    cell = load_cell(HEAVY, 35.0, LITERAL)
    results = Results(QUICK, [], {cell: [_outcome(100.0, size=4.0), _outcome(300.0, dropped=20, size=8.0)]})
    assert results.mean_ms(cell) == 200
    assert results.batch_size_mean(cell) == 6
    assert (results.dropped(cell), results.dropped_share(cell)) == (20, 0.01)


@pytest.mark.parametrize("trouble", [{"dropped": 300}, {"unfinished": 400}])
def test_a_fixed_n_that_does_not_carry_the_load_is_not_the_best(trouble: dict[str, int]) -> None:
    quick, carrying = (load_cell(HEAVY, 35.0, FIXED, size) for size in (1, 10))
    results = Results(QUICK, [], {quick: [_outcome(50.0, **trouble)], carrying: [_outcome(90.0)]})
    assert results.is_unstable(quick)
    assert results.best_fixed(LOAD, HEAVY, "35", (1, 10)) == (10, 90.0)


@pytest.mark.parametrize(("dropped", "holds"), [(0, True), (1, False)])
def test_a_single_lost_message_breaks_the_promise_of_no_losses(dropped: int, holds: bool) -> None:
    outcomes = _Same({Cell(SLOW, HEAVY, "", LITERAL, gated=True): [_outcome(), _outcome(dropped=dropped)]})
    verdict = _judge(SLOW_RULES, "no-loss-gated", outcomes).of(HEAVY, LITERAL)
    assert verdict is not None
    assert verdict.holds == holds


@pytest.mark.parametrize(("last_ms", "holds"), [(104.0, True), (106.0, False)])
def test_five_percent_between_initial_sizes_is_the_bound(last_ms: float, holds: bool) -> None:
    outcomes = _Same({load_cell(HEAVY, LOADS_PER_S[2], LITERAL, 50): [_outcome(last_ms)]})
    claim = _judge(LOAD_RULES, "same-for-any-start", outcomes)
    assert [one.holds for one in claim.verdicts if one.profile == HEAVY] == [holds, *[True] * (len(TUNED) - 1)]
