"""What somebody at this broker subscribes to, whatever brokers it comes from: patterns, and topics that none of them
covers. Subscriptions of other brokers do not count."""

from __future__ import annotations

from collections.abc import Iterable

from clarion.broker.engine.state import State
from clarion.broker.engine.topics import Topic
from clarion.model.names import LINK, RESERVED, matches

_TOPICS_SCANNED = 500


class Interest:
    """The names that are wanted, and which of them are news."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.is_on = False  # whether anybody wants to know
        self.wanted: set[bytes] = set()
        self.news: dict[bytes, bool] = {}  # by name: whether it is wanted from now on, or no longer
        self._patterns_seen = -1
        self._failures_seen = 0
        self._patterns: set[bytes] = set()
        self._scanned: bytes | None = b""  # up to which topic of the store; None: all

    def look(self) -> bool:
        """Look at what may have changed; return whether there is more to look at."""
        state = self._state
        if state.counters["commits_failed"] != self._failures_seen:  # what was noted may not have been kept
            self._failures_seen = state.counters["commits_failed"]
            self._patterns_seen, self._scanned = -1, b""
        table = state.patterns
        if table.changed != self._patterns_seen and not self._patterns_are_open():
            self._patterns_seen = table.changed
            patterns = {
                pattern
                for pattern, who in table.options
                if not who.startswith(LINK) and not pattern.startswith(RESERVED)
            }
            for pattern in patterns ^ self._patterns:
                self._note(pattern, pattern in patterns)
            self._patterns = patterns
            self._scanned = b""  # topics may be covered now, or no longer
        if self._scanned is not None:
            page = state.store.topics(self._scanned, _TOPICS_SCANNED)
            for summary in page:
                self._note_topic(summary.topic.name, [each.name for each in summary.subscriptions])
            self._scanned = page[-1].topic.name if len(page) == _TOPICS_SCANNED else None
        return self._scanned is not None

    @property
    def is_settled(self) -> bool:
        """Whether all that is wanted, as far as it is on disk, was noted and taken by who wants to know."""
        return not self.news and self._scanned is None and self._state.patterns.changed == self._patterns_seen

    def _patterns_are_open(self) -> bool:
        """Return whether what the table says of patterns may still be lost with a commit that fails."""
        return any(group.changes.patterns or group.changes.gone_patterns for group in self._state.groups())

    def on_changed(self, topic: Topic) -> None:
        """Take in that a topic has a subscription more, or less."""
        if self.is_on:
            self._note_topic(topic.name, () if topic.deleted else topic.subscriptions)

    def _note_topic(self, name: bytes, subscribers: Iterable[bytes]) -> None:
        is_read = any(not who.startswith(LINK) for who in subscribers)
        is_wanted = is_read and not name.startswith(RESERVED)
        self._note(name, is_wanted and not any(matches(pattern, name) for pattern in self._patterns))

    def _note(self, name: bytes, is_wanted: bool) -> None:
        if is_wanted != (name in self.wanted):
            (self.wanted.add if is_wanted else self.wanted.discard)(name)
            self.news[name] = is_wanted

    def take_news(self) -> dict[bytes, bool]:
        """Return what is wanted from now on, and what is no longer, and forget that it is news."""
        news, self.news = self.news, {}
        return news
