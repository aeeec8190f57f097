"""Claims that are judged by functions: each rule stands under the sentence that it judges, and verdicts have words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

REPORT, NUMBERS = "report.md", "report.json"
HOLDS, DIFFERS, NOT, NOT_SHOWN = "holds", "differs", "does not hold", "not shown"

ResultsT = TypeVar("ResultsT")


class Seen(NamedTuple):
    """A verdict, what it rests on in words, and the numbers."""

    verdict: str
    text: str
    values: dict[str, Any]


class Claim(msgspec.Struct, frozen=True):
    """A sentence with its verdict; none is typed in, all are computed."""

    name: str
    claim: str
    judged_by: str
    ours: bool
    verdict: str = ""
    seen: str = ""
    values: dict[str, Any] = {}


class Rules(Generic[ResultsT]):
    """The rules of one report, in their order."""

    def __init__(self) -> None:
        self._rules: list[tuple[Claim, Callable[[ResultsT], Seen]]] = []

    def judges(
        self, name: str, judged_by: str, *, ours: bool = False
    ) -> Callable[[Callable[[ResultsT], Seen]], Callable[[ResultsT], Seen]]:
        """Add the rule by which a function judges the claim that is the function's docstring."""

        def add(look: Callable[[ResultsT], Seen]) -> Callable[[ResultsT], Seen]:
            self._rules.append((Claim(name, " ".join((look.__doc__ or "").split()), judged_by, ours), look))
            return look

        return add

    def judge(self, results: ResultsT) -> list[Claim]:
        """Return all claims with their verdicts."""
        claims = []
        for claim, look in self._rules:
            seen = look(results)
            values = msgspec.to_builtins(seen.values, str_keys=True)
            claims.append(Claim(claim.name, claim.claim, claim.judged_by, claim.ours, seen.verdict, seen.text, values))
        return claims


def held(holds: bool) -> str:
    """Return the verdict of a claim that either holds or does not."""
    return HOLDS if holds else NOT


def count_verdicts(claims: Iterable[Claim], verdicts: Sequence[str]) -> dict[str, int]:
    """Return how many of the claims that are not ours have each verdict."""
    found = [claim.verdict for claim in claims if not claim.ours]
    return {verdict: found.count(verdict) for verdict in verdicts}


def claim_rows(claims: Iterable[Claim]) -> Iterator[Sequence[str]]:
    """Return claims for a table of a report."""
    for claim in claims:
        shown = claim.verdict if claim.verdict == HOLDS else f"**{claim.verdict}**"
        yield [claim.claim, claim.judged_by, claim.seen, shown]


def summary_rows(claims: Iterable[Claim]) -> Iterator[tuple[str, ...]]:
    """Return claims for a screen: whose, the claim, and the verdict."""
    for claim in claims:
        yield "ours" if claim.ours else "", claim.claim, claim.verdict


def write_parts(values: dict[str, Any], parts: Iterable[str], folder: Path) -> None:
    """Write report.json, and report.md with empty lines between its parts, into a folder."""
    (folder / NUMBERS).write_bytes(msgspec.json.format(msgspec.json.encode(values), indent=1))
    (folder / REPORT).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
