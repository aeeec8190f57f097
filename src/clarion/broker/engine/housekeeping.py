"""What the broker does on its own from time to time: let go of what was read, unload, expire."""

from __future__ import annotations

from clarion.broker.engine.getting import Getting
from clarion.broker.engine.putting import Putting
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.topics import Topic
from clarion.store.port import UNTIL_READ, Trim

_PUBLISHERS_AT_ONCE = 1000
_PUBLISHERS_EVERY_S = 60.0
_DISK_EVERY_S = 1.0
_CROWDED_S = 0.1


class Housekeeping:
    """The reliable-service document's periodic jobs, on the loop's clock."""

    def __init__(self, state: State, getting: Getting, putting: Putting) -> None:
        self._state = state
        self._getting = getting
        self._putting = putting
        self._trim_at_s = self._publishers_at_s = self._disk_at_s = 0.0
        self._unloaded_at_s = 0.0

    def tick(self, now: Now) -> None:
        """Do what is due."""
        now_s = now.monotonic_s
        limits = self._state.limits
        self._getting.expire(now_s)
        if now_s >= self._disk_at_s:
            self._disk_at_s = now_s + _DISK_EVERY_S
            self._state.free_bytes = self._state.store.free_bytes()
        if now_s >= self._trim_at_s:
            self._trim_at_s = now_s + limits.stale_msg_interval_s
            self._trim()
        if now_s >= self._next_unload_s():
            self._unloaded_at_s = now_s
            self._unload()
        if now_s >= self._publishers_at_s:
            self._publishers_at_s = now_s + _PUBLISHERS_EVERY_S
            self._expire_publishers(now)

    def next_deadline_s(self) -> float:
        """Give when `tick` has something to do again."""
        own = min(self._trim_at_s, self._next_unload_s(), self._disk_at_s)
        waiting = self._getting.next_deadline_s()
        return own if waiting is None else min(own, waiting)

    def _next_unload_s(self) -> float:
        """The limit is soft, but twice the limit is not waited for."""
        limits = self._state.limits
        crowded = len(self._state.topics) > 2 * limits.max_topics_in_memory
        interval_s = min(_CROWDED_S, limits.topic_unload_interval_s) if crowded else limits.topic_unload_interval_s
        return self._unloaded_at_s + interval_s

    def _trim(self) -> None:
        """Forget messages that every subscriber has read (the document's stale message removal)."""
        state = self._state
        topics, state.read_topics = state.read_topics, set()
        for topic in topics:
            if topic.retention == UNTIL_READ:
                self._trim_topic(topic)

    def _trim_topic(self, topic: Topic) -> None:
        state = self._state
        below = min(topic.needed_from(), topic.visible_end)
        while topic.recent and topic.recent[0].first_offset + topic.recent[0].count <= below:
            state.drop_oldest(topic)
        if below > topic.first_offset:
            trim = Trim(topic.number, below, topic.next_offset, topic.last_commit_us, topic.bytes_total)
            state.open.changes.trims[topic.number] = trim
            state.open.trimmed.append(topic)
            topic.first_offset = below  # who subscribes from now on must not be promised what goes
            state.changed(topic)

    def _unload(self) -> None:
        """Drop the coldest topics from memory beyond the limit (the document's topic unloader)."""
        state = self._state
        excess = len(state.topics) - state.limits.max_topics_in_memory
        if excess <= 0:
            return
        idle = [
            topic
            for topic in state.topics.values()
            if not topic.uncommitted and not topic.waiting and topic not in state.read_topics  # its trim comes first
        ]
        idle.sort(key=lambda topic: topic.touched_s)
        for topic in idle[:excess]:
            state.unload(topic)

    def _expire_publishers(self, now: Now) -> None:
        """Forget publishers that were silent for so long that they are taken for gone."""
        before_us = now.unix_us - int(self._state.limits.publisher_expiry_s * 1e6)
        for publisher in self._state.store.silent_publishers(before_us, _PUBLISHERS_AT_ONCE):
            if not any(group and publisher in group.changes.publishers for group in self._state.groups()):
                self._putting.drop_publisher(publisher)
                self._state.counters["publishers_expired"] += 1
