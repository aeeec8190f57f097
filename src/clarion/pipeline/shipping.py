"""Sending Clarion's own code to executors that do not have it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

import clarion

_PACKAGES = ("clarion", "pyspark_clarion")


def ship(session: SparkSession) -> None:
    """Send this installation's Clarion to the executors of a session, as `--py-files` would.

    What it depends on (pyzmq, msgspec, xxhash, pyarrow, numpy) has compiled parts and must be installed there.
    """
    folder = Path(tempfile.mkdtemp(prefix="clarion-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may ask for it as long as the driver lives
    session.sparkContext.addPyFile(str(pack(folder / "clarion.zip")))


def pack(target: Path) -> Path:
    """Write Clarion's Python files into a zip file that Python can import from."""
    source = Path(clarion.__file__).parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _PACKAGES:
            for file in sorted((source / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(source))
    return target
