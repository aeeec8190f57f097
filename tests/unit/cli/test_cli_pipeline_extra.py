"""`clarion pipeline` where Spark is not installed."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "a", "--to", "lake"],
        ["compact", "lake"],
        ["replay", "lake"],
        ["rates", "a"],
        ["rates", "--lake", "lake"],
        ["latency", "a"],
    ],
)
@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, words: list[str], missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 1
    assert 'pip install "clarion[spark]"' in done.stderr
