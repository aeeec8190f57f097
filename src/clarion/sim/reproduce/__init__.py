"""The tuned-publisher document's experiments, run again: figures, and its claims beside what we see."""

from clarion.sim.reproduce.extents import FULL, QUICK, Extent
from clarion.sim.reproduce.figures import FIGURES, draw_all
from clarion.sim.reproduce.reporting import CLAIMS, REPORT, Report, make_report, summary_rows, write_report
from clarion.sim.reproduce.running import run_experiments

__all__ = [
    "CLAIMS",
    "FIGURES",
    "FULL",
    "QUICK",
    "REPORT",
    "Extent",
    "Report",
    "draw_all",
    "make_report",
    "run_experiments",
    "summary_rows",
    "write_report",
]
