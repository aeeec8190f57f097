"""The report: claims beside what we see, our figures beside the reference's, and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clarion.reproduce.publisher_claims import OFF, Claim, Verdict, judge_all
from clarion.reproduce.publisher_experiments import (
    EAGER,
    LITERAL,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    RECHECK,
    TUNED,
    Compared,
    Hindsight,
    Results,
    compare,
    hindsight,
)
from clarion.reproduce.publisher_figures import FIGURES

REPORT, CLAIMS = "report.md", "claims.json"


class Report(msgspec.Struct, frozen=True):
    """Everything that the runs say, as numbers and verdicts."""

    extent: str
    runs: int
    traces: list[dict[str, Any]]
    claims: list[Claim]
    reference: list[Compared]
    beyond: list[Hindsight]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, with what holds counted by policy."""
        return {**msgspec.to_builtins(self), "holds": self.counts()}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many verdicts there are by policy, and how many of them hold."""
        verdicts = [verdict for claim in self.claims for verdict in claim.verdicts]
        return {
            policy: {
                "holds": sum(one.holds for one in verdicts if one.policy == policy),
                "judged": sum(one.policy == policy for one in verdicts),
            }
            for policy in (OFF, *TUNED)
        }


def make_report(results: Results) -> Report:
    """Judge everything."""
    traces = [
        {"trace": work.case, "arrivals": int(work.times_s.size), "mean_rate_per_s": work.rate_per_s,
         "given": work.given}
        for work in results.workloads.values()
    ]  # fmt: skip
    return Report(results.extent.name, results.runs, traces, judge_all(results), compare(results), hindsight(results))


def write_report(report: Report, results: Results, folder: Path) -> None:
    """Write report.md and claims.json into a folder."""
    (folder / CLAIMS).write_bytes(msgspec.json.format(msgspec.json.encode(report.to_dict()), indent=1))
    (folder / REPORT).write_text("\n\n".join(_parts(report, results)) + "\n\n", encoding="utf-8")


def _parts(report: Report, results: Results) -> Iterator[str]:
    """Return the report's headings, paragraphs and tables, between which there are empty lines."""
    yield "# The tuned publisher: the paper's experiments, run again"
    about = f"A {report.extent} reproduction: {report.runs:,} runs of the model, which runs the real publisher's tuner."
    if report.extent != "full":
        about += (
            "\nRuns are short and few here, so that single figures are rough: the full reproduction is what counts."
        )
    if not any(trace["given"] for trace in report.traces):
        about += "\nNo trace file was given: the traces are the generated lookup service's alone."
    yield about
    yield from _claims(report)
    yield from _plainly(report)
    yield from _reference(report)
    yield from _beyond(report)
    yield from _deployed(results)
    yield "## Figures"
    yield from (f"![{figure.shows}]({figure.file})" for figure in FIGURES)


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines])


def _claims(report: Report) -> Iterator[str]:
    yield "## The paper's claims"
    told = [f"{policy} {one['holds']} of {one['judged']}" for policy, one in report.counts().items()]
    yield (
        f"Of the verdicts below, in both profiles, these hold: {', '.join(told)}.\n"
        "What we see is of the literal algorithm, or of fixed N where the claim is about tuning switched off."
    )
    rows = []
    for claim in report.claims:
        for number, profile in enumerate(PROFILES):
            main = claim.of(profile, LITERAL) or claim.of(profile, OFF)
            assert main is not None
            # What both profiles share is told once.
            shared = [claim.figure, claim.claim, claim.judged_by] if number == 0 else ["", "", ""]
            beside = [_beside(claim.of(profile, policy)) for policy in (RECHECK, EAGER)]
            rows.append([*shared, profile, main.seen, _word(main.holds), *beside])
    yield _table("| | the paper's claim | judged by | profile | what we see | holds? | recheck | eager |", rows)


def _beside(verdict: Verdict | None) -> str:
    return "" if verdict is None else f"{_word(verdict.holds)}: {verdict.seen}"


def _word(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _plainly(report: Report) -> Iterator[str]:
    yield "## What does not hold for the algorithm as it is written"
    failed = [(claim, verdict) for claim in report.claims for verdict in claim.verdicts if not verdict.holds]
    lines = []
    for claim, verdict in failed:
        if verdict.policy not in (LITERAL, OFF):
            continue
        others = [claim.of(verdict.profile, policy) for policy in (RECHECK, EAGER)]
        told = "; ".join(f"{one.policy} {'holds' if one.holds else 'does not'}: {one.seen}" for one in others if one)
        beside = f" Beside it: {told}." if told else ""
        lines.append(f"* {claim.figure}, {verdict.profile}: {claim.claim} We see: {verdict.seen}.{beside}")
    yield "\n".join(lines) or "Everything holds."


def _reference(report: Report) -> Iterator[str]:
    held = sum(one.holds for one in report.reference)
    yield "## Beside the independent reference model"
    yield (
        f"{held} of {len(report.reference)} figures are within 10 % (mean N: 15 %), or unstable where the reference is."
        " Reference → ours; response in ms."
    )
    for profile in PROFILES:
        ours = [one for one in report.reference if one.profile == profile]
        names = dict.fromkeys(one.what for one in ours)
        loads = dict.fromkeys(one.load_per_s for one in ours)
        rows = [[f"{load:g}", *(_compared(one) for one in ours if one.load_per_s == load)] for load in loads]
        yield _table(f"| {profile}, requests/s | {' | '.join(names)} |", rows)


def _compared(one: Compared) -> str:
    digits = 1 if "N" in one.what and "=" not in one.what else 0
    reference = "unstable" if one.reference is None else f"{one.reference:,.{digits}f}"
    ours = "unstable" if one.unstable else f"{one.ours:,.{digits}f}"
    return f"{reference} → {ours}{'' if one.holds else ' **(off)**'}"


def _beyond(report: Report) -> Iterator[str]:
    yield "## Beyond the paper: against the best fixed N in hindsight"
    yield "Mean response in ms, and in ratio to the fixed N that turned out best for that load."
    yield (
        "The paper's T_poll is 50 ms at least. That delays a fixed N, but not `eager`, which polls when something\n"
        "is pending; so the best fixed N with polls every 5 ms is shown too, as what N alone can do."
    )
    rows = []
    for row in report.beyond:
        cells = [f"{row.tuned_ms[policy]:,.0f} ({row.ratio(policy):.2f})" for policy in TUNED]
        fine = "" if row.fine_ms is None else f"{row.fine_ms:,.0f} ({row.fine_ms / row.best_ms:.2f})"
        rows.append([row.profile, row.case, f"N = {row.best_size}: {row.best_ms:,.0f}", fine, *cells])
    yield _table(f"| profile | requests/s | best fixed N | best fixed N, T_poll 5 ms | {' | '.join(TUNED)} |", rows)
    best = [row for row in report.beyond if row.tuned_ms[EAGER] < row.tuned_ms[RECHECK]]
    within = [row for row in report.beyond if row.ratio(EAGER) <= 1.05]
    finer = [row.tuned_ms[EAGER] <= row.fine_ms for row in report.beyond if row.fine_ms is not None]
    yield (
        f"`eager` is below `recheck` in {len(best)} of {len(report.beyond)} rows, and within 5 % of the best fixed N or"
        f" below it in {len(within)}. It is at or below the best fixed N with polls every 5 ms in {sum(finer)} of"
        f" {len(finer)} rows."
    )


def _deployed(results: Results) -> Iterator[str]:
    yield "## Beside the deployed system (T_poll = 1000 ms, no tuning)"
    loads = [f"{load:g}" for load in LOADS_PER_S]
    rows = []
    for profile in PROFILES:
        best = [results.best_deployed(LOAD, profile, load) for load in loads]
        rows.append([profile, *(f"{mean_ms:,.0f} (N = {size})" for size, mean_ms in best)])
    yield _table(f"| mean response, ms, with its best N | {' | '.join(f'{load}/s' for load in loads)} |", rows)


def summary_rows(claims: Sequence[Claim]) -> Iterator[tuple[str, ...]]:
    """Return claims for a screen: figure, claim, and for each profile the verdicts in one word each."""
    for claim in claims:
        words = []
        for profile in PROFILES:
            verdicts = [one for one in claim.verdicts if one.profile == profile]
            words.append(" ".join("yes" if one.holds else "no" for one in verdicts))
        policies = " ".join(one.policy for one in claim.verdicts if one.profile == PROFILES[0])
        yield claim.figure, claim.claim, policies, *words
