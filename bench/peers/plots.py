"""The pictures of the report. Who acks after fsync stands first and is solid; who does not is hatched, on grey."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench.machine import in_a_line
from bench.peers.figures import Figure, Rounds
from bench.peers.systems import System
from clarion.reproduce.figure_style import COLOURS, saved

RATES = [
    ("publish, 100 B", Figure("100 B", "publish_per_s")),
    ("publish, 1 KB", Figure("1 KB", "publish_per_s")),
    ("consume with acks, 100 B", Figure("100 B", "consume_per_s")),
    ("fan-out to 10, delivered", Figure("fan-out 10", "delivered_per_s")),
    ("mixed load, delivered", Figure("mixed", "delivered_per_s")),
]
LATENCIES = [("put to ack", "put"), ("put to delivery", "delivery")]
WIDTH_INCHES = 9.6
OURS_COLOUR = COLOURS["recheck"]
PEER_COLOUR = COLOURS["fixed"]
_BAR = 0.66
_NAME_WIDTH = 28  # letters in a line
_LIGHT = "#fafafa"
_BAND = "#ececec"


def draw_rates(rounds: Rounds, path: Path) -> bool:
    """Draw messages a second of every system, a panel for each kind of work; tell whether there was any."""
    systems = _in_order(rounds, [figure for _, figure in RATES])
    if not systems:
        return False
    size = (WIDTH_INCHES, 1.8 + 2 * 0.235 * len(systems))
    with saved(path, 2, 3, size=size, footer=_footer(rounds)) as (figure, axes):
        places = list(axes.flat)
        for place, (title, what) in zip(places, RATES, strict=False):
            draw_panel(place, rounds, systems, title, what)
        for place in (places[1], places[2], places[4]):
            place.tick_params(labelleft=False)
        _explain(places[-1])
        figure.suptitle("Messages a second, the same work for every system (longer is better)", fontsize=11)
    return True


def draw_panel(place: Any, rounds: Rounds, systems: list[System], title: str, what: Figure) -> None:
    """Draw one bar for each system, from top to bottom."""
    _name_rows(place, systems, "Clarion, put_many and get_batches")
    highest = 0.0
    for row, system in enumerate(systems):
        spread = rounds.spread(system.name, what)
        if spread is None:
            _label(place, 0, row, _why(rounds, system, what), style="italic")
            continue
        place.barh(row, spread.median, _BAR, **_look(system))
        place.plot([spread.lowest, spread.highest], [row, row], color="black", linewidth=0.8)
        _label(place, spread.highest, row, short(spread.median), fontweight=_weight(system))
        highest = max(highest, spread.highest)
    place.set_title(title)
    place.set_xlim(0, 1.24 * (highest or 1.0))  # room for the numbers
    place.xaxis.set_major_locator(MaxNLocator(4))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: short(value)))


def _footer(rounds: Rounds) -> str:
    often = "one round" if rounds.count == 1 else f"medians of {rounds.count} rounds"
    return f"{in_a_line(rounds.machine)}; everything on loopback, {often}"


def _in_order(rounds: Rounds, figures: list[Figure]) -> list[System]:
    """Return who was asked for any of these, those who fsync first; none where nobody has a figure."""
    if not any(rounds.spread(system.name, figure) for system in rounds.systems for figure in figures):
        return []
    asked = [s for s in rounds.systems if any(rounds.was_asked(s.name, figure.measure) for figure in figures)]
    return sorted(asked, key=lambda system: not system.fsyncs)


def _label(place: Any, at: float, row: int, text: str, **more: Any) -> None:
    place.annotate(text, (at, row), (5, 0), textcoords="offset points", va="center", fontsize=8, **more)


def _name_rows(place: Any, systems: list[System], ours: str) -> None:
    """Name the rows, ours with the calls that were made, and put those whose ack comes before fsync on grey."""
    titles = [ours if system.title == "Clarion" else system.title for system in systems]
    place.set_yticks(range(len(systems)), [fill(title, _NAME_WIDTH) for title in titles])
    place.set_ylim(len(systems) - 0.4, -0.6)
    durable = sum(system.fsyncs for system in systems)
    if durable < len(systems):
        place.axhspan(durable - 0.5, len(systems) - 0.4, color=_BAND, zorder=0)
    place.grid(visible=False, axis="y")
    place.grid(axis="x", alpha=0.3, linewidth=0.6)
    place.tick_params(length=0)
    for system, label in zip(systems, place.get_yticklabels(), strict=True):
        label.set_fontweight(_weight(system))


def _why(rounds: Rounds, system: System, what: Figure) -> str:
    if system.name in rounds.missing:
        return "missing"
    return "failed" if rounds.failures(system.name, what.measure) else "not run"


def _weight(system: System) -> str:
    return "bold" if system.is_ours else "normal"


def _look(system: System) -> dict[str, Any]:
    colour = OURS_COLOUR if system.is_ours else PEER_COLOUR
    if system.fsyncs:
        return {"color": colour, "edgecolor": colour, "linewidth": 0.8}
    return {"facecolor": _LIGHT, "edgecolor": colour, "hatch": "////", "linewidth": 0.8}


def _explain(place: Any) -> None:
    place.set_axis_off()
    samples = [
        (Patch(color=OURS_COLOUR), "Clarion: ack after fsync"),
        (Patch(color=PEER_COLOUR), "peers: ack after fsync"),
        (Patch(facecolor=_LIGHT, edgecolor=PEER_COLOUR, hatch="////"), "peers, grey: ack before fsync"),
        (Line2D([], [], color="black", linewidth=0.8), "lowest to highest round"),
    ]
    place.legend(
        [sample for sample, _ in samples], [text for _, text in samples],
        loc="center left", frameon=False, fontsize=8.5, handlelength=2.2, labelspacing=0.9,
    )  # fmt: skip


def draw_latency(rounds: Rounds, path: Path) -> bool:
    """Draw p50 and p99 of one message at a time; tell whether there was any."""
    systems = _in_order(rounds, [_latency(name, 50) for _, name in LATENCIES])
    if not systems:
        return False
    size = (WIDTH_INCHES, 1.6 + 0.28 * len(systems))
    with saved(path, 1, 2, size=size, footer=_footer(rounds)) as (figure, axes):
        for place, (title, name) in zip(axes.flat, LATENCIES, strict=True):
            draw_latencies(place, rounds, systems, title, name)
        axes[0, 1].tick_params(labelleft=False)
        figure.suptitle(
            "One message of 100 B at a time, idle system: p50 ● and p99 ◆ (left is better; grey: ack before fsync)",
            fontsize=10,
        )
    return True


def _latency(name: str, percentile: int) -> Figure:
    return Figure("latency", f"{name}_ms_p{percentile}", lower_is_better=True)


def draw_latencies(place: Any, rounds: Rounds, systems: list[System], title: str, name: str) -> None:
    """Draw p50 and p99 of each system, from top to bottom."""
    _name_rows(place, systems, "Clarion, put")
    place.set_xscale("log")
    found = {
        row: (half.median, most.median)
        for row, system in enumerate(systems)
        if (half := rounds.spread(system.name, _latency(name, 50)))
        and (most := rounds.spread(system.name, _latency(name, 99)))
    }
    lowest = min((half for half, _ in found.values()), default=1.0)
    highest = max((most for _, most in found.values()), default=2.0)
    for row, system in enumerate(systems):
        if row not in found:
            _label(place, 0.8 * lowest, row, _why(rounds, system, _latency(name, 50)), style="italic")
            continue
        half_ms, most_ms = found[row]
        colour = OURS_COLOUR if system.is_ours else PEER_COLOUR
        inside = {"color": colour, "markerfacecolor": colour if system.fsyncs else "white"}
        place.plot([half_ms, most_ms], [row, row], color=colour, linewidth=1.2, zorder=1)
        place.plot([half_ms], [row], marker="o", markersize=7, **inside)
        place.plot([most_ms], [row], marker="D", markersize=5, **inside)
        _label(place, most_ms, row, f"{half_ms:.2f} / {most_ms:.2f}", fontweight=_weight(system))
    place.set_xlim(0.8 * lowest, highest * max(highest / lowest, 1.5) ** 0.4)  # room for the numbers
    place.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    place.xaxis.set_minor_locator(NullLocator())
    place.set(title=title, xlabel="milliseconds")


def short(value: float) -> str:
    """Write a rate in three digits: `4.78 M`, `328 k`, `11 k`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.0f} {letter}" if scaled >= 100 else f"{scaled:.3g} {letter}"
    return f"{value:.0f}"
