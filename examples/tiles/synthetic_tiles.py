"""Synthetic microscope tiles with a known number of cells: blurred discs on an uneven background, drift and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SIDE = 256  # pixels
MOST_DRIFT = 12  # pixels, of the stage between two images of a field
_MARGIN = 24  # to the edge: no cell drifts out of the image
_APART = 6  # pixels between two cells


@dataclass(frozen=True)
class Field:
    """Where cells are: centres and radii, in pixels."""

    cells: list[tuple[float, float, float]]

    def image(self, dice: np.random.Generator, drift: tuple[int, int] = (0, 0)) -> Any:
        """Return an image of the field, taken with a drift of the stage: 16 bits a pixel."""
        down, across = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
        picture = 200 + 60 * across / SIDE + 40 * down / SIDE  # uneven light
        outside = np.full_like(picture, SIDE)  # how far a pixel is from the nearest cell; below 0 within
        for y, x, radius in self.cells:
            np.minimum(outside, np.hypot(down - y - drift[0], across - x - drift[1]) - radius, out=outside)
        picture += 250 * (1 - np.tanh(outside / 1.6))  # discs with soft edges
        return dice.poisson(picture + dice.normal(0, 8, picture.shape).clip(-100)).astype(np.uint16)


def make_field(dice: np.random.Generator, most_cells: int = 40) -> Field:
    """Return a field with some cells, none of which touch."""
    cells: list[tuple[float, float, float]] = []
    wanted = int(dice.integers(10, most_cells + 1))
    while len(cells) < wanted:
        y, x = dice.uniform(_MARGIN, SIDE - _MARGIN, 2)
        radius = float(dice.uniform(5, 9))
        if all(np.hypot(y - v, x - u) > radius + r + _APART for v, u, r in cells):
            cells.append((float(y), float(x), radius))
    return Field(cells)


def drift_of(dice: np.random.Generator) -> tuple[int, int]:
    """Return how far the stage went between two images."""
    down, across = dice.integers(-MOST_DRIFT, MOST_DRIFT + 1, 2)
    return int(down), int(across)
