"""The figures of the message-tracking document: latency, storage and compressed storage by configuration, and ours."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clarion.reproduce.figure_style import Drawing, saved
from clarion.reproduce.tracking_experiments import DOCUMENT, Results
from clarion.reproduce.tracking_model import Configuration, Layout, Outcome
from clarion.reproduce.tracking_runs import TRACKINGS, Room

# Okabe and Ito's palette.
_ASYNC, _SMALL, _LARGE, _OURS, _DARK = "#E69F00", "#56B4E9", "#0072B2", "#009E73", "#000000"
_NAMES = {"none": "no tracking", "log": "log", "bloom": "bloom"}
_HATCH = "///"  # of what is measured, beside what a model has
_SHARES = {"mean": "#0072B2", "p50": "#56B4E9", "p99": "#D55E00"}


def draw_latency(results: Results, path: Path) -> None:
    """Draw round trips of latency messages, and how often each configuration forces something to disk."""
    with saved(path, 1, 2, size=(12.5, 6.4), width_ratios=(2, 3), footer=_footer(results)) as (figure, axes):
        times, forces = axes[0]
        _draw_times(times, results)
        _rows(forces, results, lambda one: one.forces_per_s("together"), "{:.2g}")
        saves = [_saves_per_s(results, name) for name in results.by_message]
        _bars_of_ours(forces, results, saves, "{:.2g}", is_measured=bool(results.runs))
        forces.set_xscale("log")
        title = f"what latency rests on: disk forces, by a model at {DOCUMENT.per_s:,g}/s"
        if results.runs:
            title += f"\nhatched: ours, {_measured(results)}"
        forces.set(xlim=(0.03, 60), xlabel="forces a second (logarithmic)", title=title)
        forces.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        figure.suptitle("Latency with and without tracking, and forces of the document's configurations")


def _draw_times(place: Any, results: Results) -> None:
    place.set(title="ours: round trip of latency messages", ylabel="ms")
    if not results.runs:
        place.text(0.5, 0.5, "not run (--no-real)", ha="center", transform=place.transAxes)
        return
    place.set_title(f"ours: round trip of latency messages,\n{_measured(results)}")
    width = 0.27
    for number, (share, colour) in enumerate(_SHARES.items()):
        values = [
            statistics.median(run.latency_ms[share] for run in results.runs if run.tracking == one) for one in TRACKINGS
        ]
        at = [place_ + (number - 1) * width for place_ in range(len(TRACKINGS))]
        bars = place.bar(at, values, width, color=colour, label=share, hatch=_HATCH, edgecolor="white")
        place.bar_label(bars, [f"{value:.1f}" for value in values], fontsize=7.5, padding=1.5)
    place.set(ylim=(0, place.get_ylim()[1] * 1.1))
    place.set_xticks(range(len(TRACKINGS)), [_NAMES[one] for one in TRACKINGS])
    place.legend(fontsize=8, ncols=3, loc="upper center")


def draw_storage(results: Results, path: Path) -> None:
    """Draw bytes a message as they are stored."""
    _draw_bytes(
        results, path, "Uncompressed storage use", lambda one: one.bytes_per_message("together"),
        lambda one: one.publisher.bytes_per_entry, lambda room: room.bytes_per_entry,
        shows_overwritten=True,
    )  # fmt: skip


def draw_compressed(results: Results, path: Path) -> None:
    """Draw bytes a message with every stored buffer compressed by gzip."""
    _draw_bytes(
        results, path, "Compressed storage use: gzip of each stored buffer",
        lambda one: one.gzip_per_message("together"), lambda one: one.publisher.gzip_per_entry,
        lambda room: room.packed_gzip_bytes / room.notes,
    )  # fmt: skip


def _draw_bytes(
    results: Results,
    path: Path,
    title: str,
    value: Callable[[Outcome], float],
    published: Callable[[Outcome], float],
    ours: Callable[[Room], float],
    *,
    shows_overwritten: bool = False,
) -> None:
    with saved(path, size=(9.6, 7.0), footer=_footer(results)) as (figure, axes):
        place = axes[0, 0]
        _rows(place, results, value, "{:.1f}", published)
        entries = 1 + results.delivered
        _ours(place, results, lambda room: entries * ours(room), "{:.1f}")
        if shows_overwritten:
            some = [one for one in results.outcomes if one.configuration.bits]
            at = [results.outcomes.index(one) - 1 for one in some]
            place.plot(
                [one.overwritten_per_message("together") for one in some], at, "D", color=_DARK, markersize=4,
                label="BF, where a filter is kept until it is full, and its copy overwritten",
            )  # fmt: skip
        place.plot([], [], "s", color="#bbbbbb", label="left part: the publisher history; rest: all deliveries")
        most = max(value(one) for one in results.outcomes)
        place.set(xlim=(0, most * 1.12), xlabel="bytes a message")
        place.legend(fontsize=8, loc="lower right")
        figure.suptitle(f"{title}, a message put and delivered ({results.delivered:.2f} times on average)")


def draw_each(results: Results, path: Path) -> None:
    """Draw what a buffer for each subscriber takes, which is what the document's Section 3.2 has."""
    layouts: dict[Layout, tuple[str, str]] = {
        "together": ("o", "one buffer for all deliveries"),
        "each": ("D", "one for each subscriber (Section 3.2)"),
    }
    with saved(path, size=(9.6, 7.0), footer=_footer(results)) as (figure, axes):
        place = axes[0, 0]
        shown = results.outcomes[1:]
        for layout, (marker, label) in layouts.items():
            colours = [_colour(one.configuration) for one in shown]
            values = [one.bytes_per_message(layout) for one in shown]
            place.scatter(values, range(len(shown)), c=colours, marker=marker, s=36)
            place.plot([], [], marker, color="#777777", label=label)
        for row, one in enumerate(shown):
            ends = [one.bytes_per_message(layout) for layout in layouts]
            place.plot(ends, [row, row], color="#bbbbbb", linewidth=1, zorder=0.5)
        _label(place, results)
        ours = [(1 + results.delivered) * room.bytes_per_entry for room in results.by_message.values()]
        place.plot(ours, range(len(shown), len(shown) + len(ours)), "D", color=_OURS, markersize=6)
        place.set_xscale("log")
        place.xaxis.set_major_formatter(lambda value, _place: f"{value:,g}")
        place.set(xlabel="bytes a message (logarithmic)")
        place.legend(fontsize=8, loc="lower right")
        figure.suptitle("What filters of Table 2 take where each subscriber has its own")


def _rows(
    place: Any,
    results: Results,
    value: Callable[[Outcome], float],
    form: str,
    published: Callable[[Outcome], float] | None = None,
) -> None:
    """Draw a bar for each configuration; what is the publisher history's is darker."""
    shown = results.outcomes[1:]
    values, colours = [value(one) for one in shown], [_colour(one.configuration) for one in shown]
    bars = place.barh(range(len(shown)), values, color=colours, alpha=0.55 if published else 0.9, height=0.75)
    place.bar_label(bars, [form.format(each) for each in values], fontsize=7.5, padding=7 if published else 3)
    if published:
        place.barh(range(len(shown)), [published(one) for one in shown], color=colours, height=0.75)
    _label(place, results)


def _label(place: Any, results: Results) -> None:
    names = [one.configuration.name for one in results.outcomes[1:]]
    names += [f"ours, {name}" for name in results.by_message]
    place.set_yticks(range(len(names)), names, fontsize=8)
    place.invert_yaxis()
    place.grid(axis="y", visible=False)
    place.grid(axis="x", alpha=0.3, linewidth=0.6)


def _saves_per_s(results: Results, tracking: str) -> float:
    """Return how often a broker saved its histories, or was told to where none was run."""
    rooms = [run.room for run in results.runs if run.tracking == tracking and run.room is not None]
    over_s = sum(room.saved_over_s for room in rooms)
    return sum(room.saves - 1 for room in rooms) / over_s if over_s else 1 / results.persist_s


def _ours(place: Any, results: Results, value: Callable[[Room], float], form: str) -> None:
    _bars_of_ours(place, results, [value(room) for room in results.by_message.values()], form)


def _bars_of_ours(place: Any, results: Results, values: list[float], form: str, *, is_measured: bool = False) -> None:
    first = len(results.outcomes) - 1
    look = {"hatch": _HATCH, "edgecolor": "white"} if is_measured else {}
    bars = place.barh(range(first, first + len(values)), values, color=_OURS, height=0.75, **look)
    place.bar_label(bars, [form.format(each) for each in values], fontsize=7.5, padding=3)


def _colour(one: Configuration) -> str:
    return _ASYNC if one.strategy == "ASYNC" else _SMALL if one.buffer == "10K" else _LARGE


def _measured(results: Results) -> str:
    """Return at what load, and how often, what is measured was."""
    rounds = len(results.runs) // len(TRACKINGS)
    return f"measured at {results.load.per_s:,g}/s in {rounds} {'round' if rounds == 1 else 'rounds'}"


def _footer(results: Results) -> str:
    told = "200 publishers, 500 subscribers, 500 topics, 5,000/s, a key a message; configurations by a model"
    load = results.load
    if load == DOCUMENT or not results.runs:
        return told
    return (
        f"{told}. Measured: {load.publishers} publishers, {load.subscribers} subscribers, {load.topics} topics,"
        f" {load.per_s:,g}/s"
    )


FIGURES: tuple[Drawing[Results], ...] = (
    Drawing("latency.png", "Latency, and forces of each configuration", draw_latency),
    Drawing("storage.png", "Uncompressed storage by configuration", draw_storage),
    Drawing("compressed.png", "Compressed storage by configuration", draw_compressed),
    Drawing("each-subscriber.png", "Storage where each subscriber has filters of its own", draw_each),
)
