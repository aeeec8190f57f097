"""Which files are added to a lake, and which are merged."""

from __future__ import annotations

import pytest

from clarion.model.errors import InvalidRequest
from clarion.pipeline.lake.lake_layout import LakeFile, Move, Staged, plan_merges, plan_moves, sift

DAY, NEXT_DAY = "2026-11-16", "2026-11-17"
MB = 2**20


def _file(first: int, last: int, size_bytes: int = 0, topic: str = "a", day: str = DAY) -> LakeFile:
    return LakeFile(topic, day, first, last, size_bytes)


def _staged(first: int, last: int, topic: str = "a") -> Staged:
    return Staged(f"staged/{topic}-{first}", _file(first, last, topic=topic), last - first + 1)


def test_rows_up_to_the_lakes_end_are_known_and_those_beyond_are_new() -> None:
    known, mixed, fresh, other = _staged(0, 9), _staged(10, 19), _staged(20, 29), _staged(5, 6, "b")
    assert sift([known, mixed, fresh, other], {"a": 15}) == ([fresh, other], [known], {"a"})
    assert sift([known], {"a": 9}) == ([], [known], set())
    assert sift([fresh], {"a": 19}) == ([fresh], [], set())


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
