"""What figures of all papers share: colours that the colour-blind can tell apart, boxes from plain numbers, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

# Okabe and Ito's palette.
COLOURS = {"fixed": "#7f7f7f", "literal": "#E69F00", "recheck": "#0072B2", "eager": "#009E73", "deployed": "#CC79A7"}
LOAD_COLOUR = "#D55E00"
MEAN_COLOUR = "#000000"
BOX_SHARES = (5, 25, 50, 75, 95)  # percentiles at the whiskers, the box and its middle
BOX_NOTE = "boxes: quartiles; whiskers: 5 and 95 %; diamonds: mean"
Results = TypeVar("Results")
_SIMULATED = "simulated: no machine's speed is in it"
_LOOK: Any = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}


class Drawing(NamedTuple, Generic[Results]):
    """A figure of a report: its file, what it shows, and who draws it."""

    file: str
    shows: str
    draw: Callable[[Results, Path], None]


def draw_all(drawings: Iterable[Drawing[Results]], results: Results, folder: Path) -> None:
    """Draw every figure into a folder."""
    for one in drawings:
        one.draw(results, folder / one.file)


@contextmanager
def saved(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], footer: str | None = None, **more: Any
) -> Iterator[tuple[Any, Any]]:
    """Return a figure with its axes (always a two-dimensional array); it is written at the end, above its footer.
    Without one it is the simulator's, and its title says so."""
    with rc_context(_LOOK):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **more)
        for place in axes.flat:
            place.grid(axis="y", alpha=0.3, linewidth=0.6)
            place.set_axisbelow(True)
        yield figure, axes
        if footer is None:
            figure.suptitle(f"{figure.get_suptitle()}\n{_SIMULATED}")
        elif footer:
            figure.supxlabel(footer, fontsize=8, color="#555555")
        figure.savefig(path, dpi=110)


def box(axes: Any, values: NDArray[np.float64], mean: float, at: float, *, width: float, colour: str) -> None:
    """Draw the box of one cell's values, with their mean."""
    if not values.size:
        return
    low, first, middle, third, high = np.percentile(values, BOX_SHARES)
    stats = [{"med": middle, "q1": first, "q3": third, "whislo": low, "whishi": high, "fliers": []}]
    axes.bxp(
        stats, positions=[at], widths=width, showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour}, medianprops={"color": "black"},
        whiskerprops={"color": colour}, capprops={"color": colour},
    )  # fmt: skip
    axes.plot([at], [mean], marker="D", markersize=3.2, color=MEAN_COLOUR, linestyle="none", zorder=5)


def log_scale(axes: Any) -> None:
    """Make the vertical scale logarithmic, with plain numbers at it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())


def swatch(colour: str) -> Patch:
    """Return a patch of a colour, for a legend."""
    return Patch(facecolor=colour, alpha=0.55, edgecolor=colour)
