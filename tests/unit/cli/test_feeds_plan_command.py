"""`clarion feeds plan`: what it prints and writes, and what it says of files that it cannot use."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from clarion.cli.main import app

_HEADER = "channel,subscribers,size,update_interval_s\n"
_ROWS = [
    ("https://a.example/", 40, 1000.0, 600.0),
    ("https://b.example/", 3, 500.0, None),
    ("unwatched", 0, 10.0, 60.0),
]


def _run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["feeds", "plan", *map(str, arguments)])


def _json(*arguments: object) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _said(text: str, tmp_path: Path, *options: object) -> str:
    file = tmp_path / "channels.csv"
    file.write_text(text, encoding="utf-8")
    result = _run(file, "--nodes", 16, *options)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    said: str = result.stderr
    return said


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "channels.csv"
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([_HEADER.strip().split(","), *_ROWS])
    return path


def test_json_has_what_programs_ask_for(file: Path) -> None:
    found = _json(file, "--nodes", 16, "--base", 16, "--poll-interval-s", 1800)
    assert found.pop("decentralised").keys() == {
        "nodes", "clusters", "polls", "bandwidth", "detection_s", "gap_to_bound"
    }  # fmt: skip
    assert found == {
        "scheme": "lite", "nodes": 16, "base": 16, "poll_interval_s": 1800, "target_s": None, "channels": 3,
        "watched": 2, "levels": 2, "pollers_by_level": [16, 1], "channels_by_level": [2, 0], "polls": 16,
        "bandwidth": 16, "budget": pytest.approx(41_500 / 1500), "polls_per_s": pytest.approx(32 / 1800),
        "bandwidth_per_s": pytest.approx(24_000 / 1800), "detection_s": {"by_subscription": 56.25, "by_channel": 56.25},
        "gap_to_bound": 0, "exact": True,
    }  # fmt: skip


def test_parquet_is_read_and_written_as_csv_is(file: Path, tmp_path: Path) -> None:
    columns = dict(zip(_HEADER.strip().split(","), map(list, zip(*_ROWS, strict=True)), strict=True))
    parquet.write_table(pa.table({**columns, "more": [1, 2, 3]}), tmp_path / "channels.parquet")
    options = ("--nodes", 36, "--scheme", "fair", "--out")
    assert _json(tmp_path / "channels.parquet", *options, tmp_path / "l.csv") == _json(
        file, *options, tmp_path / "l.parquet"
    )
    written = parquet.read_table(tmp_path / "l.parquet").to_pylist()
    assert written[0] == {"channel": "https://a.example/", "level": 0, "pollers": 36, "detection_s": 25}
    assert written[2] == {"channel": "unwatched", "level": 2, "pollers": 0, "detection_s": None}
    with (tmp_path / "l.csv").open(newline="", encoding="utf-8") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == list(written[0])
    assert rows[1:] == [["" if one is None else str(one) for one in row.values()] for row in written]


def test_fast_meets_its_target(file: Path) -> None:
    found = _json(file, "--nodes", 16, "--scheme", "fast", "--target-s", 200)
    assert found["detection_s"]["by_subscription"] <= found["target_s"] == 200
    assert _json(file, "--nodes", 16, "--scheme", "fast", "--target", "200s") == found
    assert found["channels_by_level"] == [1, 1]


def test_people_see_levels_and_what_follows(file: Path) -> None:
    shown = _run(file, "--nodes", 16).stdout
    assert shown.splitlines()[0].split() == ["level", "pollers", "found", "after", "channels"]
    assert "changes are found after 56.25 s" in shown
    assert "nothing is better" in shown
    assert "1 channel without subscribers: not polled" in shown


def test_a_target_belongs_to_fast(file: Path) -> None:
    assert _run(file, "--nodes", 16, "--target-s", 30).exit_code == 2
    assert _run(file, "--nodes", 16, "--scheme", "fast").exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column channel, subscribers, size, update_interval_s"),
        (_HEADER, "holds no channels"),
        ("channel,subscribers\na,1\n", "has no column size, update_interval_s"),
        (f"{_HEADER}a,1,1,60\nb,2,1\n", "line 3: it has fewer columns than the first line"),
        (f"{_HEADER}a,1,1,60\nb,many,1,60\n", "line 3: could not convert string to float: 'many'"),
        (f"{_HEADER}a,1,1,60\nb,,1,60\n", "line 3: could not convert"),
        (f'{_HEADER}a,1,1,60\n"b,1,1,60\n', "line 3: unexpected end of data"),
        (f"{_HEADER}a,1,1,60\nb,nan,1,60\n", "subscribers of channel 2 is nan, and should be 0 or more"),
        (f"{_HEADER}a,-1,1,60\n", "subscribers of channel 1 is -1"),
        (f"{_HEADER}a,1,0,60\n", "size of channel 1 is 0, and should be more than 0"),
        (f"{_HEADER}a,1,1,60\nb,1,1,60\na,2,1,60\n", "has channels more than once: a"),
        (f"{_HEADER}a,1,1,60\n,1,1,60\n", "channel 2 has no name"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    assert said in _said(text, tmp_path)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    for name, data in (("a.csv", b"\xff\xfe,\n"), ("a.parquet", b"no parquet")):
        (tmp_path / name).write_bytes(data)
        result = _run(tmp_path / name, "--nodes", 16)
        assert result.exit_code == 1
        assert name in result.stderr


def test_a_file_that_is_not_there_or_cannot_be_written_is_told(file: Path, tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet"):
        assert "none" in _run(tmp_path / name, "--nodes", 2).stderr
    result = _run(file, "--nodes", 2, "--out", tmp_path / "none" / "levels.csv")
    assert result.exit_code == 1
    assert "choose another for --out" in result.stderr


def test_fair_log_needs_update_intervals_of_more_than_a_second(tmp_path: Path) -> None:
    assert "for fair-log more than 1" in _said(f"{_HEADER}a,1,1,0.5\n", tmp_path, "--scheme", "fair-log")


def test_a_target_that_nobody_can_meet_is_told_with_the_least(tmp_path: Path) -> None:
    said = _said(f"{_HEADER}a,1,1,60\n", tmp_path, "--scheme", "fast", "--target-s", "10")
    assert "found after 56.25 s where all 16 nodes poll everything, not after 10 s" in said
