"""Names of a lake's files, which of them count, which are added and which merged."""

from __future__ import annotations

import pytest

from clarion.model.errors import InvalidRequest, StoredDataCorrupt
from clarion.pipeline.lake.lake_layout import (
    LakeFile,
    Move,
    Staged,
    current_files,
    ends,
    escape,
    is_rows,
    place_of,
    plan_merges,
    plan_moves,
    read_path,
    split_staged,
    topic_folder,
    unescape,
)

DAY, NEXT_DAY = "2026-11-16", "2026-11-17"
MB = 2**20


def _file(first: int, last: int, size_bytes: int = 0, topic: str = "a", day: str = DAY) -> LakeFile:
    return LakeFile(topic, day, first, last, size_bytes)


def _staged(first: int, last: int, topic: str = "a") -> Staged:
    return Staged(f"staged/{topic}-{first}", _file(first, last, topic=topic), last - first + 1)


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
    assert current_files([after, exact_end, inside, merged]) == ([merged, after], [inside, exact_end])


def test_files_of_other_topics_and_days_do_not_matter() -> None:
    files = [_file(0, 99, topic="a"), _file(50, 60, topic="b"), _file(0, 99, topic="b", day=NEXT_DAY)]
    assert current_files(files) == (files, [])


def test_files_that_overlap_halfway_are_named() -> None:
    with pytest.raises(StoredDataCorrupt, match="offsets in common") as told:
        current_files([_file(0, 99), _file(50, 149)])
    assert _file(0, 99).path in str(told.value)
    assert _file(50, 149).path in str(told.value)


def test_the_end_of_a_topic_is_its_last_offset_of_any_day() -> None:
    assert ends([_file(0, 9), _file(10, 19, day=NEXT_DAY), _file(5, 7, topic="b")]) == {"a": 19, "b": 7}


def test_rows_up_to_the_lakes_end_are_known_and_those_beyond_are_new() -> None:
    known, mixed, fresh, other = _staged(0, 9), _staged(10, 19), _staged(20, 29), _staged(5, 6, "b")
    assert split_staged([known, mixed, fresh, other], {"a": 15}) == ([fresh, other], {"a"})
    assert split_staged([known], {"a": 9}) == ([], set())
    assert split_staged([fresh], {"a": 19}) == ([fresh], set())


def test_moves_go_in_order_of_offsets() -> None:
    moves = plan_moves([_staged(20, 29), _staged(10, 19)], [_file(0, 9)]).moves
    assert moves == (Move("staged/a-10", _file(10, 19).path), Move("staged/a-20", _file(20, 29).path))


@pytest.mark.parametrize("there", [(0, 10), (12, 13), (19, 30), (10, 19), (0, 99)])
def test_offsets_that_are_there_already_are_never_added(there: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="nothing was added") as told:
        plan_moves([_staged(10, 19)], [_file(*there)])
    assert _file(*there).path in str(told.value)


def test_the_same_offsets_of_another_topic_or_day_are_no_matter() -> None:
    assert len(plan_moves([_staged(10, 19)], [_file(10, 19, topic="b"), _file(10, 19, day=NEXT_DAY)]).moves) == 1


def test_neighbours_are_merged_up_to_the_target() -> None:
    files = [_file(at, at, 40 * MB) for at in range(7)]
    merges = plan_merges(files, target_bytes=128 * MB, thorough=True)
    assert merges == [files[0:3], files[3:6]]


def test_large_files_are_left_alone() -> None:
    small, large, last = _file(0, 0, MB), _file(1, 1, 200 * MB), _file(2, 2, MB)
    assert plan_merges([small, large, last], target_bytes=128 * MB, thorough=True) == []


def test_topics_and_days_are_never_mixed() -> None:
    files = [_file(0, 0, MB), _file(1, 1, MB, day=NEXT_DAY), _file(2, 2, MB, topic="b")]
    assert plan_merges(files, target_bytes=128 * MB, thorough=True) == []


def test_a_day_that_is_over_is_merged_wholly_and_one_that_grows_when_it_is_worth_it() -> None:
    over = [_file(0, 0, 50 * MB), _file(1, 1, MB)]
    growing = [_file(2, 2, 50 * MB, day=NEXT_DAY), _file(3, 3, MB, day=NEXT_DAY), _file(4, 4, MB, day=NEXT_DAY)]
    assert plan_merges(over + growing, target_bytes=128 * MB, thorough=False) == [over, growing[1:]]
    assert plan_merges(over + growing, target_bytes=128 * MB, thorough=True) == [over, growing]


def test_a_row_is_rewritten_few_times_however_small_the_files_that_come() -> None:
    files: list[LakeFile] = []
    rewritten = 0
    for offset in range(1024):
        files.append(_file(offset, offset, MB // 8))
        for group in plan_merges(files, target_bytes=128 * MB, thorough=False):
            size_bytes = sum(file.size_bytes for file in group)
            rewritten += size_bytes
            files = [file for file in files if file not in group]
            files.append(_file(group[0].first, group[-1].last, size_bytes))
        assert len(files) <= 11
    assert rewritten <= 10 * 128 * MB  # the logarithm of 1024 files
