"""The examples of docs/pipeline.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.integration.broker_process import ROOT, BrokerProcess

from clarion import Admin

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGE = ROOT / "docs" / "pipeline.md"


def test_every_example_of_the_walk_runs_as_it_stands(spark: SparkSession, broker: BrokerProcess) -> None:
    text = _PAGE.read_text()
    blocks = _BLOCK.findall(text)
    assert len(blocks) == 4
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ztf" / "alerts.py"), "--alerts", "300", "--url", broker.url],
        check=True, stdout=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    world: dict[str, object] = {}
    for block in blocks:
        line = text[: text.index(block)].count("\n")
        code = compile("\n" * line + block.replace("tcp://127.0.0.1:5590", broker.url), str(_PAGE), "exec")
        exec(code, world)
    with Admin(broker.url) as admin:
        twice = sorted(int(message.payload) for message in admin.browse("twice"))
        assert twice == [2 * number for number in range(1000)]
        assert all(b"magnitude" in message.payload for message in admin.browse("ztf/bright"))
        assert admin.describe_topic("ztf/bright").messages > 0
        assert admin.describe_subscription("numbers", "sums").lag == 0


def test_every_command_of_the_walk_is_one_that_there_is() -> None:
    from typer.testing import CliRunner

    from clarion.cli.main import app

    lines = re.findall(r"^clarion ((?:pipeline|simulate) .*)$", _PAGE.read_text(), re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        words = [word for word in line.split("#")[0].split() if not word.startswith(("--master", "spark://"))]
        told = CliRunner().invoke(app, [*words[:2], "--help"])
        assert told.exit_code == 0, line
        for option in (word for word in words[2:] if word.startswith("--")):
            assert option in told.output, f"{line}: {option}"


def test_the_packet_that_is_varied_is_a_real_one() -> None:
    assert (ROOT / "examples" / "ztf" / "alert.avro").read_bytes()[:4] == b"Obj\x01"
    assert Path(ROOT / "examples" / "ztf" / "README.md").exists()
