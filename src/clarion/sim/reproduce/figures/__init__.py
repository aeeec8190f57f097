"""The figures: one function for each, which draws it into a file."""

from clarion.sim.reproduce.figures.drawing import FIGURES, draw_all
from clarion.sim.reproduce.figures.tracing import draw_trace

__all__ = ["FIGURES", "draw_all", "draw_trace"]
