"""A micro-batch is added to a lake whole and once, and small files become large ones, wherever the process dies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.unit.pipeline.lake_rows import ROWS, Died, die_after, fill, lake_rows, open_writer, rows_of, stage, table_of

from clarion.model.errors import InvalidRequest, PermanentError, StoredDataCorrupt
from clarion.pipeline.lake.lake_folder import (
    LakeFolder,
    Origin,
    check_format,
    difference,
    remember,
    remember_checkpoint,
)
from clarion.pipeline.lake.lake_layout import LakeFile
from clarion.pipeline.lake.lake_writer import Compacted, compact

BEFORE = rows_of("a/b", range(4))
ADDED = rows_of("a/b", range(4, 25)) + rows_of("c", range(100, 120))  # over midnight, too
AFTER = rows_of("a/b", range(25, 30))


def test_files_are_named_by_their_offsets_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    added = open_writer(tmp_path).add(stage(ADDED, 2))
    assert added.rows == len(ADDED)
    assert lake_rows(tmp_path) == ADDED
    assert (tmp_path / "topic=a%2Fb/day=2026-11-16" / f"{4:020d}-{9:020d}.parquet").exists()
    assert not list((tmp_path / "_clarion/staging").iterdir())
    assert not list((tmp_path / "_clarion/intents").iterdir())


@pytest.mark.parametrize("tasks_again", [1, 2, 5])
def test_wherever_it_dies_each_row_is_there_once(tmp_path: Path, tasks_again: int) -> None:
    steps = died = 0
    while died == steps:  # once for each step, until there are no more
        steps += 1
        folder = tmp_path / str(steps)
        open_writer(folder).add(stage(BEFORE, 1))
        try:
            open_writer(folder, die_after(steps)).add(stage(ADDED, 2))
        except Died:
            died += 1
        seen = lake_rows(folder)
        assert seen in (BEFORE, BEFORE + ADDED), "never a part of a micro-batch"
        writer = open_writer(folder)
        writer.add(stage(ADDED, tasks_again))
        writer.add(stage(AFTER, tasks_again))
        assert sorted(lake_rows(folder)) == sorted(BEFORE + ADDED + AFTER)
        assert len(lake_rows(folder)) == len(BEFORE + ADDED + AFTER)
    assert died >= 7  # staged, decided, four files moved, settled


def test_dying_again_while_it_recovers_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(Died):
        open_writer(tmp_path, die_after(2)).add(stage(ADDED, 3))  # decided, nothing moved
    deaths = 0
    for steps in range(1, 20):  # as many files as are moved already are looked for again each time
        try:
            open_writer(tmp_path, die_after(steps))
        except Died:
            deaths += 1
        else:
            break
    assert deaths > 1
    assert lake_rows(tmp_path) == ADDED


def test_an_archive_of_another_name_finishes_what_was_decided(tmp_path: Path) -> None:
    with pytest.raises(Died):
        open_writer(tmp_path, die_after(3)).add(stage(ADDED, 3))
    assert lake_rows(tmp_path) == []
    writer = open_writer(tmp_path, owner="other")
    assert lake_rows(tmp_path) == ADDED
    assert writer.ends == {"a/b": 24, "c": 119}


def test_a_checkpoint_behind_the_lake_adds_only_what_is_new(tmp_path: Path) -> None:
    open_writer(tmp_path).add(stage(ADDED, 2))
    more = rows_of("a/b", range(30)) + rows_of("c", range(100, 105)) + rows_of("d", range(3))
    added = open_writer(tmp_path, owner="other").add(stage(more, 2))
    assert added.rows == 5 + 3
    assert sorted(lake_rows(tmp_path)) == sorted(ADDED + AFTER + rows_of("d", range(3)))


def test_two_archives_of_one_topic_are_refused_and_the_first_one_stands(tmp_path: Path) -> None:
    one, other = open_writer(tmp_path), open_writer(tmp_path, owner="other")
    one.add(stage(ADDED, 1))
    with pytest.raises(InvalidRequest, match="Only one may"):
        other.add(stage(ADDED, 2))
    assert lake_rows(tmp_path) == ADDED


def test_a_file_that_vanished_halfway_is_told(tmp_path: Path) -> None:
    with pytest.raises(Died):
        open_writer(tmp_path, die_after(2)).add(stage(ADDED, 1))
    for file in (tmp_path / "_clarion/staging/test/topic=c").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(StoredDataCorrupt, match="offsets 100 to 119 of c"):
        open_writer(tmp_path)


def test_a_topic_of_another_store_is_refused_and_nothing_is_added(tmp_path: Path) -> None:
    lake = LakeFolder(tmp_path)
    here = Origin("aa", 1, 5)
    remember(lake, "a/b", here)
    remember(lake, "a/b", here)
    for other, said in [
        (Origin("bb", 1, 5), "of store aa"),
        (Origin("aa", 2, 5), "restored from a backup"),
        (Origin("aa", 1, 6), "deleted and made anew"),
    ]:
        with pytest.raises(InvalidRequest, match=said) as told:
            remember(lake, "a/b", other)
        assert "topic=a%2Fb" in str(told.value)
        assert said in str(difference("a/b", here, other))
    remember(lake, "other", Origin("bb", 1, 5))


def test_a_lake_of_a_newer_format_and_no_lake_at_all_are_told(tmp_path: Path) -> None:
    lake = LakeFolder(tmp_path)
    with pytest.raises(InvalidRequest, match="there is no lake"):
        check_format(lake)
    check_format(lake, make=True)
    check_format(lake)
    (tmp_path / "_clarion/lake.json").write_text('{"format": 2}')
    with pytest.raises(InvalidRequest, match="has format 2"):
        check_format(lake, make=True)
    (tmp_path / "_clarion/lake.json").write_text('{"for')
    with pytest.raises(StoredDataCorrupt, match="cannot be read"):
        check_format(lake)


def test_a_lake_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermanentError, match="no lake can be made at"):
        check_format(LakeFolder(tmp_path / "file" / "lake"), make=True)


def test_a_checkpoint_of_another_lake_is_refused(tmp_path: Path) -> None:
    one, other = LakeFolder(tmp_path / "one"), LakeFolder(tmp_path / "other")
    remember_checkpoint(one, "c", "/c", begun=False)
    remember_checkpoint(one, "c", "/c", begun=True)
    with pytest.raises(InvalidRequest, match="the checkpoint at /c is not of the lake at"):
        remember_checkpoint(other, "c", "/c", begun=True)


def test_a_path_that_spark_would_take_for_a_pattern_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="for patterns"):
        LakeFolder("/tmp/lake*")


def test_a_location_is_the_same_with_and_without_its_scheme(tmp_path: Path) -> None:
    assert LakeFolder(tmp_path).location == LakeFolder(f"file://{tmp_path}/").location == f"file://{tmp_path}"
    assert LakeFolder(f"file:{tmp_path}").location == f"file://{tmp_path}"


def test_a_staged_file_without_offsets_in_its_footer_is_not_added(tmp_path: Path) -> None:
    def write(location: str, beyond: object) -> None:
        target = Path(location.removeprefix("file://")) / "topic=a/day=2026-11-16"
        target.mkdir(parents=True)
        parquet.write_table(table_of(BEFORE), target / "part-0.parquet", write_statistics=False)

    with pytest.raises(StoredDataCorrupt, match="which offsets it has, and was left"):
        open_writer(tmp_path).add(write)
    assert lake_rows(tmp_path) == []


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("topic=*/**/*.parquet"))


def test_files_of_a_topics_day_become_one_with_all_rows_in_order(tmp_path: Path) -> None:
    fill(tmp_path)
    assert compact(tmp_path) == Compacted(10, 2, 25)
    assert _names(tmp_path) == [
        LakeFile("a", "2026-11-16", 0, 9).path,
        LakeFile("a", "2026-11-17", 10, 24).path,
        LakeFile("b", "2026-11-16", 0, 4).path,
    ]
    assert lake_rows(tmp_path) == ROWS
    assert compact(tmp_path) == Compacted(0, 0, 0)


def test_merged_files_can_be_merged_again(tmp_path: Path) -> None:
    fill(tmp_path)
    compact(tmp_path)
    open_writer(tmp_path).add(stage(rows_of("a", range(25, 30)), 2))
    assert compact(tmp_path, topics=["a"]) == Compacted(3, 1, 20)
    assert lake_rows(tmp_path) == rows_of("a", range(30)) + rows_of("b", range(5))


def test_wherever_it_dies_every_row_is_read_once_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    steps = died = 0
    while died == steps:
        steps += 1
        folder = tmp_path / str(steps)
        fill(folder)
        try:
            compact(folder, on_step=die_after(steps))
        except Died:
            died += 1
        assert lake_rows(folder) == ROWS
        open_writer(folder).add(stage(rows_of("b", range(5, 8)), 1))  # not hindered by what is left
        compact(folder)
        assert lake_rows(folder) == ROWS + rows_of("b", range(5, 8))
        assert len(_names(folder)) == 3
        assert not list((folder / "_clarion/staging").iterdir())
    assert died >= 14  # of two merges: written, moved, and each of ten originals deleted


def test_rows_that_lie_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    shuffled = rows_of("a", range(8))
    random.Random(3).shuffle(shuffled)
    writer = open_writer(tmp_path)
    writer.add(stage(shuffled, 1))
    writer.add(stage(rows_of("a", range(8, 10)), 1))
    writer.add(stage(rows_of("b", [3, 1, 2]), 1))
    open_writer(tmp_path).add(stage(rows_of("b", [5, 4]), 1))
    compact(tmp_path)
    assert lake_rows(tmp_path) == rows_of("a", range(10)) + rows_of("b", range(1, 6))


def test_small_row_groups_are_put_together(tmp_path: Path) -> None:
    fill(tmp_path)
    compact(tmp_path)
    merged = parquet.ParquetFile(tmp_path / LakeFile("a", "2026-11-17", 10, 24).path)
    assert merged.num_row_groups == 1
    assert merged.metadata.row_group(0).column(0).statistics.max == 24


def test_files_with_other_columns_are_kept_as_they_are(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.add(stage(rows_of("a", range(4)), 2))
    odd = table_of(rows_of("a", [4])).append_column("more", [[1]])
    parquet.write_table(odd, tmp_path / LakeFile("a", "2026-11-16", 4, 4).path)
    before = _names(tmp_path)
    with pytest.raises(StoredDataCorrupt, match="other columns"):
        compact(tmp_path)
    assert _names(tmp_path) == before
    assert not list((tmp_path / "_clarion/staging").iterdir())


def test_files_of_a_micro_batch_that_is_being_added_are_not_touched(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(Died):
        open_writer(tmp_path, die_after(3)).add(stage(rows_of("b", range(5, 9)), 2))  # one of two files moved
    assert lake_rows(tmp_path) == ROWS
    compact(tmp_path)
    assert lake_rows(tmp_path) == ROWS
    open_writer(tmp_path)
    assert lake_rows(tmp_path) == ROWS + rows_of("b", range(5, 9))
