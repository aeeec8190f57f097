"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal as OneOf

from clarion.publisher.tuner.eager import Eager
from clarion.publisher.tuner.fixed import Fixed
from clarion.publisher.tuner.literal import Literal, Recheck
from clarion.publisher.tuner.settings import TunerSettings
from clarion.publisher.tuner.tracing import Sample
from clarion.publisher.tuner.tuner import Tuner

Tuning = OneOf["auto", "eager", "recheck", "literal", "fixed"]
POLICIES: dict[str, type[Tuner]] = {"fixed": Fixed, "literal": Literal, "recheck": Recheck, "eager": Eager}
DEFAULT = "eager"  # what "auto" means


def make_tuner(
    policy: str,
    settings: TunerSettings,
    now_s: float,
    on_sample: Callable[[Sample], None] | None = None,
) -> Tuner:
    """Make the tuner of a policy: one of `POLICIES`, or "auto" for the best of them."""
    chosen = POLICIES.get(DEFAULT if policy == "auto" else policy) if isinstance(policy, str) else None
    if chosen is None:
        raise ValueError(f'tuning is "auto" or one of {", ".join(POLICIES)}; not {policy!r}')
    return chosen(settings, now_s, on_sample)


def with_batch_size(settings: TunerSettings, batch_size: int | None) -> TunerSettings:
    """Give the settings with another N to begin with, or as they are."""
    if not isinstance(settings, TunerSettings):
        raise TypeError(f"tuner is TunerSettings, not {type(settings).__name__}")
    return settings if batch_size is None else replace(settings, batch_size=batch_size)
