"""Adding micro-batches to a lake, each whole and once, whatever dies in between.

Spark writes the rows beside the lake; then an intent, which names every file and the path it is to have, is written in
one step; then the files are moved. Before the intent nothing has happened, after it everything will: whoever opens the
lake next finishes the moves. A micro-batch that comes again is known by its offsets: what lies at or below the end of
its topic is in the lake, however it was partitioned then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from clarion.model.errors import StoredDataCorrupt
from clarion.pipeline.lake.lake_folder import LakeFolder, read_note
from clarion.pipeline.lake.lake_layout import (
    INTENTS,
    STAGING,
    Intent,
    LakeFile,
    Staged,
    current_files,
    day_folder,
    ends,
    plan_moves,
    read_path,
    split_staged,
)

log = logging.getLogger("clarion.pipeline")
# Writes a micro-batch's rows at a location as Spark's partitionBy(topic, day) does, but for those at or below an offset
# of their topic.
Stage = Callable[[str, Mapping[str, int]], None]
CheckTopics = Callable[[Iterable[str]], None]  # raises where one must not be added to this lake
OnStep = Callable[[str], None]
_LEFT_BEHIND_S = 7 * 86_400.0  # after which somebody else's staged files are nobody's


class Added(NamedTuple):
    """What a micro-batch brought."""

    rows: int
    files: list[LakeFile]


class LakeWriter:
    """Adds micro-batches to a lake, one at a time. `owner` is the same for the same archive after a restart.

    Opening it finishes what was decided before, and forgets what was not. Only one may add to a topic at a time.
    `on_step` is told the name of every step that is done.
    """

    def __init__(
        self,
        lake: LakeFolder,
        owner: str,
        *,
        check_topics: CheckTopics,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._lake = lake
        self._intent = f"{INTENTS}/{owner}.json"
        self._staging = f"{STAGING}/{owner}"
        self._check_topics = check_topics
        self._step = on_step
        self._recover()
        self._ends = ends(current_files(lake.files()).files)

    @property
    def ends(self) -> Mapping[str, int]:
        """The last offset in the lake, by topic."""
        return self._ends

    def add(self, stage: Stage) -> Added:
        """Add what `stage` writes, without the rows that the lake has already."""
        staged = self._stage(stage, {})
        found = split_staged(staged, self._ends)
        if found.mixed:  # a checkpoint is behind the lake, and cuts micro-batches elsewhere
            log.info("the lake has some of these rows already: %s", ", ".join(sorted(found.mixed)))
            staged = self._stage(stage, {topic: self._ends[topic] for topic in found.mixed})
            found = split_staged(staged, self._ends)
            assert not found.mixed, "the filter leaves none behind the end"
        added = self._move(found.fresh)
        self._lake.delete_folder(self._staging)
        self._step("cleaned")
        return added

    def _stage(self, stage: Stage, beyond: Mapping[str, int]) -> list[Staged]:
        self._lake.delete_folder(self._staging)
        stage(self._lake.spark_path(self._staging), beyond)
        self._step("staged")
        return self._lake.staged(self._staging)

    def _move(self, fresh: list[Staged]) -> Added:
        if not fresh:
            return Added(0, [])
        files = [one.file for one in fresh]
        self._check_topics({file.topic for file in files})
        folders = {day_folder(*file.place) for file in files}
        present = [file for folder in folders for file in self._lake.files_of_day(folder)]
        intent = plan_moves(fresh, current_files(present).files)
        self._lake.write(self._intent, msgspec.json.encode(intent))
        self._step("decided")
        self._finish(self._intent, intent)
        self._ends.update(ends(files))
        return Added(sum(one.rows for one in fresh), files)

    def _recover(self) -> None:
        for path, intent in read_intents(self._lake).items():
            log.info("finishing a micro-batch of %d files that was decided before", len(intent.moves))
            self._finish(path, intent)
        self._lake.delete_folder(self._staging)
        self._lake.delete_old(STAGING, time.time() - _LEFT_BEHIND_S)

    def _finish(self, path: str, intent: Intent) -> None:
        found = 0
        for done in self._lake.move(intent.moves):
            found += done
            self._step("moved")
        if found < len(intent.moves):
            check_moved(self._lake, intent)
        self._lake.delete(path)
        self._step("settled")


def read_intents(lake: LakeFolder) -> dict[str, Intent]:
    """Return the micro-batches that are decided, and may not be in the lake wholly, by the path of their notes."""
    told = {path: read_note(lake, path, Intent) for path in lake.names(INTENTS) if path.endswith(".json")}
    return {path: intent for path, intent in told.items() if intent is not None}


def check_moved(lake: LakeFolder, intent: Intent) -> None:
    """Check that all of an intent's files are in the lake, or in larger ones that they were merged into."""
    targets = [read_path(move.target) for move in intent.moves]
    for folder in sorted({day_folder(*target.place) for target in targets}):
        present = lake.files_of_day(folder)
        for target in targets:
            held = any(one.first <= target.first and target.last <= one.last for one in present)
            if target.path.startswith(f"{folder}/") and not held:
                raise StoredDataCorrupt(
                    f"{lake}/{target.path} should be there, and neither it nor what was staged for it is: somebody"
                    f" deleted it. What it held is offsets {target.first} to {target.last} of {target.topic}"
                )
