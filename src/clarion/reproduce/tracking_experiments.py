"""The message-tracking document's experiment, run again: its configurations by a model, and ours really."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from clarion.reproduce.tracking_model import TABLE_2, Configuration, Load, Outcome, Strategy, model
from clarion.reproduce.tracking_runs import TRACKINGS, Room, Run, ours_by_message, run_really

DOCUMENT = Load()
MODEL_S = 60.0  # that the model has: twice the longest T_p, and a little more
_FASTER = 4  # times the rate, as the document argues


@dataclass(frozen=True)
class Results:
    """Everything that was run."""

    load: Load  # of the real runs
    persist_s: float
    outcomes: list[Outcome]  # of the document's own load, by configuration
    faster: list[Outcome]  # at four times its rate
    by_message: dict[str, Room]  # ours, were each message a batch, at the document's load
    runs: list[Run]

    @property
    def delivered(self) -> float:
        """Deliveries for each message of the model."""
        return self.outcomes[0].delivered

    def outcome(self, strategy: Strategy, buffer: str, persist_s: float, accuracy: float = 1.0) -> Outcome:
        """Return what became of a row of Table 2."""
        wanted = (strategy, buffer, persist_s, accuracy)
        return next(one for one in self.outcomes if _row(one.configuration) == wanted)

    def at_four_times(self, strategy: Strategy, buffer: str, persist_s: float, accuracy: float = 1.0) -> Outcome:
        """Return the same at four times the rate."""
        wanted = (strategy, buffer, persist_s, accuracy)
        return next(one for one in self.faster if _row(one.configuration) == wanted)


def _row(one: Configuration) -> tuple[str, str, float, float]:
    return one.strategy, one.buffer, one.persist_s, one.accuracy


def run_experiments(
    load: Load,
    *,
    seconds: float,
    rounds: int,
    persist_s: float,
    really: bool = True,
    model_s: float = MODEL_S,
    on_done: Callable[[int, int], None] | None = None,
) -> Results:
    """Run the model of all configurations and, unless told otherwise, a broker with each way of tracking."""
    at_rate = [one for one in TABLE_2 if one.buffer == "135K" and one.persist_s == 1 and one.accuracy > 0.99]
    total = len(TABLE_2) + len(at_rate) + 2 + (rounds * len(TRACKINGS) if really else 0)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if on_done is not None:
            on_done(done, total)

    outcomes = model(DOCUMENT, model_s, on_done=tick)
    faster = model(
        replace(DOCUMENT, per_s=_FASTER * DOCUMENT.per_s), min(model_s, 5.0), at_rate, on_done=tick
    )  # fmt: skip
    by_message: dict[str, Room] = {}
    for tracking in TRACKINGS[1:]:
        by_message[tracking] = ours_by_message(DOCUMENT, tracking)
        tick()
    runs = run_really(load, seconds, rounds, persist_s=persist_s, on_done=tick) if really else []
    return Results(load, persist_s, outcomes, faster, by_message, runs)
