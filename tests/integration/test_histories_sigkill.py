"""Histories of a process that is killed while it saves and packs: all that was saved is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName

_NOW_US = 1_750_000_000_000_000
_SAVED_AT_ONCE = 300
_BROKER = 0x9C540706
_WRITER = f"""
import sys
from pathlib import Path
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName, Tracker
file = HistoryFile(Path(sys.argv[1]), HistorySettings(pack_notes=1000), now_us={_NOW_US})
tracker = Tracker(file.names())
number = tracker.number_of(HistoryName("publisher", {_BROKER}))
begin = file.received().get((b"", b""), 0)
for stamp in range(begin, 1 << 40):
    tracker.note(number, {_BROKER} << 32, stamp)
    if stamp % {_SAVED_AT_ONCE} == {_SAVED_AT_ONCE - 1}:
        tracker.received_up_to(b"", b"", stamp + 1)
        file.save(tracker.take(), now_us={_NOW_US})
        tracker.saved()
        print(stamp + 1, flush=True)
        if file.is_pack_due({_NOW_US}):
            file.pack(now_us={_NOW_US})
"""


@pytest.mark.parametrize("lines", [1, 7, 20])
def test_what_was_saved_survives_sigkill(tmp_path: Path, lines: int) -> None:
    place = tmp_path / "histories"
    saved = 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(place)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                saved = int(writer.stdout.readline())
            writer.kill()
    file = HistoryFile(place, HistorySettings(), now_us=_NOW_US)
    assert file.received()[b"", b""] >= saved
    for stamp in range(0, saved, 41):
        assert [claim.history for claim in file.seen((_BROKER << 32, stamp))] == [HistoryName("publisher", _BROKER)]
    file.close()
