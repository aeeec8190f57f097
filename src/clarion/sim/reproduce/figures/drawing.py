"""All figures by file name, with what each shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from clarion.sim.reproduce.figures.adapting import draw_followed, draw_over_time, draw_rates, draw_steps
from clarion.sim.reproduce.figures.boxes import draw_traces, draw_tuned, draw_untuned
from clarion.sim.reproduce.figures.comparing import draw_beyond, draw_deployed, draw_fairness, draw_slow
from clarion.sim.reproduce.results import Results


class Figure(NamedTuple):
    """A figure to draw."""

    file: str
    shows: str
    draw: Callable[[Results, Path], None]


FIGURES = (
    Figure("fig03-request-rate.png", "Fig. 3: request rate of the traces", draw_rates),
    Figure("fig08-untuned.png", "Fig. 8: response without tuning, by load and N", draw_untuned),
    Figure("fig09-tuned.png", "Fig. 9: response with tuning, by load and initial N", draw_tuned),
    Figure("fig10-n-over-time.png", "Fig. 10: N over time at 35 requests/s", draw_over_time),
    Figure("fig11-steps.png", "Fig. 11: N under the steps of Table II", draw_steps),
    Figure("slow-subscriber.png", "V.B.3: requests dropped under a slow subscriber", draw_slow),
    Figure("fig12-trace.png", "Fig. 12: response on the traces as they are", partial(draw_traces, as_is=True)),
    Figure("fig13-trace-faster.png", "Fig. 13: response on the traces, faster", partial(draw_traces, as_is=False)),
    Figure("fig14-adaptation.png", "Fig. 14: N and load on the faster traces", draw_followed),
    Figure("deployed.png", "Mean response beside the deployed system (T_poll = 1000 ms)", draw_deployed),
    Figure("fairness.png", "Several publishers on one broker", draw_fairness),
    Figure("beyond.png", "Beyond the document: in ratio to the best fixed N in hindsight", draw_beyond),
)


def draw_all(results: Results, folder: Path) -> None:
    """Draw every figure into a folder."""
    for figure in FIGURES:
        figure.draw(results, folder / figure.file)
