"""The thread that saves what is noted of where batches went, and packs it; the loop never waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from clarion.broker.engine import Now
from clarion.broker.engine.tracks import Tracks
from clarion.model.errors import BadSettings, ClarionError, StoreFull
from clarion.model.ids import MessageId
from clarion.tracking.paths import Held
from clarion.tracking.tracker import Claim, Tracker, Unsaved, merge_claims

if TYPE_CHECKING:
    from clarion.broker.settings import BrokerSettings
    from clarion.tracking.history_file import HistoryFile

log = logging.getLogger("clarion.broker")
FILE = "histories.sqlite"
_MOST_UNSAVED = 2 * 2**20  # notes, 24 bytes each, after which the disk is given up
_RETAINED_EVERY_S = 60.0
_LOOK_EVERY_S = 0.02  # while something is being saved
_AWAITED_S = 0.05


def open_histories(settings: BrokerSettings, broker: int, *, now_us: int) -> HistoryFile | None:
    """Open the histories of a broker; None where nothing is tracked."""
    if settings.tracking == "none":
        return None
    try:
        from clarion.tracking.accuracy import Accuracy
        from clarion.tracking.history_file import HistoryFile, HistorySettings
    except ImportError:
        raise BadSettings('tracking needs NumPy: pip install "clarion[tracking]", or set tracking = "none"') from None
    try:
        accuracy = (
            Accuracy()
            if settings.tracking == "log"
            else Accuracy(
                efpp=settings.tracking_efpp,
                skew_s=settings.tracking_skew_s,
                persist_s=settings.tracking_persist_s,
                peak_per_s=settings.tracking_peak_per_s,
            )
        )
    except ValueError as error:
        raise BadSettings(f"tracking: {error}") from None
    kept = HistorySettings(
        "log" if settings.tracking == "log" else "bloom",
        accuracy,
        max_age_s=settings.tracking_max_age_s or None,
        max_bytes=settings.tracking_max_bytes or None,
    )
    folder = Path(settings.data)
    folder.mkdir(parents=True, exist_ok=True)
    return HistoryFile(folder / FILE, kept, now_us=now_us, broker=broker)


class HistoryWriter:
    """Saves what the engine's notes have, every few seconds."""

    def __init__(self, file: HistoryFile, tracks: Tracks, save_every_s: float, now_us: Callable[[], int]) -> None:
        self.file = file
        self._tracks = tracks
        self._every_s = save_every_s
        self._now_us = now_us
        self._save_at_s = 0.0
        self._unsaved: Unsaved | None = None  # what the thread is to save
        self._outcome: ClarionError | bool | None = None
        self._wakes = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="clarion-histories", daemon=True)
        self._thread.start()

    @property
    def begins_us(self) -> int:
        """When the histories begin."""
        return self.file.begins_us

    @property
    def strategy(self) -> str:
        """How histories are kept."""
        return self.file.settings.strategy

    def turn(self, now_s: float, *, is_awaited: bool = False) -> None:
        """Take in what was saved, and have saved what is due; soon where it is awaited."""
        if is_awaited:
            self._save_at_s = min(self._save_at_s, now_s + _AWAITED_S)
        outcome, self._outcome = self._outcome, None
        if outcome is True:
            self._tracks.saved()
        elif outcome is not None:
            self._fail(outcome)
        if now_s >= self._save_at_s and self._unsaved is None:
            self._save_at_s = now_s + self._every_s
            unsaved = self._tracks.take()
            if unsaved is not None:
                self._unsaved = unsaved
                self._wakes.set()

    def _fail(self, error: ClarionError | bool) -> None:
        tracker = self._tracks.tracker
        if tracker is None:
            return
        self._tracks.failed()
        if isinstance(error, StoreFull) and len(tracker) < _MOST_UNSAVED:
            log.warning("%s. What is noted waits", error)
            return
        self._tracks.give_up()
        log.critical("%s. Nothing is tracked any more until the broker is started again; messages are safe", error)

    def next_deadline_s(self, now_s: float) -> float:
        """Return when `turn` has something to do."""
        if self._tracks.tracker is None:
            return inf
        return now_s + _LOOK_EVERY_S if self._unsaved is not None else self._save_at_s

    def seen(self, key: tuple[int, int]) -> list[Claim]:
        """Return what the histories claim of a batch."""
        tracker = self._tracks.tracker
        return merge_claims([*(tracker.seen(key) if tracker is not None else ()), *self.file.seen(key)])

    def held(self, message: MessageId, claims: Sequence[Claim], now: Now) -> tuple[Held, ...]:
        """Return where in the log a message is, as its topics are claimed, and who is still to get it."""
        return tuple(self._tracks.held(message, claims, now))

    def strangers(self, claims: Sequence[Claim]) -> tuple[bytes, ...]:
        """Return subscribers of whom a filter claims a batch, and who never subscribed to a topic that may have it."""
        topics = [claim.history.name for claim in claims if claim.history.kind == "topic"]
        named = {claim.history.name for claim in claims if claim.history.kind == "subscriber" and claim.efpp}
        if not topics or not named:
            return ()
        tracker = self._tracks.tracker
        for topic in topics:
            named -= self.file.subscribers_of(topic)
            named -= tracker.subscribers_of(topic) if tracker is not None else set()
        return tuple(sorted(named))

    def close(self) -> None:
        """Save the rest, and end."""
        self._closed = True
        self._wakes.set()
        self._thread.join()
        if self._outcome is True:
            self._tracks.saved()
        try:
            unsaved = self._tracks.take()
            if unsaved is not None:
                self.file.save(unsaved, now_us=self._now_us())
        except ClarionError as error:
            log.warning("%s. What is missing is noted again from the log at the next start", error)
        self.file.close()

    # The thread.

    def _run(self) -> None:
        retained_us = 0
        while True:
            self._wakes.wait(1.0)
            self._wakes.clear()
            unsaved = self._unsaved
            try:
                if unsaved is not None:
                    self.file.save(unsaved, now_us=self._now_us())
                    self._outcome, self._unsaved = True, None
                if self._closed:
                    return
                now_us = self._now_us()
                if self.file.is_pack_due(now_us):
                    self.file.pack(now_us=now_us)
                if now_us - retained_us > _RETAINED_EVERY_S * 1e6:
                    retained_us = now_us
                    self.file.retain(now_us=now_us)
            except ClarionError as error:
                if unsaved is not None and self._unsaved is unsaved:
                    self._outcome, self._unsaved = error, None
                else:
                    log.warning("%s. Histories are packed later", error)
            if self._closed:
                return


def new_tracker(file: HistoryFile | None) -> Tracker | None:
    """Return what notes for these histories."""
    return None if file is None else Tracker(file.names())
