"""Names of a lake's files, and which of them count."""

from __future__ import annotations

import pytest

from clarion.model.errors import InvalidRequest, StoredDataCorrupt
from clarion.pipeline.lake.lake_layout import (
    LakeFile,
    count,
    ends,
    escape,
    is_rows,
    place_of,
    read_path,
    topic_folder,
    unescape,
)

DAY = "2026-11-16"


def _file(first: int, last: int, topic: str = "a", day: str = DAY) -> LakeFile:
    return LakeFile(topic, day, first, last)


def test_a_files_name_says_its_topic_day_and_offsets() -> None:
    file = LakeFile("alerts/ztf", DAY, 7, 12345, 99)
    assert file.path == f"topic=alerts%2Fztf/day={DAY}/00000000000000000007-00000000000000012345.parquet"
    assert read_path(file.path, 99) == file


@pytest.mark.parametrize("topic", ["a=b%2F", "b64:_w==", "ünï {x}[y]^z*?", "\"quoted\" 'too'", "back\\slash", "100%"])
def test_any_topics_name_survives_the_path(topic: str) -> None:
    assert read_path(LakeFile(topic, DAY, 0, 1).path).topic == topic
    assert unescape(escape(topic)) == topic
    assert "/" not in escape(topic)


@pytest.mark.parametrize(
    "path", ["topic=a/day=2026-11-16/part-0.parquet", "x.parquet", f"topic=a/day={DAY}/{9:020d}-{8:020d}.parquet"]
)
def test_a_file_that_is_not_ours_is_named(path: str) -> None:
    with pytest.raises(InvalidRequest, match="is not named as the files of a lake are") as told:
        read_path(path)
    assert path in str(told.value)


def test_a_name_too_long_for_a_folder_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be kept in a lake"):
        topic_folder("/" * 100)
    assert topic_folder("x" * 200) == "topic=" + "x" * 200


def test_the_name_that_parquet_readers_take_for_null_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="takes it for null"):
        topic_folder("__HIVE_DEFAULT_PARTITION__")


def test_sparks_own_notes_are_no_rows() -> None:
    assert not is_rows("_SUCCESS")
    assert not is_rows("topic=a/day=2026-11-16/.part-0.parquet.crc")
    assert not is_rows("topic=a/day=2026-11-16/_part.parquet")
    assert is_rows("topic=a/day=2026-11-16/part-0.parquet")
    assert place_of("topic=a%2Fb/day=2026-11-16/part-0.parquet") == ("a/b", DAY)
    assert place_of("_temporary/0/topic=a/day=2026-11-16/part-0.parquet") is None


def test_a_larger_file_counts_and_those_inside_it_do_not() -> None:
    merged, inside, exact_end, after = _file(0, 99), _file(0, 49), _file(50, 99), _file(100, 120)
    assert count([after, exact_end, inside, merged]) == ([merged, after], [inside, exact_end])


def test_files_of_other_topics_and_days_do_not_matter() -> None:
    files = [_file(0, 99, "a"), _file(50, 60, "b"), _file(0, 99, "b", "2026-11-17")]
    assert count(files) == (files, [])


def test_files_that_overlap_halfway_are_named() -> None:
    with pytest.raises(StoredDataCorrupt, match="offsets in common") as told:
        count([_file(0, 99), _file(50, 149)])
    assert _file(0, 99).path in str(told.value)
    assert _file(50, 149).path in str(told.value)


def test_the_end_of_a_topic_is_its_last_offset_of_any_day() -> None:
    assert ends([_file(0, 9), _file(10, 19, day="2026-11-17"), _file(5, 7, "b")]) == {"a": 19, "b": 7}
