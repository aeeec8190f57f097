"""The guide's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.broker_process import ROOT, BrokerProcess

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guide.md").read_text()
    blocks = _BLOCK.findall(text)
    assert len(blocks) >= 12
    broker = BrokerProcess(tmp_path / "data").start()
    world: dict[str, object] = {}
    try:
        for block in blocks:
            line = text[: text.index(block)].count("\n")
            code = compile("\n" * line + block.replace("tcp://127.0.0.1:5590", broker.url), "docs/guide.md", "exec")
            exec(code, world)
        assert broker.stop() == 0
    finally:
        broker.close()
