"""What the broker does on its own from time to time: let go of what was read, unload, expire."""

from __future__ import annotations

from clarion.broker.engine.keep.retention import Retention
from clarion.broker.engine.publish.delaying import Delaying
from clarion.broker.engine.publish.putting import Putting
from clarion.broker.engine.publish.staging import Staging
from clarion.broker.engine.share.sharing import Sharing
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.subscribe.getting import Getting
from clarion.broker.engine.subscribe.patterns import Patterns

_PUBLISHERS_AT_ONCE = 1000
_PUBLISHERS_EVERY_S = 60.0
_DISK_EVERY_S = 1.0
_CROWDED_S = 0.1


class Housekeeping:
    """The reliable-service document's periodic jobs, on the loop's clock."""

    def __init__(
        self,
        state: State,
        getting: Getting,
        sharing: Sharing,
        putting: Putting,
        delaying: Delaying,
        staging: Staging,
        patterns: Patterns,
        retention: Retention,
    ) -> None:
        self._state = state
        self._getting = getting
        self._sharing = sharing
        self._putting = putting
        self._delaying = delaying
        self._staging = staging
        self._patterns = patterns
        self._retention = retention
        self._trim_at_s = self._publishers_at_s = self._disk_at_s = 0.0
        self._unloaded_at_s = 0.0
        self._commits_seen = -1
        self._store_waits = False

    def tick(self, now: Now) -> None:
        """Do what is due."""
        now_s = now.monotonic_s
        self._getting.expire(now_s)
        self._sharing.tick(now)
        self._delaying.tick(now)
        self._patterns.tick(now)
        if now_s >= self._disk_at_s:
            self._disk_at_s = now_s + _DISK_EVERY_S
            self._look_at_disk()
        if now_s >= self._trim_at_s:
            self._trim_at_s = now_s + self._state.limits.stale_msg_interval_s
            self._trim(now)
        self._retention.sweep(now)
        if now_s >= self._next_unload_s():
            self._unloaded_at_s = now_s
            self._unload()
        if now_s >= self._publishers_at_s:
            self._publishers_at_s = now_s + _PUBLISHERS_EVERY_S
            self._expire_publishers(now)
            self._staging.expire(now)

    def next_deadline_s(self) -> float:
        """Give when `tick` has something to do again."""
        own = min(self._trim_at_s, self._next_unload_s(), self._disk_at_s, self._retention.next_deadline_s())
        for part in (self._getting, self._sharing, self._delaying, self._patterns):
            deadline_s = part.next_deadline_s()
            own = own if deadline_s is None else min(own, deadline_s)
        return own

    def take_chore(self) -> bool:
        """Tell, once, that the store should look after itself: it had no commit to do it with, or has little room."""
        waits, self._store_waits = self._store_waits, False
        return waits

    def _look_at_disk(self) -> None:
        state = self._state
        state.free_bytes = state.store.free_bytes()
        idle, self._commits_seen = state.counters["commits"] == self._commits_seen, state.counters["commits"]
        self._store_waits = idle or state.free_bytes < 2 * state.limits.disk_reserve_bytes

    def _next_unload_s(self) -> float:
        """The limit is soft, but twice the limit is not waited for."""
        limits = self._state.limits
        crowded = len(self._state.topics) > 2 * limits.max_topics_in_memory
        interval_s = min(_CROWDED_S, limits.topic_unload_interval_s) if crowded else limits.topic_unload_interval_s
        return self._unloaded_at_s + interval_s

    def _trim(self, now: Now) -> None:
        """Forget messages that every subscriber has read (the document's stale message removal)."""
        topics, self._state.read_topics = self._state.read_topics, set()
        for topic in topics:
            self._retention.trim(topic, now)

    def _unload(self) -> None:
        """Drop the coldest topics from memory beyond the limit (the document's topic unloader)."""
        state = self._state
        excess = len(state.topics) - state.limits.max_topics_in_memory
        if excess <= 0:
            return
        idle = [
            topic
            for topic in state.topics.values()
            if not topic.uncommitted
            and not topic.waiting
            and not topic.lent()
            and topic not in state.read_topics  # its trim comes first
        ]
        idle.sort(key=lambda topic: topic.touched_s)
        for topic in idle[:excess]:
            state.unload(topic)

    def _expire_publishers(self, now: Now) -> None:
        """Forget publishers that were silent for so long that they are taken for gone."""
        before_us = now.silent_before_us(self._state.limits.publisher_expiry_s)
        for publisher in self._state.store.silent_publishers(before_us, _PUBLISHERS_AT_ONCE):
            if not any(group and publisher in group.changes.publishers for group in self._state.groups()):
                self._putting.drop_publisher(publisher)
                self._state.counters["publishers_expired"] += 1
