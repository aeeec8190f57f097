"""The figures of Corona's evaluation, and ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from clarion.feeds.honeycomb import Scheme
from clarion.reproduce.feeds_experiments import (
    CHURN_PER_HOUR,
    LECTURE,
    Results,
    by_pollers,
    by_update_interval,
    ranked,
)
from clarion.reproduce.figure_style import Drawing, log_scale, saved

# Okabe and Ito's palette.
COLOURS = {
    Scheme.LITE: "#0072B2", Scheme.FAST: "#009E73", Scheme.FAIR: "#D55E00", Scheme.FAIR_SQRT: "#E69F00",
    Scheme.FAIR_LOG: "#CC79A7",
}  # fmt: skip
NAMES = {
    Scheme.LITE: "Lite", Scheme.FAST: "Fast", Scheme.FAIR: "Fair", Scheme.FAIR_SQRT: "Fair-Sqrt",
    Scheme.FAIR_LOG: "Fair-Log",
}  # fmt: skip
STYLES = dict(zip(COLOURS, ("-", "-", "-", "--", ":"), strict=True))
_GREY = "#7f7f7f"
_LEVEL_COLOURS = ("#08306b", "#2171b5", "#6baed6", "#c6dbef", "#eff3ff")
_SPANS = {600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "1 d", 432_000: "5 d", 604_800: "7 d"}


def draw_results(results: Results, path: Path) -> None:
    """Draw the results table: detection and load of each scheme, the lecture's and ours."""
    with saved(path, 1, 2, size=(12.5, 4.6), width_ratios=(3, 2)) as (figure, axes):
        times, loads = axes[0]
        told = {
            "the lecture": [LECTURE[scheme][0] for scheme in NAMES],
            "by formula": [results.outcomes[scheme].formula[0].by_subscription for scheme in NAMES],
            "with real wedges": [results.outcomes[scheme].real_wedges[0].by_subscription for scheme in NAMES],
            "measured: owners poll, too": [results.outcomes[scheme].measured.by_subscription for scheme in NAMES],
        }
        _bars(times, told, ("#000000", "#c6dbef", "#6baed6", "#0072B2"), ".0f")
        times.axhline(900, color=_GREY, linestyle="--")
        times.text(len(NAMES) - 0.5, 930, "subscribers alone: 900 s", ha="right", fontsize=8, color="#555555")
        log_scale(times)
        times.set(ylim=(20, 2000), ylabel="mean detection, s a subscription (logarithmic)", title="detection time")
        times.legend(fontsize=8, ncols=4, loc="upper center", columnspacing=1.0, handlelength=1.2)
        load = {
            "the lecture": [LECTURE[scheme][1] for scheme in NAMES],
            "planned": [results.outcomes[scheme].formula[1].polls for scheme in NAMES],
            "with real wedges": [results.outcomes[scheme].real_wedges[1].polls for scheme in NAMES],
        }
        _bars(loads, load, ("#000000", "#c6dbef", "#6baed6"), ".1f")
        alone = results.outcomes[Scheme.LITE].legacy[1].polls
        loads.axhline(alone, color=_GREY, linestyle="--", zorder=0.5, label=f"subscribers alone: {alone:g}")
        loads.set(ylim=(0, 75), ylabel="polls a channel and poll interval", title="load on the servers")
        loads.legend(fontsize=8, ncols=2, loc="upper left", columnspacing=1.0, handlelength=1.2)
        figure.suptitle(f"Detection and load of the schemes, {_told(results)}")


def _bars(place: Any, told: dict[str, list[float]], colours: tuple[str, ...], form: str) -> None:
    width = 0.85 / len(told)
    for number, (label, values) in enumerate(told.items()):
        at = np.arange(len(values)) + (number - (len(told) - 1) / 2) * width
        bars = place.bar(at, values, width, label=label, color=colours[number])
        behind = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.2}
        place.bar_label(bars, [format(value, form) for value in values], fontsize=6.5, padding=1.5, bbox=behind)
    place.set_xticks(range(len(NAMES)), list(NAMES.values()))


def draw_hours(results: Results, path: Path) -> None:
    """Draw the first hours: load on the servers and detection time, as levels become what is planned."""
    with saved(path, 1, 2, size=(12.5, 4.6)) as (figure, axes):
        loads, times = axes[0]
        for scheme, hours in results.hours.items():
            style = {"color": COLOURS[scheme], "linestyle": STYLES[scheme], "label": NAMES[scheme]}
            loads.plot(hours.at_s / 3600, hours.polls, **style)
            times.plot(hours.at_s / 3600, hours.detection_s, **style)
        alone = results.outcomes[Scheme.LITE].legacy[1].polls
        loads.axhline(alone, color=_GREY, linestyle="-.", label="subscribers alone")
        times.axhline(900, color=_GREY, linestyle="-.", label="subscribers alone")
        loads.set(ylabel="polls a channel and poll interval", title="load on the servers", ylim=(0, None))
        log_scale(times)
        times.set(ylabel="mean detection, s a subscription (logarithmic)", title="detection time", ylim=(20, 1200))
        for place in axes[0]:
            place.set(xlabel="hours since all subscribed", xlim=(0, results.extent.first_hours))
        loads.legend(fontsize=8, loc="lower right")
        times.legend(fontsize=8)
        figure.suptitle(
            f"The first hours: each owner looks once an hour, and goes one level at a time; {_told(results)}"
        )


def draw_popularity(results: Results, path: Path) -> None:
    """Draw who gains: levels by scheme, and detection by rank of popularity."""
    with saved(path, 1, 2, size=(12.5, 4.6), width_ratios=(2, 3)) as (figure, axes):
        levels, times = axes[0]
        counts = np.array([results.outcomes[scheme].plan.channels_by_level for scheme in NAMES], dtype=float).T
        shares = 100 * counts / results.extent.model.channels
        below = np.zeros(len(NAMES))
        for level, share in enumerate(shares):
            nodes = results.extent.model.nodes / results.extent.model.base**level
            who = "the owner" if level == len(shares) - 1 else f"{nodes:,g} nodes"
            colour = _LEVEL_COLOURS[level]
            bars = levels.bar(
                list(NAMES.values()), share, bottom=below, color=colour, edgecolor="#555555", linewidth=0.5,
                label=f"level {level}: {who}",
            )  # fmt: skip
            texts = [f"{value:.0f} %" if value > 4 else "" for value in share]
            levels.bar_label(bars, texts, label_type="center", fontsize=8, color="#ffffff" if level < 2 else "#000000")
            below += share
        levels.set(ylabel="% of channels", title="channels by level", ylim=(0, 122), yticks=range(0, 101, 20))
        levels.legend(fontsize=8, ncols=2, loc="upper center")
        for scheme in NAMES:
            rank, time_s = ranked(results, scheme)
            times.plot(
                rank,
                time_s,
                color=COLOURS[scheme],
                linestyle=STYLES[scheme],
                label=NAMES[scheme],
                drawstyle="steps-pre",
            )
        times.axhline(900, color=_GREY, linestyle="-.", label="subscribers alone")
        times.set_xscale("log")
        times.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))
        log_scale(times)
        times.set(
            xlabel="channel, by popularity (logarithmic)", ylabel="mean detection, s a channel (logarithmic)",
            title="detection by popularity", xlim=(1, results.extent.model.channels),
        )  # fmt: skip
        times.legend(fontsize=8, ncols=3)
        figure.suptitle(f"Who is polled how often, {_told(results)}")


def draw_update_interval(results: Results, path: Path) -> None:
    """Draw detection by how often a channel changes, and what that means for changes delivered."""
    with saved(path, 1, 2, size=(12.5, 4.6), width_ratios=(3, 2)) as (figure, axes):
        times, means = axes[0]
        for scheme in NAMES:
            if scheme is not Scheme.FAST:
                at_s, time_s = by_update_interval(results, scheme)
                style = {"color": COLOURS[scheme], "linestyle": STYLES[scheme], "label": NAMES[scheme]}
                times.plot(at_s, time_s, marker="o", markersize=3.5, **style)
        times.set_xscale("log")
        times.set_xticks(list(_SPANS), list(_SPANS.values()))
        times.xaxis.set_minor_formatter(NullFormatter())
        log_scale(times)
        times.set(
            xlabel="update interval of the channel (logarithmic; the last point: once a week)",
            ylabel="mean detection, s a channel (logarithmic)", title="detection by update interval",
        )  # fmt: skip
        times.legend(fontsize=8)
        told = {
            "a subscription": [results.outcomes[scheme].measured.by_subscription for scheme in NAMES],
            "a change delivered": [results.outcomes[scheme].measured.by_delivery for scheme in NAMES],
        }
        _bars(means, told, ("#6baed6", "#D55E00"), ".0f")
        means.set(ylabel="mean detection, s", title="the same polls, averaged in two ways")
        means.tick_params(axis="x", labelsize=8)
        means.legend(fontsize=8)
        figure.suptitle(f"What the Fair schemes do with the update interval, {_told(results)}")


def draw_spacing(results: Results, path: Path) -> None:
    """Draw what even spacing is worth: detection by how many poll, evenly spaced and at random."""
    outcome, interval_s = results.outcomes[Scheme.LITE], results.extent.model.poll_interval_s
    found = by_pollers(outcome)
    at = np.array(sorted(found))
    fine = np.geomspace(1, at.max() * 1.1, 200)
    with saved(path, 1, 2, size=(12.5, 4.6)) as (figure, axes):
        times, ratios = axes[0]
        times.plot(fine, interval_s / (2 * fine), color=COLOURS[Scheme.LITE], label="τ / (2 n)")
        times.plot(fine, interval_s / (fine + 1), color=COLOURS[Scheme.FAIR], label="τ / (n + 1)")
        even, random = (np.array([found[n][which] for n in at]) for which in (0, 1))
        dots = {"linestyle": "none", "markersize": 4}
        times.plot(at, even, marker="o", color=COLOURS[Scheme.LITE], label="measured, evenly spaced by rank", **dots)
        times.plot(at, random, marker="s", color=COLOURS[Scheme.FAIR], label="measured, random phases", **dots)
        log_scale(times)
        times.set(ylabel="mean detection, s (logarithmic)", title="detection by the number of pollers")
        ratios.plot(fine, 2 * fine / (fine + 1), color="#000000", label="2 n / (n + 1)")
        ratios.plot(at, random / even, marker="o", color=COLOURS[Scheme.FAST], label="measured", **dots)
        ratios.set(ylabel="random phases take so many times as long", ylim=(0.9, 2.1), title="what spacing is worth")
        for place in axes[0]:
            place.set_xscale("log")
            place.set(xlabel="nodes that poll a channel, n (logarithmic)")
            place.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))
            place.legend(fontsize=8)
        figure.suptitle(
            f"Polls evenly spaced and at random: all in all {outcome.measured.by_subscription:.1f} s and"
            f" {outcome.measured_random.by_subscription:.1f} s a subscription with Lite, {_told(results)}"
        )


def draw_churn(results: Results, path: Path) -> None:
    """Draw for how long channels go without a poll while nodes fail and join."""
    with saved(path, 1, len(results.churns), size=(12.5, 4.4), sharey=True) as (figure, axes):
        for place, (name, churn) in zip(axes[0], results.churns.items(), strict=True):
            for outcome, colour, style, label in (
                (churn.grid_alone, COLOURS[Scheme.FAIR], "-", "polls on the grid alone"),
                (churn.making_up, COLOURS[Scheme.LITE], "--", "a new owner makes up for a missed poll"),
            ):
                gaps = np.sort(outcome.gaps_s) / results.extent.model.poll_interval_s
                gaps = np.concatenate([[0.0], gaps, gaps[-1:]])
                more = np.concatenate([[outcome.gaps_s.size], np.arange(outcome.gaps_s.size - 1, -1, -1), [0]])
                place.step(
                    gaps, np.maximum(more, 0.5), where="post", color=colour, linestyle=style,
                    label=f"{label}: {outcome.longest_gap_intervals:.2f} at most",
                )  # fmt: skip
            place.axvline(2, color=_GREY, linestyle=":", label="two intervals")
            place.set_yscale("log")
            place.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}" if value >= 1 else ""))
            place.set(xlabel="intervals without a poll", title=name, xlim=(0, 3.2), ylim=(0.5, None))
            place.legend(fontsize=8, loc="upper right")
        axes[0, 0].set_ylabel("channels with a longer gap at some time")
        one = next(iter(results.churns.values()))
        figure.suptitle(
            f"{CHURN_PER_HOUR:.0%} of {results.extent.model.nodes:,} nodes fail each hour, as many join, for"
            f" {one.hours:g} h ({one.failed:,} and {one.joined:,}); a beat each {one.beat_s:g} s"
        )


def _told(results: Results) -> str:
    model = results.extent.model
    return f"{model.nodes:,} nodes, {model.channels:,} channels, {model.subscriptions:,} subscriptions"


FIGURES: tuple[Drawing[Results], ...] = (
    Drawing("results.png", "Detection and load of the schemes, the lecture's and ours", draw_results),
    Drawing("first-hours.png", "Load and detection over the first hours", draw_hours),
    Drawing("popularity.png", "Channels by level, and detection by popularity", draw_popularity),
    Drawing("update-interval.png", "Detection by update interval", draw_update_interval),
    Drawing("spacing.png", "Evenly spaced polls and random ones", draw_spacing),
    Drawing("churn.png", "Gaps between polls while nodes fail and join", draw_churn),
)
