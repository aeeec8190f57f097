"""The thread that saves what is noted of where batches went, and packs it. The loop goes on meanwhile; only a commit
after which the log could not tell any more waits until what was noted before is saved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from clarion.broker.engine import Now
from clarion.broker.engine.tracks import Tracks
from clarion.model.errors import BadSettings, ClarionError, StoreFull, StoreUnavailable
from clarion.model.ids import MessageId
from clarion.store.folder import sync_folder
from clarion.tracking.paths import Held, time_text
from clarion.tracking.tracker import Claim, Tracker, Unsaved, merge_claims

if TYPE_CHECKING:
    from clarion.broker.settings import BrokerSettings
    from clarion.tracking.history_file import HistoryFile

log = logging.getLogger("clarion.broker")
FILE = "histories.sqlite"
_OFF = "histories.off"  # beside them: nothing was tracked for a while since
_MOST_UNSAVED = 2 * 2**20  # notes, 24 bytes each; more may wait for a moment, and then the disk is given up
_CROWDED_S = 5.0
_RETAIN_EVERY_S = 60.0
_FAILING_S = 5.0  # for which saves may fail before nobody waits for them any more
_AGAIN_S = 1.0  # after a save that failed
_LOOK_FOR_WORK_S = 1.0
_LOOK_EVERY_S, _LOOK_SOON_S = 0.02, 0.002  # while something is being saved, and while a commit waits for that
_AWAITED_S = 0.05
_GIVEN_UP = "Nothing is tracked any more until the broker is started again; messages are safe"

_Work = Literal["save", "pack", "retain"]
_LATER: dict[_Work, str] = {
    "save": "What is noted waits",
    "pack": "Histories are packed later",
    "retain": "What is too old, or too much, is dropped later",
}
_OVER: dict[_Work, str] = {
    "save": "histories are saved again, with all that was noted meanwhile",
    "pack": "histories are packed again",
    "retain": "what is too old, or too much, is dropped again",
}


def open_histories(settings: BrokerSettings, broker: int, *, now_us: int) -> HistoryFile | None:
    """Open the histories of a broker; None where nothing is tracked."""
    folder = Path(settings.data)
    if settings.tracking == "none":
        if (folder / FILE).exists():
            _mark_off(folder)
            log.info("where messages go is not noted any more (tracking = none); what was noted before stays")
        return None
    accuracy = settings.accuracy()  # which needs NumPy, and says so where it is missing
    from clarion.tracking.history_file import HistoryFile, HistorySettings

    kept = HistorySettings(
        "log" if settings.tracking == "log" else "bloom",
        accuracy,
        max_age_s=settings.tracking_max_age_s or None,
        max_bytes=settings.tracking_max_bytes or None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = HistoryFile(folder / FILE, kept, now_us=now_us, broker=broker)
        try:
            _keep_gap(file, folder / _OFF, now_us)
        except BaseException:
            file.close()
            raise
    except (StoreFull, StoreUnavailable) as error:  # messages are not to wait for that
        _mark_off(folder)
        log.critical("%s. %s", error, _GIVEN_UP)
        return None
    return file


def _keep_gap(file: HistoryFile, mark: Path, now_us: int) -> None:
    """Have the histories tell that nothing was tracked until now, where there is a mark of that."""
    if not mark.exists():
        return
    file.add_gap(until_us=now_us)
    try:
        mark.unlink()
    except OSError as error:
        raise BadSettings(
            f"{mark} cannot be removed ({error.strerror}). It says that nothing was tracked, which the histories do by"
            " now: remove it, and start the broker again"
        ) from error


def _mark_off(folder: Path) -> bool:
    """Have it on disk that nothing is tracked from now on; return whether it is."""
    try:
        (folder / _OFF).touch()
        sync_folder(folder)
    except OSError as error:
        log.warning("%s. Histories will not tell that nothing was tracked for a while", error)
        return False
    return True


def _unmark(folder: Path) -> None:
    """Have it on disk that everything is tracked again, and nothing is missing."""
    try:
        (folder / _OFF).unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        log.warning("%s. Histories will tell at the next start that nothing was tracked for a while", error)


class HistoryWriter:
    """Saves what the engine's notes have, every few seconds."""

    def __init__(self, file: HistoryFile, tracks: Tracks, save_every_s: float, now: Now) -> None:
        self.file = file
        self._tracks = tracks
        self._every_s = save_every_s
        self._now = now  # as the loop saw it last
        self._save_at_s = self._look_at_s = 0.0
        self._failures = 0  # of saves
        self._failing_since_s = inf
        self._crowded_since_s = inf
        self._is_released = self._is_marked = False  # as saves have failed for long
        self._awaited: tuple[int, int] | None = None  # the last ticket
        self._troubles: dict[_Work, str] = {}  # what fails, and why
        self._is_saving = False
        self._orders: SimpleQueue[Unsaved | None] = SimpleQueue()  # what the thread is to save; None: it is to end
        self._outcomes: SimpleQueue[tuple[_Work, Exception | None]] = SimpleQueue()  # of what the thread did
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

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return the times in which nothing was tracked."""
        lately = ((self.file.saved_us, self._now.unix_us),) if self._tracks.tracker is None else ()
        return self.file.gaps() + lately

    def stats(self) -> dict[str, object]:
        """Return what operators look at."""
        tracker = self._tracks.tracker
        return {
            "tracking": "given up" if tracker is None else self.strategy,
            "histories_unsaved": 0 if tracker is None else len(tracker),
            "histories_save_failures": self._failures,
            "histories_bytes": sum(
                path.stat().st_size
                for path in (self.file.file, self.file.file.with_name(f"{FILE}-wal"))
                if path.exists()
            ),
        }

    def ticket(self) -> tuple[int, int]:
        """Have what is noted now saved at once; `is_saved` tells when that is done."""
        self._awaited = ticket = (self._tracks.round, self._failures)
        self._turn(self._now.monotonic_s)
        return ticket

    def is_saved(self, ticket: tuple[int, int]) -> bool:
        """Return whether what was noted then is saved, or cannot be."""
        noted, failures = ticket
        return self._tracks.is_saved(noted) or self._failures != failures

    @property
    def _is_urgent(self) -> bool:
        """Whether a commit waits until what was noted before is saved."""
        return self._awaited is not None and not self.is_saved(self._awaited)

    def turn(self, now: Now, *, is_awaited: bool = False) -> None:
        """Take in what was saved, and have saved what is due; soon where it is awaited."""
        self._now = now
        if is_awaited:
            if not self._is_failing:
                self._save_at_s = min(self._save_at_s, now.monotonic_s + _AWAITED_S)
        elif now.monotonic_s < self._look_at_s and self._outcomes.empty():
            return
        self._turn(now.monotonic_s)
        self._look_at_s = min(now.monotonic_s + _LOOK_EVERY_S, self.next_deadline_s(now.monotonic_s))

    @property
    def _is_failing(self) -> bool:
        return self._failing_since_s < inf

    def _turn(self, now_s: float) -> None:
        self._hear(now_s)
        self._look_how_much_waits(now_s)
        if self._tracks.tracker is None:
            return
        if now_s - self._failing_since_s >= _FAILING_S:
            self._release()
        if self._is_urgent and not self._is_failing:
            self._save_at_s = min(self._save_at_s, now_s)
        if now_s >= self._save_at_s and not self._is_saving:
            self._save_at_s = now_s + self._every_s
            unsaved = self._tracks.take()
            if unsaved is not None:
                self._is_saving = True
                self._orders.put(unsaved)

    def _look_how_much_waits(self, now_s: float) -> None:
        """Have it saved at once if it is very much, and give up if it stays so."""
        tracker = self._tracks.tracker
        if tracker is None or tracker.waiting < _MOST_UNSAVED:
            if not self._is_saving:  # else it may come back
                self._crowded_since_s = inf
            return
        self._crowded_since_s = min(self._crowded_since_s, now_s)
        if now_s - self._crowded_since_s < _CROWDED_S:
            if not self._is_failing:
                self._save_at_s = min(self._save_at_s, now_s)
        elif why := self._troubles.get("save"):
            self._give_up(f"{why}. What is noted meanwhile has come to more than is kept in memory")
        else:
            self._give_up("what is noted of where messages went cannot be saved as fast as it comes")

    def _hear(self, now_s: float) -> None:
        """Take in what the thread did; after tracking was given up that changes nothing."""
        while not self._outcomes.empty():
            what, error = self._outcomes.get()
            if what == "save":
                self._is_saving = False
            if self._tracks.tracker is None:
                continue
            if error is not None:
                if what == "save":
                    self._save_failed(now_s)
                self._told(what, error)
                continue
            if what == "save":
                self._saved()
            if self._troubles.pop(what, ""):
                log.info("%s", _OVER[what])

    def _saved(self) -> None:
        self._tracks.saved()
        self._failing_since_s = inf
        self._is_released = False
        if self._is_marked:
            self._is_marked = False
            _unmark(self.file.file.parent)

    def _save_failed(self, now_s: float) -> None:
        self._tracks.failed()
        self._failures += 1
        self._failing_since_s = min(self._failing_since_s, now_s)
        self._save_at_s = now_s + _AGAIN_S

    def _release(self) -> None:
        """Have nobody wait any more for what cannot be saved, and the next start know it, should there be one before
        that could be saved."""
        if not self._is_released:
            self._is_released = True
            self._is_marked = _mark_off(self.file.file.parent)
            log.warning(
                "histories could not be saved for %g s: messages over links and ends of subscriptions wait for that no"
                " longer. What is noted is kept, and saved when that is possible",
                _FAILING_S,
            )
        self._tracks.release()

    def _told(self, what: _Work, error: Exception) -> None:
        """Tell of an error that may pass, once; give up after any other."""
        if not isinstance(error, StoreFull | StoreUnavailable):
            self._give_up(str(error) if isinstance(error, ClarionError) else f"histories failed: {error!r}")
        elif what not in self._troubles:
            self._troubles[what] = str(error)
            log.warning("%s. %s", error, _LATER[what])

    def _give_up(self, why: str) -> None:
        if self._tracks.tracker is None:
            return
        self._tracks.give_up()
        _mark_off(self.file.file.parent)
        log.critical("%s. %s", why, _GIVEN_UP)

    def next_deadline_s(self, now_s: float) -> float:
        """Return when `turn` has something to do."""
        if self._tracks.tracker is None:
            return inf
        if not self._is_saving:
            return self._save_at_s
        return now_s + (_LOOK_SOON_S if self._is_urgent else _LOOK_EVERY_S)

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
        self._orders.put(None)
        self._thread.join()
        self._hear(self._now.monotonic_s)
        try:
            unsaved = self._tracks.take()
            if unsaved is not None:
                self.file.save(unsaved, now_us=self._now.unix_us)
                self._saved()
        except ClarionError as error:
            log.warning("%s. What is missing is noted again from the log at the next start", error)
        self.file.close()

    # The thread.

    def _run(self) -> None:
        retain_at_s = pack_at_s = 0.0
        while True:
            with suppress(Empty):
                unsaved = self._orders.get(timeout=_LOOK_FOR_WORK_S)
                if unsaved is None:
                    return
                self._do("save", partial(self.file.save, unsaved, now_us=self._now.unix_us))
            now = self._now
            if now.monotonic_s >= retain_at_s and not self._closed:
                retain_at_s = now.monotonic_s + _RETAIN_EVERY_S
                self._do("retain", partial(self._retain, now.old_before_us(0.0)))
            if now.monotonic_s >= pack_at_s and self._may_pack(now):
                is_packed = self._do("pack", partial(self.file.pack, now_us=now.unix_us))
                pack_at_s = 0.0 if is_packed else retain_at_s  # when there may be room again

    def _may_pack(self, now: Now) -> bool:
        return self._tracks.tracker is not None and not self._closed and self.file.is_pack_due(now.unix_us)

    def _retain(self, now_us: int) -> None:
        retained = self.file.retain(now_us=now_us)
        if retained.dropped:
            log.info(
                "%d packings of histories were too old, or too many, and are dropped; all is kept since %s",
                retained.dropped,
                datetime.fromtimestamp(retained.begins_us / 1e6, UTC).isoformat(timespec="milliseconds"),
            )

    def _do(self, what: _Work, work: Callable[[], object]) -> bool:
        """Do something, and have the loop hear what came of it; return whether it was done."""
        failed: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop hears of it, and messages go on
            failed = error
        self._outcomes.put((what, failed))
        return failed is None


def begin_tracks(file: HistoryFile, tracks: Tracks, now: Now) -> None:
    """Have noted again what the saved notes do not have. Where they are of a time before, what is missing is a gap."""
    after_gap = any(until_us == now.unix_us for _, until_us in file.gaps())
    if tracks.begin(file.received(), file.published_us, now, after_gap=after_gap).is_behind:
        log.warning(
            "histories in %s do not have all that was noted before the messages beside them: paths say that nothing was"
            " tracked between the last save and now",
            file.file,
        )
        try:
            file.add_gap(until_us=now.unix_us)
        except (StoreFull, StoreUnavailable) as error:
            tracks.give_up()
            _mark_off(file.file.parent)
            log.critical("%s. %s", error, _GIVEN_UP)
    since = time_text(file.begins_us / 1e6)
    log.info("where messages go is noted (tracking = %s); histories begin at %s", file.settings.strategy, since)
    unsaved = tracks.take()
    if unsaved is not None:  # before anything is acked: what is noted of it rests on these positions
        try:
            file.save(unsaved, now_us=now.unix_us)
            tracks.saved()
        except (StoreFull, StoreUnavailable) as error:
            log.warning("%s. What is noted waits", error)
            tracks.failed()


def new_tracker(file: HistoryFile | None) -> Tracker | None:
    """Return what notes for these histories."""
    return None if file is None else Tracker(file.names())
