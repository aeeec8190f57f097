"""The examples of README and guide run as they stand: twice, in any order, on a broker that was used before."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.integration.broker_process import ROOT, BrokerProcess, free_url
from tests.integration.shell import DEADLINE_S, environment

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A block of a page, with the line that it begins at."""

    page: str
    line: int
    kind: str
    text: str


def _examples(page: str) -> list[Example]:
    text = (ROOT / page).read_text()
    return [Example(page, text[: m.start(2)].count("\n"), m[1], m[2]) for m in _BLOCK.finditer(text)]


def _python(page: str) -> list[Example]:
    return [one for one in _examples(page) if one.kind == "python"]


def _run(example: Example, world: dict[str, object], url: str) -> None:
    text = example.text.replace("tcp://127.0.0.1:5590", url)
    exec(compile("\n" * example.line + text, example.page, "exec"), world)


def test_every_python_example_runs_twice_in_any_order_on_a_used_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *guide, last = _python("docs/guide.md")
    readme = _python("README.md") + _python("docs/feeds.md")
    assert len(guide) >= 12
    assert len(readme) == 5
    broker = BrokerProcess(tmp_path / "data").start()
    monkeypatch.setenv("CLARION_URL", broker.url)
    shuffled = [*guide, *readme]
    random.Random(12).shuffle(shuffled)
    try:
        for order in ([*readme, *guide], shuffled):
            world: dict[str, object] = {"__name__": "examples"}
            _run(first, world, broker.url)
            for example in order:
                _run(example, world if example in guide else {"__name__": "example"}, broker.url)
            _run(last, world, broker.url)
        assert broker.stop() == 0
    finally:
        broker.close()


def test_every_shell_example_runs_twice_on_a_used_broker(tmp_path: Path) -> None:
    blocks = [one for page in ("README.md", "docs/guide.md") for one in _examples(page) if one.kind == "sh"]
    assert len(blocks) == 3
    broker = BrokerProcess(tmp_path / "data").start()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "clarion").write_text(f'#!/bin/sh\nexec {sys.executable} -m clarion "$@"\n')
    (tmp_path / "bin" / "clarion").chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    try:
        for example in [*blocks, *reversed(blocks)]:
            text = example.text.replace("127.0.0.1:8080", free_url().removeprefix("tcp://"))
            text = text.replace("--from-http ", f"--from-http --listen {_listen(text)} ")
            done = subprocess.run(
                ["bash", "-e", "-c", text],
                env=environment(CLARION_URL=broker.url, PATH=path),
                capture_output=True,
                timeout=2 * DEADLINE_S,
                check=False,
            )
            assert (done.returncode, example.page, example.line) == (0, example.page, example.line), done.stderr
            assert b'"error"' not in done.stdout
    finally:
        broker.close()


def _listen(text: str) -> str:
    found = re.search(r"http://(127\.0\.0\.1:\d+)/", text)
    return found[1] if found else "127.0.0.1:0"
