"""A claim of a paper: the rule it is judged by, and what we see of it for each profile and policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

Results = TypeVar("Results")  # what the runs of a paper's experiments gave
OFF = "tuning off"  # in the policy's place, where the claim is about fixed N
UNTUNED = (OFF,)


class Seen(NamedTuple):
    """What the runs gave: in words, whether the claim holds, and the numbers it was judged by."""

    text: str
    holds: bool
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we see of a claim for one profile and policy."""

    profile: str
    policy: str
    seen: str
    holds: bool
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of a paper with its verdicts; none are typed in, all are computed."""

    name: str
    figure: str
    claim: str
    judged_by: str
    verdicts: tuple[Verdict, ...]

    def of(self, profile: str, policy: str) -> Verdict | None:
        """Return the verdict for a profile and policy, if there is one."""
        return next((one for one in self.verdicts if (one.profile, one.policy) == (profile, policy)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rule(Generic[Results]):
    """How a claim is judged: for each profile and each of these policies `look` gives what is seen."""

    name: str
    figure: str
    claim: str
    judged_by: str
    policies: tuple[str, ...]
    look: Callable[[Results, str, str], Seen]

    def judge(self, results: Results, profiles: Sequence[str]) -> Claim:
        """Judge the claim by what the runs gave."""
        verdicts = [
            Verdict(profile, policy, *self.look(results, profile, policy))
            for profile in profiles
            for policy in self.policies
        ]
        return Claim(self.name, self.figure, self.claim, self.judged_by, tuple(verdicts))


def percent(ratio: float) -> str:
    """Return a ratio as a signed difference: +12 %."""
    return f"{100 * (ratio - 1):+.0f} %"


def milliseconds(values: Sequence[float]) -> str:
    """Return response times: 315 / 403 / 448 ms."""
    return " / ".join(f"{value:,.0f}" for value in values) + " ms"
