"""The report of `bench.feeds`: tables. `python -m bench.feeds_report FOLDER` writes it again."""

from __future__ import annotations
import json
from pathlib import Path
from typing import Any


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write feeds.md."""
    (out / "feeds.md").write_text(json.dumps(results, indent=1))
