"""Cells on microscope tiles: align, segment, count and report. NumPy only.

    align ──┬─> segment ──> count ──┬─> report
            └─> focus ──────────────┘

A job is one tile: {"tile": name, "image": reference, "reference": reference} of stored .npy bytes. The stage drifts
between rounds, so each image is registered to one of the same field that was taken before.
"""

from __future__ import annotations

import io
import os
import time
from typing import Any

import numpy as np

from clarion.workflow import Context, Workflow

flow = Workflow("tiles")
SMALLEST_CELL = 30  # pixels; what is smaller is dust or noise
BLUR = 1.5  # pixels, of the filter against noise
DEVICE_S = float(os.environ.get("TILES_DEVICE_S", "0.4"))  # how long the pretended GPU takes for one tile


@flow.task(rate=4)
def align(job: dict[str, Any], context: Context) -> dict[str, Any]:
    """Register a tile to the image of the same field: the peak of the phase correlation is the drift."""
    image, before = read(context.load(job["image"])), read(context.load(job["reference"]))
    window = np.outer(np.hanning(image.shape[0]), np.hanning(image.shape[1]))  # edges are no features
    here, there = (np.fft.rfft2((one - one.mean()) * window) for one in (image, before))
    phases = here * there.conj() / (np.abs(here * there) + 1e-9)
    correlation = np.fft.irfft2(phases * gaussian(image.shape), image.shape)  # fine detail is noise
    peak = np.unravel_index(np.argmax(correlation), image.shape)
    drift = [int(at) if at < size // 2 else int(at) - size for at, size in zip(peak, image.shape, strict=True)]
    aligned = np.roll(image, [-drift[0], -drift[1]], axis=(0, 1))
    time.sleep(DEVICE_S / 2)
    # Both tasks that follow get this small value; the image is stored once.
    return {"tile": job["tile"], "drift": drift, "image": context.store(written(aligned))}


@flow.task(rate=2)
def segment(aligned: dict[str, Any], context: Context) -> bytes:
    """Label the cells: a blur, Otsu's threshold, connected components. Returned bytes of any size go by reference."""
    image = read(context.load(aligned["image"]))
    image = np.fft.irfft2(np.fft.rfft2(image) * gaussian(image.shape), image.shape)
    labels = components(image > otsu(image))
    time.sleep(DEVICE_S)  # a neural network on a GPU would do this step; one consumer has one GPU
    return written(labels.astype(np.uint16))


@flow.task(rate=4)
def focus(aligned: dict[str, Any], context: Context) -> dict[str, Any]:
    """Measure background and sharpness, while others segment the same image."""
    image = read(context.load(aligned["image"])).astype(float)
    curvature = sum(np.roll(image, step, axis) for step in (-1, 1) for axis in (0, 1)) - 4 * image
    time.sleep(DEVICE_S / 2)
    told = {"background": round(float(np.percentile(image, 20)), 1), "sharpness": round(float(curvature.var()), 1)}
    return {"tile": aligned["tile"], "drift": aligned["drift"], **told}


@flow.task(rate=50)
def count(labels: bytes) -> dict[str, Any]:
    """Count what is as large as a cell."""
    areas = np.bincount(read(labels).ravel())[1:]
    areas = areas[areas >= SMALLEST_CELL]
    return {"cells": len(areas), "median_area": float(np.median(areas)) if len(areas) else 0.0}


@flow.task(rate=100)
def report(parts: dict[str, dict[str, Any]], context: Context) -> dict[str, Any]:
    """Join what came of a tile: at a join the payload has a value for each task before it."""
    context.log.debug("%s: %s cells", parts["focus"]["tile"], parts["count"]["cells"])
    return {**parts["focus"], **parts["count"]}


flow.job("tile", {align: [segment, focus], segment: [count], count: [report], focus: [report]}, arrival_rate=2)


def read(stored: bytes) -> Any:
    """Return the array of .npy bytes."""
    return np.load(io.BytesIO(stored), allow_pickle=False)


def written(array: Any) -> bytes:
    """Return an array as .npy bytes."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def gaussian(shape: tuple[int, int]) -> Any:
    """Return a Gaussian filter, as it is for the spectrum of an image."""
    down, across = np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None, :]
    return np.exp(-2 * (np.pi * BLUR) ** 2 * (down**2 + across**2))


def otsu(image: Any) -> float:
    """Return the threshold that parts pixels into two classes with the greatest variance between them."""
    counts, edges = np.histogram(image, bins=256)
    middles, below = (edges[1:] + edges[:-1]) / 2, np.cumsum(counts)
    total, sums = below[-1], np.cumsum(counts * (edges[1:] + edges[:-1]) / 2)
    above = np.maximum(total - below, 1)
    between = below * above * (sums / np.maximum(below, 1) - (sums[-1] - sums) / above) ** 2
    return float(middles[np.argmax(between)])


def components(mask: Any) -> Any:
    """Return the connected parts of a mask, numbered from 1: each pixel takes the largest number around it until
    nothing changes, as far as a cell is wide."""
    labels = np.where(mask, np.arange(1, mask.size + 1, dtype=np.int32).reshape(mask.shape), 0)
    while True:
        around = np.pad(labels, 1)
        beside = around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]
        most = np.where(mask, np.maximum.reduce([labels, *beside]), 0)
        if np.array_equal(most, labels):
            return np.unique(labels, return_inverse=True)[1].reshape(mask.shape)
        labels = most
