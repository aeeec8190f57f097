"""What a tuner did, poll by poll: the trace of a simulated publisher or of a real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import FuncFormatter

from clarion.publisher.tuner import Sample
from clarion.sim.reproduce.figures.style import COLOURS, LOAD_COLOUR, MEAN_COLOUR, saved

_LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")  # one for each publisher
_UNKNOWN = -1  # a credit of which nothing is known


class _Panel(NamedTuple):
    label: str
    value: Callable[[Sample], float]
    beside: tuple[str, Callable[[Sample], float]] | None = None  # a second, dotted line, and what it is


_PANELS = (
    _Panel("N, messages", lambda sample: sample.batch_size),
    _Panel("T_poll, ms", lambda sample: 1000 * sample.poll_interval_s),
    _Panel(
        "messages/s\n(load; dotted: capacity)", lambda sample: sample.load_per_s,
        ("capacity", lambda sample: sample.capacity_per_s or np.nan),
    ),
    _Panel(
        "messages\n(pending; dotted: published)", lambda sample: sample.pending,
        ("published", lambda sample: sample.published),
    ),
    _Panel("credit, messages", lambda sample: np.nan if sample.credit == _UNKNOWN else sample.credit),
)  # fmt: skip


def draw_trace(traces: Mapping[str, Sequence[Sample]], path: Path) -> None:
    """Draw N, T_poll, the estimates, what was pending and the credit over time, from the first poll on; a colour for
    each trace. With one trace, its mean N is drawn too, weighted by the time to the next poll."""
    began_s = min(trace[0].at_s for trace in traces.values() if trace)
    with saved(path, len(_PANELS), size=(11, 1.9 * len(_PANELS) + 1), sharex=True, footer="") as (figure, axes):
        for place, panel in zip(axes[:, 0], _PANELS, strict=True):
            for number, trace in enumerate(traces.values()):
                _draw_line(place, panel, trace, began_s, _LINES[number % len(_LINES)], alone=len(traces) == 1)
            place.set(ylabel=panel.label, ylim=(0, None))
            place.margins(x=0)
            place.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))
        axes[-1, 0].set_xlabel("seconds from the first poll")
        if len(traces) > 1:
            figure.legend(axes[0, 0].get_lines(), list(traces), loc="outside lower center", ncols=8, frameon=False)
        else:
            (trace,) = traces.values()
            mean = mean_batch_size(trace)
            axes[0, 0].axhline(mean, color=MEAN_COLOUR, linestyle="--", linewidth=1, label=f"mean N {mean:.1f}")
            axes[0, 0].legend(loc="upper right", fontsize=8, framealpha=0.9)
        polls = sum(len(trace) for trace in traces.values())
        figure.suptitle(f"What the tuner did in {polls:,} polls")


def mean_batch_size(trace: Sequence[Sample]) -> float:
    """Give the mean N as polls leave it, weighted by the time to the next poll."""
    sizes = np.array([sample.batch_size for sample in trace], dtype=np.float64)
    held_s = np.diff([sample.at_s for sample in trace])
    return float(np.average(sizes[:-1], weights=held_s)) if held_s.sum() > 0 else float(sizes.mean())


def _draw_line(place: Any, panel: _Panel, trace: Sequence[Sample], began_s: float, colour: str, *, alone: bool) -> None:
    polled_s = [sample.at_s - began_s for sample in trace]
    place.step(polled_s, [panel.value(sample) for sample in trace], where="post", color=colour, linewidth=0.9)
    if panel.beside is not None:
        second = {"capacity": COLOURS["fixed"], "published": LOAD_COLOUR}[panel.beside[0]] if alone else colour
        values = [panel.beside[1](sample) for sample in trace]
        place.step(polled_s, values, where="post", color=second, linestyle=":", linewidth=0.9)
