"""The report: the lecture's results table beside ours, and its claims judged by formula and by simulation.

Claims are in the lecture's order, each above the function that judges it; ours follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from clarion.feeds.honeycomb import Scheme
from clarion.reproduce.claims import listed, percent, table, word
from clarion.reproduce.feeds_experiments import (
    CHURN_PER_HOUR,
    LECTURE,
    Results,
    by_pollers,
    by_update_interval,
    ranked,
    spread,
)
from clarion.reproduce.feeds_figures import FIGURES, NAMES
from clarion.reproduce.judged_claims import (
    DIFFERS,
    HOLDS,
    NOT,
    Claim,
    Rules,
    Seen,
    claim_rows,
    count_verdicts,
    held,
    write_parts,
)

FAIRS = (Scheme.FAIR, Scheme.FAIR_SQRT, Scheme.FAIR_LOG)
_NEAR = 1.1  # times as long or as much: so near a figure of the lecture's table counts as the same
_ALIKE = 1.15
_GAP = 1e-4
_AGREES = 0.02


_rules: Rules[Results] = Rules()


def _near(one: float, other: float) -> bool:
    return max(one / other, other / one) <= _NEAR


def _beside_table(results: Results, scheme: Scheme) -> Seen:
    """Judge a row of the lecture's table: its time with real wedges, at our load and at the lecture's."""
    time_s, load = LECTURE[scheme]
    ours, same = results.outcomes[scheme].real_wedges, results.at_lecture_load[scheme].real_wedges
    text = (
        f"{ours[0].by_subscription:.1f} s at {ours[1].polls:.2f}; at the lecture's load {same[0].by_subscription:.1f} s"
    )
    near = _near(ours[0].by_subscription, time_s) or _near(same[0].by_subscription, time_s)
    values = {
        "detection_s": ours[0].by_subscription, "polls": ours[1].polls, "lecture": [time_s, load],
        "detection_s_at_lecture_load": same[0].by_subscription,
    }  # fmt: skip
    return Seen(HOLDS if near else DIFFERS, text, values)


_ROW = "the mean over subscriptions with real wedges, at our load or at the lecture's, is within 10 % of its time"


@_rules.judges("table-legacy", "half a poll interval; subscriptions by channels")
def _legacy(results: Results) -> Seen:
    """Legacy RSS: 900 s at a load of 50."""
    times, costs = results.outcomes[Scheme.LITE].legacy
    holds = (times.by_subscription, round(costs.polls, 6)) == LECTURE["legacy"]
    return Seen(held(holds), f"{times.by_subscription:g} s at {costs.polls:g}", {"polls": costs.polls})


@_rules.judges("table-lite", _ROW)
def _lite(results: Results) -> Seen:
    """Corona-Lite: 53 s at a load of 48.97."""
    return _beside_table(results, Scheme.LITE)


@_rules.judges("table-fair", _ROW)
def _fair(results: Results) -> Seen:
    """Corona-Fair: 142 s at a load of 50.14."""
    return _beside_table(results, Scheme.FAIR)


@_rules.judges("table-fair-sqrt", _ROW)
def _fair_sqrt(results: Results) -> Seen:
    """Corona-Fair-Sqrt: 55 s at a load of 49.46."""
    return _beside_table(results, Scheme.FAIR_SQRT)


@_rules.judges("table-fair-log", _ROW)
def _fair_log(results: Results) -> Seen:
    """Corona-Fair-Log: 53 s at a load of 49.43."""
    return _beside_table(results, Scheme.FAIR_LOG)


@_rules.judges(
    "table-fast", "time and load of its 30 s target, with real wedges, are both within 10 % of the lecture's"
)
def _fast(results: Results) -> Seen:
    """Corona-Fast: 32 s at a load of 58.75."""
    seen = _beside_table(results, Scheme.FAST)
    time_s, load = LECTURE[Scheme.FAST]
    ours = results.outcomes[Scheme.FAST]
    same = results.at_lecture_load[Scheme.FAST]
    both = _near(ours.real_wedges[0].by_subscription, time_s) and _near(ours.real_wedges[1].polls, load)
    text = (
        f"by formula {ours.formula[0].by_subscription:.1f} s at {ours.formula[1].polls:.1f}, with real wedges"
        f" {ours.real_wedges[0].by_subscription:.1f} s. The lecture does not tell its target: at its load we have"
        f" {same.formula[0].by_subscription:.1f} s by formula and {same.real_wedges[0].by_subscription:.1f} s with real"
        " wedges, so that its pair of figures is on neither curve of ours"
    )
    return Seen(HOLDS if both else DIFFERS, text, seen.values)


@_rules.judges("fastest", "its mean is the least of all, by formula and with real wedges, and its load above Lite's")
def _fastest(results: Results) -> Seen:
    """Corona-Fast is the fastest, and increases the load, though not by much."""
    times = {scheme: results.outcomes[scheme].real_wedges[0].by_subscription for scheme in NAMES}
    formula = {scheme: results.outcomes[scheme].formula[0].by_subscription for scheme in NAMES}
    more = results.outcomes[Scheme.FAST].formula[1].polls / results.outcomes[Scheme.LITE].formula[1].polls
    first = all(min(each, key=lambda scheme: each[scheme]) is Scheme.FAST for each in (times, formula))
    text = f"{times[Scheme.FAST]:.1f} s beside {times[Scheme.LITE]:.1f} s of Lite, at {percent(more)} load"
    return Seen(held(first and more > 1), text, {"load_ratio": more})


@_rules.judges(
    "order", "means with real wedges, of every seed: Fast < Lite <= Log <= Sqrt < Fair, and Sqrt within 15 % of Lite"
)
def _order(results: Results) -> Seen:
    """Fair's mean is by far the highest, as it gives too much emphasis to the rate of change; square root and
    logarithm bring it back to Lite's."""
    names = (Scheme.FAST, Scheme.LITE, Scheme.FAIR_LOG, Scheme.FAIR_SQRT, Scheme.FAIR)
    runs = [
        [results.seeds[scheme][seed].real_wedges[0].by_subscription for scheme in names]
        for seed in range(results.extent.seeds)
    ]
    holds = all(a < b <= c <= d < e for a, b, c, d, e in runs)
    back = all(max(c, d) <= _ALIKE * b for _, b, c, d, _ in runs)
    text = "; ".join(f"{listed(times, '.1f')} s" for times in runs)
    return Seen(held(holds and back), f"{' / '.join(NAMES[one] for one in names)}, by seed: {text}", {"times_s": runs})


@_rules.judges(
    "lite-load", "planned bandwidth of Lite and the Fairs is within the budget; real wedges add less than 1 %"
)
def _within_budget(results: Results) -> Seen:
    """The aim was never to increase the load beyond what legacy RSS would produce."""
    some = [results.outcomes[scheme] for scheme in NAMES if scheme is not Scheme.FAST]
    some += [one for scheme in NAMES if scheme is not Scheme.FAST for one in results.seeds[scheme]]
    planned = max(one.plan.bandwidth / one.plan.budget for one in some)
    real = max(one.pollers[1].bandwidth / one.plan.budget for one in some)
    text = (
        f"planned at most {planned:.5f} of the budget; on rings with random ids up to {real:.4f} of it, for some wedges"
        " are larger than N/b^l and owners outside of theirs poll, too"
    )
    return Seen(held(planned <= 1 + 1e-9 and real < 1.01), text, {"planned": planned, "real": real})


@_rules.judges("popular-gain", "with Lite the most popular 1 % wait less than half as long as the least popular half")
def _popular(results: Results) -> Seen:
    """With Corona-Lite clients of popular channels gain a lot, and less popular channels suffer."""
    model = results.extent.model
    times_s = model.poll_interval_s / (2 * results.outcomes[Scheme.LITE].each.pollers)
    top, rest = float(times_s[: model.channels // 100].mean()), float(times_s[model.channels // 2 :].mean())
    worst = float(ranked(results, Scheme.LITE)[1][-1])
    text = (
        f"{top:.1f} s for the most popular 1 %, {rest:.1f} s for the less popular half; the least popular channels wait"
        f" {worst:.0f} s, still less than the 900 s of subscribers alone"
    )
    return Seen(held(2 * top < rest), text, {"top_s": top, "less_popular_s": rest})


@_rules.judges(
    "fair-by-rate",
    "with Fair channels that change every 10 to 15 min wait less than a tenth of those that change weekly",
)
def _fair_by_rate(results: Results) -> Seen:
    """Corona-Fair reduces the number of servers where updates are rare, and very slowly changing channels may wait
    very long; square root and logarithm dampen that."""
    ends = {scheme: [float(by_update_interval(results, scheme)[1][at]) for at in (0, -1)] for scheme in FAIRS}
    text = "; ".join(f"{NAMES[scheme]} {often:.1f} and {weekly:.0f} s" for scheme, (often, weekly) in ends.items())
    ratios = [weekly / often for often, weekly in ends.values()]
    holds = ratios[0] > 10 and ratios[0] > ratios[1] > ratios[2]
    return Seen(held(holds), f"often and weekly changing: {text}", {"ratios": ratios})


@_rules.judges("random-polls", "measured with random phases, detection of wide wedges is within 5 % of tau / (2 n)")
def _random_polls(results: Results) -> Seen:
    """Nodes poll at random intervals, and the average detection time is tau / 2 by N / b^l."""
    n, (even_s, random_s) = _widest(results)
    formula_s = results.extent.model.poll_interval_s / (2 * n)
    text = (
        f"of {n} pollers: tau / (2 n) = {formula_s:.2f} s; measured {random_s:.2f} s at random phases, which is"
        f" tau / (n + 1), and {even_s:.2f} s where polls are evenly spaced by rank, as ours are"
    )
    return Seen(held(abs(random_s / formula_s - 1) < 0.05), text, {"even_s": even_s, "random_s": random_s})


def _widest(results: Results) -> tuple[int, tuple[float, float]]:
    found = by_pollers(results.outcomes[Scheme.LITE])
    n = max(found)
    return n, found[n]


@_rules.judges("load-2-l", "Lite's own plan, were its wedges N / 2^l, is within the budget")
def _slip(results: Results) -> Seen:
    """The collective load on the server is proportional to N / 2^l (a slide)."""
    plan, model = results.outcomes[Scheme.LITE].plan, results.extent.model
    load = float((model.nodes / 2.0**plan.levels).mean())
    text = f"it would be {load:.0f} polls a channel, of a budget of {plan.budget:.0f}: b^l is meant"
    return Seen(held(load <= plan.budget), text, {"load": load})


@_rules.judges("empty-wedges", "with Lite some wedges are empty")
def _empty(results: Results) -> Seen:
    """Occasionally a wedge has no nodes."""
    one = results.outcomes[Scheme.LITE]
    share = one.empty_wedges / results.extent.model.channels
    text = f"{one.empty_wedges:,} of {results.extent.model.channels:,} ({share:.1%}); their owners poll all the same"
    return Seen(held(one.empty_wedges > 0), text, {"empty": one.empty_wedges})


@_rules.judges("honeycomb", "of every scheme the gap to the linear bound is below 1e-4")
def _honeycomb(results: Results) -> Seen:
    """Honeycomb's fast approximation is as good as optimal."""
    gaps = {NAMES[scheme]: results.outcomes[scheme].plan.gap_to_bound for scheme in NAMES}
    text = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
    return Seen(held(max(gaps.values()) < _GAP), text, {"gaps": gaps})


@_rules.judges(
    "alone",
    "planned detection and load of owners that decide alone are within 1 % of the central plan, its budget kept",
)
def _alone(results: Results) -> Seen:
    """Nodes exchange trade-off clusters, and each runs the algorithm on its own."""
    worst, texts, kept = 1.0, [], True
    for scheme, alone in results.alone.items():
        ours, central = alone.plan, results.outcomes[scheme].plan
        ratio = ours.detection_s_by_subscription / central.detection_s_by_subscription
        worst = max(worst, ratio, 1 / ratio, central.polls / ours.polls, ours.polls / central.polls)
        kept = kept and (scheme is Scheme.FAST or ours.bandwidth <= ours.budget * (1 + 1e-9))
        texts.append(f"{NAMES[scheme]} {ours.detection_s_by_subscription:.2f} s ({100 * (ratio - 1):+.2f} %)")
    first, one = next(iter(results.alone.items()))
    size = one.bytes_a_node
    text = f"{', '.join(texts)}; with {NAMES[first]} a node tells {size / 1000:.1f} KB, and all come to {one.clusters}"
    text += " clusters"
    return Seen(held(worst < 1.01 and kept), text, {"worst_ratio": worst, "bytes_a_node": size})


@_rules.judges("tree", "over a sample of changes, a tree has one message less than a wedge has nodes, and few hops")
def _tree(results: Results) -> Seen:
    """An update reaches all nodes of the wedge over the DAG of routing rows."""
    found = results.outcomes[Scheme.LITE].dissemination
    assert found is not None
    text = (
        f"{found.messages:.1f} messages a change for {found.wedge:.1f} nodes, {found.depth:.1f} hops deep, after"
        f" {found.hops_to_owner:.1f} hops from who saw it to the owner. Ours travels as one message on a topic"
    )
    return Seen(held(abs(found.messages - found.wedge + 1) < 1e-9), text, {"messages": found.messages})


@_rules.judges(
    "first-hours", "within four hours Lite's detection is within 1 % of what it stays at, and load never above it"
)
def _hours(results: Results) -> Seen:
    """Owners begin alone, and maintenance each hour brings wedges to their size."""
    hours = results.hours[Scheme.LITE]
    end_s, at = hours.detection_s[-1], int(np.argmax(hours.detection_s <= 1.01 * hours.detection_s[-1]))
    text = f"{hours.detection_s[0]:.0f} s at first, {end_s:.1f} s after {hours.at_s[at] / 3600:.1f} h"
    holds = hours.at_s[at] <= 4 * 3600 and float(hours.polls.max()) <= 1.001 * hours.polls[-1]
    return Seen(held(holds), text, {"settled_s": float(hours.at_s[at])})


@_rules.judges(
    "agrees", "of every scheme, what is measured is within 2 % of tau / (2 n) over its real pollers", ours=True
)
def _agrees(results: Results) -> Seen:
    """Simulated change by change, detection is what the formula says of evenly spaced polls."""
    off = {NAMES[scheme]: results.outcomes[scheme].disagreement for scheme in NAMES}
    text = ", ".join(f"{name} {one:.2%}" for name, one in off.items())
    return Seen(held(max(off.values()) <= _AGREES), f"off by {text}", {"off": off})


@_rules.judges("spacing", "of the widest wedges random phases take at least 1.8 times as long", ours=True)
def _spacing(results: Results) -> Seen:
    """Spacing polls evenly is worth nearly a factor of two."""
    n, (even_s, random_s) = _widest(results)
    whole = results.outcomes[Scheme.LITE].worth_of_spacing
    text = f"{random_s / even_s:.2f} of {n} pollers; {whole:.2f} over all subscriptions, for small wedges gain less"
    return Seen(held(random_s / even_s >= 1.8), text, {"factor": random_s / even_s, "all": whole})


@_rules.judges(
    "by-delivery",
    "averaged over changes delivered, Fair's measured mean is the least of the four within the budget",
    ours=True,
)
def _by_delivery(results: Results) -> Seen:
    """The table's mean over subscriptions hides what Fair is for: who is told of a change waits least with Fair."""
    names = [Scheme.LITE, *FAIRS]
    times = {scheme: results.outcomes[scheme].measured.by_delivery for scheme in names}
    text = ", ".join(f"{NAMES[scheme]} {time_s:.1f} s" for scheme, time_s in times.items())
    return Seen(held(min(times, key=lambda scheme: times[scheme]) is Scheme.FAIR), text, {"times_s": times})


@_rules.judges(
    "sizes",
    "with log-normal sizes of the mean 1, Lite's bandwidth is within the budget, and polls are told apart",
    ours=True,
)
def _sizes(results: Results) -> Seen:
    """Where sizes differ, polls and bandwidth are two loads."""
    one = results.varied
    text = (
        f"{one.formula[1].polls:.1f} polls and a bandwidth of {one.formula[1].bandwidth:.2f}, of a budget of"
        f" {one.plan.budget:.2f}; {one.formula[0].by_subscription:.1f} s by formula"
    )
    holds = one.plan.bandwidth <= one.plan.budget * (1 + 1e-9)
    return Seen(held(holds), text, {"polls": one.formula[1].polls, "bandwidth": one.formula[1].bandwidth})


@_rules.judges("churn", "with a new owner that makes up for a missed poll, no gap is over two intervals", ours=True)
def _churn(results: Results) -> Seen:
    """While a tenth of the nodes fails each hour and as many join, no channel is unpolled for longer than two
    intervals."""
    parts, longest = [], 0.0
    for name, one in results.churns.items():
        longest = max(longest, one.making_up.longest_gap_intervals)
        parts.append(
            f"{name}: {one.making_up.longest_gap_intervals:.2f} intervals at most, and"
            f" {one.grid_alone.longest_gap_intervals:.2f} (over 2: {one.grid_alone.channels_by_gap['2']:,} channels)"
            " where polls are on the grid alone"
        )
    values = {name: one.to_dict() for name, one in results.churns.items()}
    return Seen(held(longest <= 2 + 1e-9), "; ".join(parts), values)


class Range(msgspec.Struct, frozen=True):
    """A figure that the full reproduction must have, with its bounds."""

    name: str
    value: float
    low: float
    high: float
    within: bool


def ranges_of(results: Results) -> list[Range]:
    """Return the figures of the full extent that have bounds: they are of 1024 nodes and 100,000 channels."""
    lite, fast = results.outcomes[Scheme.LITE], results.outcomes[Scheme.FAST]
    real = {scheme: results.outcomes[scheme].real_wedges[0].by_subscription for scheme in NAMES}
    told = [
        ("Lite by formula, s a subscription", lite.plan.detection_s_by_subscription, 39.4, 41.4),
        ("Lite by formula, s a channel", lite.plan.detection_s_by_channel, 62.3, 64.3),
        ("Lite, load", lite.plan.polls, 49.95, 50.0 + 1e-9),
        ("Fast by formula, s a subscription", fast.plan.detection_s_by_subscription, 29.9, 30.1),
        ("Fast, load", fast.plan.polls, 55.0, 55.6),
        ("Lite with real wedges, s", real[Scheme.LITE], 48, 54),
        ("Fast with real wedges, s", real[Scheme.FAST], 34, 38),
        ("Fair with real wedges, s", real[Scheme.FAIR], 130, 155),
        ("Fair-Sqrt with real wedges, s", real[Scheme.FAIR_SQRT], 51, 59),
        ("Fair-Log with real wedges, s", real[Scheme.FAIR_LOG], 49, 56),
    ]
    return [Range(name, value, low, high, low <= value <= high) for name, value, low, high in told]


class Report(msgspec.Struct, frozen=True):
    """Everything that was found, as numbers and verdicts."""

    extent: str
    schemes: dict[str, dict[str, Any]]
    ranges: list[Range]  # none where the extent is not the one that they are for
    claims: list[Claim]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, with verdicts counted."""
        return {**msgspec.to_builtins(self), "holds": self.counts()}

    def counts(self) -> dict[str, int]:
        """Return how many of the lecture's claims have each verdict."""
        return count_verdicts(self.claims, (HOLDS, DIFFERS, NOT))


def make_report(results: Results) -> Report:
    """Judge everything."""
    claims = _rules.judge(results)
    schemes = {str(scheme): one.to_dict() for scheme, one in results.outcomes.items()}
    return Report(results.extent.name, schemes, ranges_of(results) if results.extent.name == "full" else [], claims)


def write_report(report: Report, results: Results, folder: Path) -> None:
    """Write report.md and report.json into a folder."""
    write_parts(report.to_dict(), _parts(report, results), folder)


def _parts(report: Report, results: Results) -> Iterator[str]:
    """Return the report's headings, paragraphs and tables, between which there are empty lines."""
    model = results.extent.model
    yield "# Feeds: Corona's evaluation, run again"
    yield (
        "The document is lecture 20 of *Advanced Distributed System*: *Corona: Distributed publish-subscribe system*."
        f" A {report.extent} reproduction: {model.nodes:,} nodes, {model.channels:,} channels, {model.subscriptions:,}"
        f" subscriptions, base {model.base}, a poll interval of {model.poll_interval_s / 60:g} min, popularity by Zipf"
        f" with {model.zipf:g}. Levels are those of the real optimiser, phases those of the real schedule. Loads are"
        " polls a channel and poll interval; all sizes are 1."
    )
    if report.extent != "full":
        yield "The lecture's figures are of 1024 nodes and 100,000 channels: only the full reproduction is beside them."
    yield "## The results table"
    yield table(
        "| scheme | lecture: detection, s | load | by formula, s | load | with real wedges, s | over seeds | load"
        " | measured, s | a change delivered, s | random phases, s | at the lecture's load, s |",
        _rows(results),
    )
    yield (
        "With real wedges: tau / (2 max(1, wedge)) on random ids, as the lecture seems to have it. Measured: changes at"
        " random moments, where owners outside of their wedges poll, too, as our nodes do. Means are over"
        " subscriptions, but for changes delivered, where a channel counts as often as it changes. Seeds are other"
        " rings and other update intervals."
    )
    if report.ranges:
        yield "## What must come out"
        rows = [
            [one.name, f"{one.value:.2f}", f"{one.low:g} to {one.high:g}", word(one.within)] for one in report.ranges
        ]
        yield table("| figure | ours | range | within? |", rows)
    yield "## The lecture's claims"
    counts = report.counts()
    yield ", ".join(f"{verdict}: {count}" for verdict, count in counts.items()) + "."
    head = "| claim | judged by | what we see | verdict |"
    yield table(head, claim_rows(claim for claim in report.claims if not claim.ours))
    yield "## Where the lecture had to be read, and what is ours"
    yield _readings()
    yield table(head, claim_rows(claim for claim in report.claims if claim.ours))
    yield "## Nodes that fail and join"
    yield from _churned(results)
    yield "## Figures"
    yield from (f"![{figure.shows}]({figure.file})" for figure in FIGURES)


def _rows(results: Results) -> Iterator[Sequence[str]]:
    times, costs = results.outcomes[Scheme.LITE].legacy
    blank = [""] * 7
    yield ["Legacy RSS", "900", "50.00", f"{times.by_subscription:g}", f"{costs.polls:.2f}", *blank]
    for scheme, name in NAMES.items():
        one, same = results.outcomes[scheme], results.at_lecture_load[scheme]
        low, high = spread(results.seeds[scheme], lambda run: run.real_wedges[0])
        yield [
            f"Corona-{name}", f"{LECTURE[scheme][0]:g}", f"{LECTURE[scheme][1]:.2f}",
            f"{one.formula[0].by_subscription:.1f}", f"{one.formula[1].polls:.2f}",
            f"{one.real_wedges[0].by_subscription:.1f}", f"{low:.1f} to {high:.1f}", f"{one.real_wedges[1].polls:.2f}",
            f"{one.measured.by_subscription:.1f}", f"{one.measured.by_delivery:.1f}",
            f"{one.measured_random.by_subscription:.1f}", f"{same.real_wedges[0].by_subscription:.1f}",
        ]  # fmt: skip


def _readings() -> str:
    return "\n".join(
        [
            "* A wedge has N / b^l nodes everywhere; level K = ceil(log_b N) is the owner alone.",
            "* The lecture tells no update intervals and no popularity. Ours: 10 % of the channels change every 10 min"
            " to 1 h, 40 % every 1 h to 5 d (log-uniform), 50 % every 7 d; Zipf with 0.5. It tells no target of Fast:"
            " ours is 30 s.",
            "* The budget is what subscribers alone would cause; with sizes that differ, the sum of q s.",
            "* Maintenance is each hour, at a moment of each owner's own, and moves a channel by one level.",
            "* Fast at the lecture's load is Lite with that budget: the two are one trade-off.",
        ]
    )


def _churned(results: Results) -> Iterator[str]:
    first = next(iter(results.churns.values()))
    yield (
        f"{CHURN_PER_HOUR:.0%} of the nodes fail each hour without a word, and as many join, for {first.hours:g} h."
        f" Nodes beat each {first.beat_s:g} s, and who misses three beats is taken out by the code of the real view."
        " On the grid alone, the poll of an owner that is dead and not yet taken out is made by nobody: a channel with"
        " one poller then waits for two intervals, and for three where that happens twice. A new owner that makes up at"
        " once for a poll that fell into the last four beats costs next to nothing."
    )
    rows = [
        [
            name, how, f"{one.polls:.2f}", f"{one.missed:.2%}", f"{one.detection_s.by_subscription:.1f}",
            f"{one.longest_gap_intervals:.2f}", *(f"{count:,}" for count in one.channels_by_gap.values()),
        ]
        for name, churn in results.churns.items()
        for how, one in (("grid alone", churn.grid_alone), ("makes up", churn.making_up))
    ]  # fmt: skip
    yield table(
        "| levels | a new owner | polls | missed | detection, s | longest gap, intervals | channels over 1 | over 1.5"
        " | over 2 |",
        rows,
    )
