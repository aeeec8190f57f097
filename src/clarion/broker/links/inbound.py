"""What comes from one other broker: what is wanted of it, and how far it was taken."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from clarion.broker.engine import Engine, Now
from clarion.broker.engine.foreign_puts import ForeignPut, Took
from clarion.broker.links.meter import Meter
from clarion.broker.links.policy import MOST, is_among
from clarion.model.names import is_pattern, matches
from clarion.wire.link_bodies import Interest, InterestDone, LinkConfirm, LinkData, LinkPart

_NAMES_AT_ONCE = 500
_ASK_AGAIN_S = 1.0
_NOT_NOW_MS = 500
_SESSIONS = 1 << 40  # of one start of a broker
_GONE_AGAIN_S = 60.0  # before the log tells once more of messages that do not come
_GONE_TOPICS = 10  # of which it tells by name at one time
_MISSING_AGAIN_S = 0.5  # before the same missing batches are asked for once more
_MOST_MISSING = 10_000  # topics; those of others come again when their sender has waited for long


def first_session(start: bytes) -> int:
    """Return the number below the sessions of a start of a broker: they grow, and no clock tells them from others."""
    return int.from_bytes(start[:3], "big") * _SESSIONS


class Inbound:
    """One broker that something is wanted of."""

    def __init__(self, engine: Engine, broker: int, follow: Iterable[bytes] = ()) -> None:
        self._engine = engine
        self.broker = broker
        self._follow = frozenset(follow)
        self.offsets: dict[bytes, int] = {}  # of topics, from which on everything comes
        self.refused: dict[bytes, str] = {}
        self._patterns: set[bytes] = set()  # those among them
        self.messages = self.gone = self.kept_out = 0
        self._gone_of: dict[bytes, int] = {}  # by topic: messages that are gone, and that is not told yet
        self._gone_told_s = -inf
        self.way_back: tuple[int, ...] = (broker,)  # by which the last batches came
        self.meter = Meter()
        self._confirmed: dict[int, int] = {}
        self._again: dict[int, int] = {}
        self._missing: dict[int, tuple[int, float]] = {}  # by topic: since when, and when that was said
        self.begin(b"", (), b"")

    # Interest.

    def begin(self, epoch: bytes, wanted: Iterable[bytes], start: bytes) -> None:
        """Say anew all that is wanted, to the broker as it was started last."""
        self.start = start
        self._epoch = epoch
        self.session = 0
        self._number = 0
        self._to_say: dict[bytes, bool] = dict.fromkeys((*self._follow, *wanted), True)
        self._is_complete = False
        self._said: Interest | None = None
        self._said_s = 0.0
        self.is_confirmed = False  # all that is wanted, up to now

    def take_news(self, news: dict[bytes, bool]) -> None:
        """Take in what is wanted from now on, or no longer."""
        changed = {name: is_wanted for name, is_wanted in news.items() if name not in self._follow}
        if changed:
            self._to_say |= changed
            self.is_confirmed = False
            for name, is_wanted in changed.items():
                if not is_wanted:
                    self.offsets.pop(name, None)
                    self._patterns.discard(name)
                    self.refused.pop(name, None)

    def next_part(self, now: Now) -> Interest | None:
        """Return what is to be said now of what is wanted, if anything; again, where it was not answered."""
        if self._said is None and (self._to_say or not self._is_complete):
            names = sorted(self._to_say, key=self._to_say.__getitem__, reverse=True)[
                :_NAMES_AT_ONCE
            ]  # what is new first
            some = {name: self._to_say.pop(name) for name in names}
            self._number += 1
            complete = not self._is_complete and not self._to_say
            self._said = Interest(
                self._epoch, self._number,
                tuple((name, "earliest" if name in self._follow else "new") for name in names if some[name]),
                tuple(name for name in names if not some[name]), complete,
            )  # fmt: skip
            self._is_complete = self._is_complete or complete
        elif self._said is None or now.monotonic_s < self._said_s + _ASK_AGAIN_S:
            return None
        self._said_s = now.monotonic_s
        return self._said

    def take_done(self, done: InterestDone) -> bool:
        """Take in that something that is wanted is subscribed to; return whether all has to be said again."""
        if not done.epoch and not done.number:  # nothing of it is known there: this broker was forgotten
            return self._said is None and self._number > 0
        if done.epoch != self._epoch or self._said is None:
            return False
        if done.number == self._said.number:
            self.offsets |= dict(done.offsets)
            self._patterns.update(name for name, _ in done.offsets if is_pattern(name))
            self.refused = {name: text for name, text in self.refused.items() if name not in dict(done.offsets)}
            self.refused |= dict(done.refused)
            self._said = None
            self.is_confirmed = self._is_complete and not self._to_say
        return done.number == 0

    def confirmed_from(self, topic: bytes) -> int | None:
        """Return from which offset on a topic's messages come; -1 where that is not told, as of a pattern, and None
        where the broker has not confirmed that the topic is wanted."""
        if topic in self.offsets and topic not in self._patterns:
            return self.offsets[topic]
        return -1 if any(pattern == topic or matches(pattern, topic) for pattern in self._patterns) else None

    def is_answered(self, topic: bytes) -> bool:
        """Return whether the broker has said of a topic that it comes, or why it does not."""
        return topic in self.refused or self.confirmed_from(topic) is not None

    def next_deadline_s(self) -> float | None:
        """Return when there is something to say again."""
        if self._said is not None:
            return self._said_s + _ASK_AGAIN_S
        return 0.0 if self._to_say or not self._is_complete else None

    # What comes.

    def take(self, data: LinkData, part: LinkPart, blob: memoryview, store: bytes, now: Now) -> None:
        """Take batches, each once."""
        first = first_session(self.start)
        if not first <= part.session < first + _SESSIONS or part.session < self.session:
            return  # it was sent again since, or by a broker that was started again since
        if part.session > self.session:
            self.session = part.session
            self._missing.clear()
            self._again.clear()
        ends = [0]
        for batch in data.batches:
            ends.append(ends[-1] + batch[4])
        for place, since, is_start, gone in part.batches:
            topic, name, first_offset, count, size, ttl_ms = data.batches[place]
            raw = bytes(blob[ends[place] : ends[place] + size]) if size else None
            put = ForeignPut(
                self.broker, store, topic, name, since, first_offset, count, ttl_ms, is_start, raw,
                is_followed=bool(self._follow) and is_among(name, self._follow),
            )  # fmt: skip
            took = self._engine.foreign_puts.take(put, now)
            if took is Took.AGAIN:
                self._miss(topic, since, now)
            elif took is Took.NOT_NOW:
                self._again[topic] = _NOT_NOW_MS
            elif took is Took.DONE:
                self._missing.pop(topic, None)
                self.messages += count if raw is not None else 0
                self.kept_out += 0 if raw is not None else count
                self.gone = min(self.gone + gone, MOST)  # as it is told, it is a number that fits
                if gone:
                    told_as = name if name in self._gone_of or len(self._gone_of) < _GONE_TOPICS else b""
                    self._gone_of[told_as] = self._gone_of.get(told_as, 0) + gone

    def take_gone(self, now: Now) -> dict[bytes, int]:
        """Return what the log is to tell of now: topics, and how many messages of them do not come; b"" are others."""
        if not self._gone_of or now.monotonic_s < self._gone_told_s + _GONE_AGAIN_S:
            return {}
        gone, self._gone_of = self._gone_of, {}
        self._gone_told_s = now.monotonic_s
        return gone

    def _miss(self, topic: int, since: int, now: Now) -> None:
        """Ask for what is missing, once: what was under way behind it is missing, too."""
        told = self._missing.get(topic)
        if told is None and len(self._missing) >= _MOST_MISSING:
            return
        if told is None or now.monotonic_s >= told[1] + _MISSING_AGAIN_S:
            self._missing[topic] = (since, now.monotonic_s)
            self._again.setdefault(topic, 0)

    def on_disk(self, topic: int, position: int) -> None:
        """Take in that all up to a position is."""
        self._confirmed[topic] = max(position, self._confirmed.get(topic, 0))

    def take_confirm(self) -> LinkConfirm | None:
        """Return what the broker is to be told, if anything."""
        if not self._confirmed and not self._again:
            return None
        confirm = LinkConfirm(self.session, tuple(self._confirmed.items()), tuple(self._again.items()))
        self._confirmed, self._again = {}, {}
        return confirm
