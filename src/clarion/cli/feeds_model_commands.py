"""`clarion simulate feeds` and `reproduce feeds`: a ring of polling nodes in simulated time, and Corona's results."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from clarion.cli.command_errors import naming_option, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.feeds_plan_command import SchemeName
from clarion.cli.model_commands import print_claims, progress_of_runs, read_hours
from clarion.cli.output import console, print_json, table_of

if TYPE_CHECKING:
    from clarion.sim.feeds_churn import Churned
    from clarion.sim.feeds_simulation import FeedsOutcome

Sizes = StrEnum("Sizes", {"SAME": "same", "VARIED": "varied"})


@tells_errors
def simulate_feeds(
    nodes: int = option("1024", "--nodes N", "Nodes on the ring."),
    channels: int = option("100000", "--channels N", "Channels that are watched."),
    subscriptions: int = option("5000000", "--subscriptions N", "Subscriptions of all channels together."),
    scheme: SchemeName = option(SchemeName.LITE, "--scheme", "What is minimised."),
    target_s: float = option("30s", "--target-s --target TIME", "Mean detection time that fast is to keep."),
    base: int = option(16, "--base", "Base of the ring's digits.", min=2, max=256),
    poll_interval_s: float = option("30m", "--poll-interval-s --poll-interval TIME", "Each node polls once in it."),
    zipf: float = option(
        0.5, "--zipf", "How much more popular the popular channels are: Zipf's exponent.", min=0, max=10
    ),
    sizes: Sizes = option(Sizes.SAME, "--sizes", "Whether all channels are of one size."),
    updates: int = option("10", "--updates N", "Changes of each channel that are measured."),
    churn_per_hour: float = option(
        0.0, "--churn-per-hour", "Share of the nodes that fails each hour; as many join.", min=0, max=10
    ),
    hours: float = option("6", "--hours HOURS|TIME", "Time for which they do.", parser=read_hours),
    beat_s: float = option("10s", "--beat TIME", "How often nodes tell that they live."),
    seed: int = option(1, "--seed", "The same seed gives the same run.", min=0),
    as_json: AsJson = False,
) -> None:
    """Poll the web in simulated time: how soon a change is seen, and at which load of the servers.

    Popularity is Zipf's; 10 % of the channels change every 10 min to 1 h, 40 %
    every 1 h to 5 d, 50 % once a week. Levels are chosen by the real system's
    optimiser and polled at its phases; wedges are those of nodes with random
    ids. Detection is told by formula, by these wedges, and as measured when
    channels change at random moments. Loads are per channel and poll interval.

    With --churn-per-hour nodes fail and join, too: how long does a channel go
    without a poll?

    \b
    Examples:
      clarion simulate feeds --scheme lite --seed 1 --json
      clarion simulate feeds --scheme fast --target-s 30
      clarion simulate feeds --churn-per-hour 0.1 --hours 24
      clarion simulate feeds --nodes 64 --channels 1000 --subscriptions 20000
    """
    with needing("simulating feeds needs numpy", "feeds"):
        from clarion.feeds.honeycomb import Scheme
        from clarion.sim.feeds_churn import simulate_churn
        from clarion.sim.feeds_simulation import FeedsModel, make_workload, measure, plan_levels
    model = FeedsModel(
        scheme=Scheme(scheme.value), nodes=nodes, channels=channels, subscriptions=subscriptions, base=base,
        poll_interval_s=poll_interval_s, target_s=target_s, zipf=zipf, varied_sizes=sizes is Sizes.VARIED, seed=seed,
    )  # fmt: skip
    work = make_workload(model)
    plan = plan_levels(model, work)
    outcome = measure(model, work, plan, updates=updates)
    churn = simulate_churn(model, work, plan, churn_per_hour, hours, beat_s) if churn_per_hour else None
    if as_json:
        print_json({**outcome.to_dict(), "churn": churn and churn.to_dict()})
        return
    _print(outcome)
    if churn is not None:
        _print_churn(churn)


def _print(outcome: FeedsOutcome) -> None:
    columns = ["", "detection, a subscription", "a channel", "a change delivered", "polls", "bandwidth"]
    told = {
        "subscribers alone": outcome.legacy,
        "by formula": outcome.formula,
        "with real wedges": outcome.real_wedges,
        "and their owners": outcome.pollers,
        "measured": (outcome.measured, outcome.pollers[1]),
        "measured, random phases": (outcome.measured_random, outcome.pollers[1]),
    }
    rows = [
        (
            name, f"{times.by_subscription:.1f} s", f"{times.by_channel:.1f} s", f"{times.by_delivery:.1f} s",
            f"{costs.polls:.2f}", f"{costs.bandwidth:.2f}",
        )
        for name, (times, costs) in told.items()
    ]  # fmt: skip
    screen = console()
    screen.print(table_of(columns, rows, columns[1:]))
    by_level = ", ".join(f"{count:,} at {level}" for level, count in enumerate(outcome.plan.channels_by_level) if count)
    screen.print(f"\nchannels by level: {by_level}; {outcome.empty_wedges:,} wedges are empty, their owners poll")
    screen.print(
        f"budget {outcome.plan.budget:.2f} polls of mean size a channel and interval; at most"
        f" {outcome.plan.gap_to_bound:.1e} from the best"
    )
    screen.print(f"even spacing is worth a factor of {outcome.worth_of_spacing:.2f}")
    if (told_by := outcome.dissemination) is not None:
        screen.print(
            f"a change reaches its wedge of {told_by.wedge:.1f} nodes by {told_by.messages:.1f} messages over routing"
            f" rows, {told_by.depth:.1f} hops deep, and its owner by {told_by.hops_to_owner:.1f} hops"
        )


def _print_churn(churn: Churned) -> None:
    screen = console()
    screen.print(f"\n{churn.failed:,} nodes failed and {churn.joined:,} joined in {churn.hours:g} h:")
    columns = ["a poll that a failed owner missed", "polls", "missed", "detection, a subscription", "longest gap"]
    rows = [
        (
            name, f"{one.polls:.2f}", f"{one.missed:.2%}", f"{one.detection_s.by_subscription:.1f} s",
            f"{one.longest_gap_s:,.0f} s, {one.longest_gap_intervals:.2f} intervals",
        )
        for name, one in (("is left out", churn.grid_alone), ("is made by the new one", churn.making_up))
    ]  # fmt: skip
    screen.print(table_of(columns, rows, columns[1:]))


@tells_errors
def reproduce_feeds(
    out: Path = option(..., "--out DIR", "Folder for report.md, report.json and figures."),
    quick: bool = option(False, "--quick", "Fewer channels and nodes, for a first look."),
    as_json: AsJson = False,
) -> None:
    """Run the evaluation of Corona; draw its figures; judge its claims.

    The lecture's results table beside ours for all five schemes, by formula,
    with real wedges and measured; detection and load over time from the first
    hour on; who gains by popularity and by how often a channel changes; even
    and random spacing; deciding alone from clusters; nodes that fail and join.

    All of it takes about three minutes on one core, --quick less than one.

    \b
    Examples:
      clarion reproduce feeds --out out/feeds --quick
      clarion reproduce feeds --out out/feeds --json | jq .holds
    """
    with needing("reproducing needs numpy and matplotlib", "feeds,plots"):
        from clarion.reproduce.feeds_experiments import FULL, QUICK, run_experiments
        from clarion.reproduce.feeds_figures import FIGURES
        from clarion.reproduce.feeds_report import make_report, write_report
        from clarion.reproduce.figure_style import draw_all
        from clarion.reproduce.judged_claims import REPORT, summary_rows
    with naming_option(out, "--out", done="used", other="another folder"):
        out.mkdir(parents=True, exist_ok=True)
    with progress_of_runs(quiet=as_json) as on_done:
        results = run_experiments(QUICK if quick else FULL, on_done=on_done)
    report = make_report(results)
    write_report(report, results, out)
    draw_all(FIGURES, results, out)
    if as_json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        print_claims(["", "claim", "verdict"], summary_rows(report.claims), out / REPORT)
