"""What Spark tells of its batches becomes a line for people."""

from __future__ import annotations

import json
from typing import Any

from clarion.cli.pipeline.showing import progress_text
from clarion.pipeline.progress import NOTHING_YET, Progress, add_progress, lag_of


def _offset(**topics: int) -> str:
    return json.dumps({"store": "ab", "timeline": 1, "topics": {name: {"offset": at} for name, at in topics.items()}})


def _told(rows: int, duration_ms: int, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {"numInputRows": rows, "batchDuration": duration_ms, "sources": sources}


def test_rows_and_batches_add_up_and_the_rate_is_the_last_batchs() -> None:
    done = add_progress(NOTHING_YET, _told(1000, 500, []))
    done = add_progress(done, _told(300, 100, []))
    assert done == Progress(1300, 3000.0, None, 0.1, 2)


def test_an_empty_batch_only_tells_the_lag() -> None:
    done = add_progress(NOTHING_YET, _told(10, 100, []))
    source = {"endOffset": _offset(a=10), "latestOffset": _offset(a=25)}
    assert add_progress(done, _told(0, 5, [source])) == done._replace(lag=15)


def test_the_lag_is_what_waits_in_all_topics() -> None:
    source = {"endOffset": _offset(a=10, b=3), "latestOffset": _offset(a=12, b=3, new=4)}
    assert lag_of([source]) == 6
    assert lag_of([{"endOffset": "7", "latestOffset": "9"}]) is None
    assert lag_of([{"endOffset": None, "latestOffset": None}]) is None
    assert lag_of([]) is None


def test_the_line_says_rows_rate_lag_and_batch_time() -> None:
    assert progress_text(Progress(1_234_567, 98_765.4, 20, 1.25, 3), 61) == (
        "1,234,567 rows · 98,765/s · lag 20 · batch 3 in 1.2 s · 1m 1s"
    )
    assert "lag" not in progress_text(NOTHING_YET, 0)
