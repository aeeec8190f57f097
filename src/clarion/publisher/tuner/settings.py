"""The tuner's settings by name, with the values of the tuned-publisher document's Table I."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from clarion.model.ids import MAX_BATCH_MESSAGES


@dataclass(frozen=True, slots=True)
class TunerSettings:
    """What a tuner is told before it begins. The defaults are those of the document."""

    batch_size: int = 1  # N to begin with; for ever where nothing tunes it
    batch_size_min: int = 1  # N_min
    batch_size_max: int = MAX_BATCH_MESSAGES  # what no estimate of the capacity (N_max) lifts it above
    poll_min_s: float = 0.050  # T_poll_min; T_poll where nothing tunes it
    poll_max_s: float = 0.200  # T_poll_max
    wait_s: float | None = None  # T; None: T_poll_max
    poll_factor: float = 1.2  # beta
    load_gain: float = 0.5  # alpha
    capacity_gain: float = 0.75  # gamma
    publishes_in_transfer: int = 20  # which "eager" spreads over the time of a transfer
    workers: int | None = None  # that take messages one by one to the broker; None: they travel packed, in one transfer
    takes_all: bool = False  # whether a full poll takes all that is pending and not N, where messages travel packed
    polls_on_arrival: bool = False  # whether a poll is due as soon as N are pending, not only when T_poll is over

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, default = getattr(self, setting.name), setting.default
            is_whole = isinstance(default, int)
            if value is not default and not isinstance(value, int if is_whole else (int, float)):
                raise TypeError(f"{setting.name} is a {'whole ' if is_whole else ''}number, not {value!r}")
        if not 1 <= self.batch_size_min <= self.batch_size <= self.batch_size_max:
            raise ValueError(
                "batch sizes are at least 1, in the order batch_size_min, batch_size, batch_size_max; not"
                f" {self.batch_size_min}, {self.batch_size}, {self.batch_size_max}"
            )
        if not 0 < self.poll_min_s <= self.poll_max_s < inf:
            raise ValueError(f"0 < poll_min_s <= poll_max_s < inf, not {self.poll_min_s:g} and {self.poll_max_s:g}")
        if self.wait_s is not None and not 0 <= self.wait_s < inf:
            raise ValueError(f"wait_s is from 0 on and finite, not {self.wait_s:g}")
        if not (0 <= self.load_gain < 1 and 0 <= self.capacity_gain < 1):
            raise ValueError(f"gains are from 0 to below 1, not {self.load_gain:g} and {self.capacity_gain:g}")
        if not 0 < self.poll_factor < inf or self.publishes_in_transfer < 1:
            raise ValueError("poll_factor is above 0 and finite, publishes_in_transfer at least 1")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"there is at least one worker, not {self.workers}")

    @property
    def longest_wait_s(self) -> float:
        """T: how long messages wait for others at most, from the end of the last publish."""
        return self.poll_max_s if self.wait_s is None else self.wait_s


PAPER = TunerSettings()

# On a LAN a transfer takes a millisecond or so, and a poll nothing: the document's 50 ms would be felt by every message
# that is not alone. So T_poll begins at 1 ms, and enough pending messages are an event, not something to be polled for.
# A batch costs one transfer whatever is in it, so a publish takes all there is; only "fixed" ends it at N.
LAN = TunerSettings(poll_min_s=0.001, takes_all=True, polls_on_arrival=True)
