"""`format("clarion")` in a session that nobody told of it: Spark finds `pyspark_clarion` by itself."""

from __future__ import annotations

import json
import subprocess

from tests.integration.pipeline.conftest import own_process

_WITHIN_S = 600


def test_spark_finds_the_format_by_itself_and_says_in_words_what_is_wrong(url: str) -> None:
    process = own_process("tests.integration.pipeline.unregistered", url)
    done = subprocess.run(**process, capture_output=True, timeout=_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["filtered"]) == (100, 10)
    assert "NoTopic: there is no topic missing at this broker" in found["no topic"]
    assert "InvalidRequest: there is no option colour for reading" in found["no option"]
    assert "InvalidRequest: column colour is no part of a message" in found["no column"]
