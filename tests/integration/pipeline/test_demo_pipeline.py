"""`clarion demo --pipeline`, which `make demo` runs: the demo's topic archived by Spark, each message once."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.integration.shell import environment

_WITHIN_S = 600.0


def test_the_demo_ends_with_its_topic_archived_and_summarised() -> None:
    command = [sys.executable, "-m", "clarion", "demo", "--pipeline", "--messages", "2000", "--json"]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["kills"] == 1
    archived = told["archived"]
    assert (archived["rows"], archived["different"]) == (2000, 2000)
    assert sum(archived["by_publisher"].values()) == 2000
    assert 0 <= archived["median_ms"] <= archived["p99_ms"]
