"""The figures: one function for each, which draws it into a file."""

from clarion.sim.reproduce.figures.drawing import FIGURES, draw_all

__all__ = ["FIGURES", "draw_all"]
