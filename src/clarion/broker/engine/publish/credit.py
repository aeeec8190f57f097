"""How much each publisher of a topic may still put: the room left, shared fairly."""

from __future__ import annotations

from clarion.broker.engine.publish.room import bound_bytes, unread_bytes
from clarion.broker.engine.state import State
from clarion.broker.engine.topics import Topic
from clarion.model.options import TRIM, UNTIL_READ


def grant_messages(state: State, topic: Topic, now_s: float) -> int:
    """Give the messages one publisher may put beyond what it has put, at least one.

    A publisher with nothing in flight may always send one batch, so a small grant slows it and never stops it.
    """
    limits = state.limits
    bound = bound_bytes(topic, limits)
    messages = topic.next_offset - topic.first_offset
    refuses = topic.settings.at_bound != TRIM and (topic.retention == UNTIL_READ or topic.subscriptions)
    if not bound or not refuses or messages <= 0:
        return limits.credit_max_messages
    room_bytes = bound - unread_bytes(state, topic, bound // 2) - (topic.delayed_bytes or 0)
    bytes_each = max(1, topic.stored_bytes // messages)
    if room_bytes >= limits.credit_max_messages * bytes_each * len(topic.writers):  # enough for all: nothing to share
        return limits.credit_max_messages
    active = sum(1 for writer in topic.writers.values() if now_s - writer.seen_s <= limits.credit_s)
    share = room_bytes // (bytes_each * max(1, active))
    return max(1, min(limits.credit_max_messages, share))
