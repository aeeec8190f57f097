"""How long things stay: bounds by age and size, messages and subscriptions that expire, topics that are for a time."""

from __future__ import annotations

from clarion.broker.engine.capacity import below_size, bound_bytes
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import State
from clarion.broker.engine.subscriptions import Subscriptions
from clarion.broker.engine.topic_log import UNREAD, batches_of, count_unread, has_expired, trim
from clarion.broker.engine.topics import Subscription, Topic
from clarion.broker.engine.tracks import Tracks
from clarion.model.options import PLAIN_SETTINGS, TRIM, unpack_options, unpack_settings
from clarion.store.port import UNTIL_READ, SubscriptionRow, TopicRow, TopicSummary

_SWEEP_EVERY_S = 1.0
_TOPICS_A_SWEEP = 100
_SUBSCRIPTIONS_A_SWEEP = 2000
_HEADS_A_SWEEP = 5  # first batches read from the store to see whether they have expired
_HEAD_BYTES = 2**20
_HEAD_BATCHES = 1000
_TRIMMED_AT_ONCE = 100  # topics that were read, or more, so that all of many have their turn …
_TURNS_TO_TRIM = 20  # … within so many rounds, without any other commit; all at once where the disk has little room
_UNUSED_S = 60.0  # for which a topic that is for a time may be without subscriptions at its beginning


class Retention:
    """Decides what goes, of topics in memory at once, and of all others in a slow round."""

    def __init__(self, state: State, subscriptions: Subscriptions, tracks: Tracks) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._tracks = tracks
        self._sweep_at_s = 0.0
        self._after = self._heads_after = b""
        self._page = _TOPICS_A_SWEEP
        self._first_round = True
        self._started_us: int | None = None
        self._to_trim: list[Topic] = []  # of a round: of very many topics, each lets go of more at a time
        self._round_s = 0.0  # when the round began …
        self._round = 0  # … and with how many topics

    def trim_read(self, now: Now) -> None:
        """Forget messages that every subscriber has read (the stale message removal of the reliable service)."""
        state = self._state
        if not self._to_trim:
            self._to_trim, state.read_topics = list(state.read_topics), set()
            self._round_s, self._round = now.monotonic_s, len(self._to_trim)
        a_turn = max(_TRIMMED_AT_ONCE, self._round // _TURNS_TO_TRIM)
        self._trim_some(a_turn if state.has_room(state.limits.disk_reserve_bytes) else len(self._to_trim), now)

    def trim_along(self, now: Now) -> None:
        """Do the same with a commit that is made anyway, for so many topics that the round ends in time: what the index
        has not seen before it is gone never costs it a row."""
        if self._to_trim:
            part = (now.monotonic_s - self._round_s) / self._state.limits.stale_msg_interval_s
            due = int(part * self._round) - (self._round - len(self._to_trim))
            self._trim_some(min(due, _TRIMMED_AT_ONCE), now)

    def _trim_some(self, most: int, now: Now) -> None:
        topics, to_trim = self._state.topics, self._to_trim
        for _ in range(min(most, len(to_trim))):
            topic = to_trim.pop()
            if topics.get(topic.name) is topic:  # else it left memory meanwhile, and is found when it is back
                self.trim(topic, now)

    def forget_all(self) -> list[bytes]:
        """Return the names of topics that have something to let go of, and forget them."""
        topics, self._to_trim = self._to_trim, []
        return [topic.name for topic in topics]

    def trim(self, topic: Topic, now: Now) -> None:
        """Forget messages of a topic that nobody needs any more, or that are beyond its bounds."""
        if topic.deleted:
            return
        if topic.settings is PLAIN_SETTINGS and topic.retention == UNTIL_READ:
            trim(self._state, topic, self._tracks.floor(topic, topic.slowest_cursor()))
            return
        live, bound = topic.slowest_cursor(), bound_bytes(topic, self._state.limits)
        below = self._below_age(topic, now)
        if 0 < bound < topic.stored_bytes:
            below = max(below, below_size(self._state, topic, bound))
        if topic.settings.at_bound != TRIM:
            below = min(below, live)
        if topic.retention == UNTIL_READ:
            below = max(below, live)
        trim(self._state, topic, below if topic.settings.at_bound == TRIM else self._tracks.floor(topic, below))

    def _below_age(self, topic: Topic, now: Now) -> int:
        if not topic.settings.max_age_s or not topic.stored_bytes:
            return 0
        found = self._state.store.offset_at(topic.number, now.old_before_us(topic.settings.max_age_s))
        return topic.visible_end if found is None else found

    # The round over all topics.

    def next_deadline_s(self) -> float:
        """Return when `sweep` has something to do."""
        return self._sweep_at_s

    def sweep(self, now: Now) -> None:
        """Look at some topics, in memory or not, for what time has done to them."""
        if now.monotonic_s < self._sweep_at_s:
            return
        self._sweep_at_s = now.monotonic_s + _SWEEP_EVERY_S
        if self._started_us is None:
            self._started_us = now.unix_us
        page = self._state.store.topics(self._after, self._page, fresh=False)  # what is due is looked at again
        for summary in page:
            self._look(summary, now)
        whole = len(page) == self._page
        self._after = page[-1].topic.name if whole else b""
        self._first_round = self._first_round and whole
        # A page is a number of topics, but its cost is in their subscriptions.
        met = sum(len(summary.subscriptions) for summary in page)
        self._page = max(1, min(_TOPICS_A_SWEEP, self._page * _SUBSCRIPTIONS_A_SWEEP // max(1, met)))
        self._look_at_heads(now)

    def _look(self, summary: TopicSummary, now: Now) -> None:
        row, subscriptions = summary
        topic = self._state.topics.get(row.name)
        if topic is None:
            if not self._is_due(row, subscriptions, now):
                return
            topic = self._state.find_topic(row.name, now.monotonic_s)
        if topic is None or topic.deleted:
            return
        for subscription in [sub for sub in topic.subscriptions.values() if self._has_expired(topic, sub, now)]:
            self._subscriptions.end(topic, subscription, "the subscription was not used for as long as it may be", now)
            self._state.counters["subscriptions_expired"] += 1
        if now.monotonic_s - topic.touched_s > _UNUSED_S:
            self._subscriptions.leave(topic, now)
        if topic.settings.ttl_s:
            self._skip_expired(topic, now)
        self.trim(topic, now)

    def _is_due(self, row: TopicRow, subscriptions: list[SubscriptionRow], now: Now) -> bool:
        """Return whether something may be done about a topic that is not in memory."""
        settings = unpack_settings(row.settings)
        if settings.temporary and not subscriptions:
            return True
        for sub in subscriptions:
            expires_s = unpack_options(sub.options).expires_s
            if sub.name in self._state.sessions:  # whose use of a quiet topic nobody notes but `_has_expired`, in time
                expires_s /= 4
            if self._is_overdue(sub.seen_at_us, expires_s, now):
                return True
        if not row.stored_bytes:
            return False
        live = min((sub.cursor for sub in subscriptions), default=row.next_offset)
        if self._first_round and row.retention == UNTIL_READ and live > row.first_offset:
            return True  # a crash kept it from being trimmed
        if 0 < settings.max_bytes < row.stored_bytes:
            return True
        ages_s = [age_s for age_s in (settings.max_age_s, settings.ttl_s) if age_s]
        return (
            bool(ages_s) and self._state.store.offset_at(row.number, now.old_before_us(min(ages_s))) != row.first_offset
        )

    def _has_expired(self, topic: Topic, subscription: Subscription, now: Now) -> bool:
        expires_s = subscription.options.expires_s
        if expires_s and any(session.name == subscription.name for session in self._state.sessions_of(topic)):
            self._subscriptions.note_use(topic, subscription, now)  # by who fetches from many topics, this among them
            return False
        if not self._is_overdue(subscription.seen_at_us, expires_s, now):
            return False
        if subscription.leases is not None and subscription.leases.consumers:
            return False
        return not any(get.body.name == subscription.name for get in topic.waiting.values())

    def _is_overdue(self, seen_at_us: int, expires_s: float, now: Now) -> bool:
        """Use is noted each quarter of the time to expire, and not while the broker does not run."""
        last_us = max(seen_at_us, self._started_us or 0)
        return expires_s > 0 and last_us < now.silent_before_us(1.25 * expires_s)

    # Messages that have expired at the beginning of a topic, where nobody reads them.

    def _look_at_heads(self, now: Now) -> None:
        state = self._state
        page = state.store.topics(self._heads_after, _TOPICS_A_SWEEP, fresh=False)
        stored = [row for row, _ in page if row.stored_bytes]
        for row in stored[:_HEADS_A_SWEEP]:
            topic = state.topics.get(row.name)
            if topic is None and self._head_has_expired(row, now):
                topic = state.find_topic(row.name, now.monotonic_s)
            if topic is not None and not topic.deleted:
                self._skip_expired(topic, now)
        if len(stored) > _HEADS_A_SWEEP:
            self._heads_after = stored[_HEADS_A_SWEEP - 1].name
        else:
            self._heads_after = page[-1].topic.name if len(page) == _TOPICS_A_SWEEP else b""

    def _head_has_expired(self, row: TopicRow, now: Now) -> bool:
        try:
            found = self._state.store.batches(row.number, row.first_offset, 1, 1)
        except UNREAD:
            return False
        return bool(found) and has_expired(found[0], now)

    def _skip_expired(self, topic: Topic, now: Now) -> None:
        """Have every subscription pass by expired messages at the beginning of a topic, and let go of them.

        What was trimmed before them is not passed by: whoever has not read it is still told of that gap."""
        start = stop = topic.first_offset
        try:
            batches = batches_of(self._state, topic, start, topic.visible_end, _HEAD_BYTES)
            for batch, _ in zip(batches, range(_HEAD_BATCHES), strict=False):
                if not has_expired(batch, now):
                    break
                stop = batch.first_offset + batch.count
        except UNREAD as error:
            count_unread(self._state, error)
        if stop == start:
            return
        self._state.counters["messages_expired"] += stop - start
        for subscription in topic.subscriptions.values():
            if subscription.acked.cursor < stop:
                self._subscriptions.skip(topic, subscription, max(start, subscription.acked.cursor), stop)
        trim(self._state, topic, stop)
