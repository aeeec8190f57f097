"""What a lake remembers of where its topics came from: offsets mean something in that store and timeline alone."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from clarion.model.errors import InvalidRequest, PermanentError, StoredDataCorrupt
from clarion.pipeline.lake.folder import LakeFolder
from clarion.pipeline.lake.layout import NOTES, escape, topic_folder

_FORMAT = 1
_LAKE = f"{NOTES}/lake.json"
_TOPICS = f"{NOTES}/topics"
_CHECKPOINTS = f"{NOTES}/checkpoints"
Note = TypeVar("Note", bound=msgspec.Struct)


class Origin(msgspec.Struct, frozen=True):
    """Which topic of which store the rows are of."""

    store: str  # its UUID, hexadecimal
    timeline: int
    number: int  # of the topic; no other ever has it


class _LakeNote(msgspec.Struct):
    format: int


def check_format(lake: LakeFolder, *, make: bool = False) -> None:
    """Check that there is a lake that we can read; with `make`, begin one where there is none."""
    told = lake.read(_LAKE)
    if told is None and make:
        try:
            return lake.write(_LAKE, msgspec.json.encode(_LakeNote(_FORMAT)))
        except OSError as error:
            raise PermanentError(f"no lake can be made at {lake}: {error}") from error
    if told is None:
        raise InvalidRequest(f"there is no lake at {lake}; `archive` makes one")
    found = _read(lake, _LAKE, told, _LakeNote).format
    if found != _FORMAT:
        raise InvalidRequest(f"the lake at {lake} has format {found}, and this version knows {_FORMAT}; upgrade it")
    return None


def remember(lake: LakeFolder, topic: str, origin: Origin) -> None:
    """Note where a topic's rows come from, the first time; InvalidRequest where the lake has others of that name."""
    path = f"{_TOPICS}/{escape(topic)}.json"
    told = lake.read(path)
    if told is None:
        lake.write(path, msgspec.json.encode(origin))
        return
    problem = difference(topic, _read(lake, path, told, Origin), origin)
    if problem is not None:
        raise InvalidRequest(
            f"the lake at {lake} has rows of {topic} already, and {problem}. Nothing was added. Archive into another"
            f" lake, or move {topic_folder(topic)} and {path} out of this one, and begin with a new checkpoint"
        )


def remember_checkpoint(lake: LakeFolder, owner: str, place: str, *, begun: bool) -> None:
    """Note that a checkpoint elsewhere is this lake's; InvalidRequest where it was `begun` with another one, whose rows
    would be missing in this."""
    path = f"{_CHECKPOINTS}/{owner}.json"
    if lake.read(path) is not None:
        return
    if begun:
        raise InvalidRequest(
            f"the checkpoint at {place} is not of the lake at {lake}, which does not have all rows before it. Nothing"
            " was added. Leave the checkpoint out, and the archive goes on where the lake ends, or name a new one"
        )
    lake.write(path, b"{}")


def difference(topic: str, kept: Origin, found: Origin) -> str | None:
    """Say in words how two origins differ; None where they do not."""
    if kept.store != found.store:
        return f"they are of store {kept.store}, while the broker now has store {found.store}"
    if kept.timeline != found.timeline:
        return (
            f"they are of timeline {kept.timeline} of the store, while the broker is now on {found.timeline}: it was"
            " restored from a backup, and offsets may be of other messages since"
        )
    if kept.number != found.number:
        return f"{topic} was deleted and made anew at the broker since then"
    return None


def _read(lake: LakeFolder, path: str, told: bytes, kind: type[Note]) -> Note:
    try:
        return msgspec.json.decode(told, type=kind)
    except msgspec.MsgspecError as error:
        raise StoredDataCorrupt(f"{lake}/{path} cannot be read: {error}; nothing was changed") from error
