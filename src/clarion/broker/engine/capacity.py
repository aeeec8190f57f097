"""Whether a topic and the disk have room for more, and how much each publisher may still put."""

from __future__ import annotations

from clarion.broker.engine.answers import Refused, disk_full
from clarion.broker.engine.limits import Limits
from clarion.broker.engine.state import State
from clarion.broker.engine.topic_log import UNREAD, read_batches
from clarion.broker.engine.topics import Topic
from clarion.model.names import to_text
from clarion.model.options import TRIM, UNTIL_READ
from clarion.wire.codes import Code

_COUNTED_EVERY = 0.1  # of the time that credit is good for
_FEW_WRITERS = 10
NOT_TAKEN = "the put was not taken, nothing acked is lost"


def bound_bytes(topic: Topic, limits: Limits) -> int:
    """Return the bytes that a topic may hold; 0 when there is no bound."""
    return topic.settings.max_bytes or (limits.topic_max_bytes if topic.retention == UNTIL_READ else 0)


def check_room(state: State, topic: Topic, size: int, *, count_delayed: bool = True) -> int:
    """Return the offset below which a topic lets go of its oldest batches so that one of this size fits (0: it need
    not); refuse where it does not fit all the same, or the disk is full.

    What is delayed takes from the topic's bound, too.
    """
    if not state.has_room(size):
        raise disk_full(NOT_TAKEN)
    bound = bound_bytes(topic, state.limits)
    if not bound:
        return 0
    delayed = (topic.delayed_bytes or state.delayed_bytes(topic)) if count_delayed else 0
    if topic.stored_bytes + delayed + size <= bound:
        return 0
    below = 0
    if topic.retention != UNTIL_READ or topic.settings.at_bound == TRIM:
        below = below_size(state, topic, bound - size)
    if topic.settings.at_bound != TRIM:
        held = unread_bytes(state, topic, bound - delayed - size) + delayed
        if held and held + size > bound:  # an empty topic takes one batch, whatever its size
            text = f"topic {to_text(topic.name)} holds {held} unread bytes, as many as it may"
            raise Refused(Code.TOPIC_FULL, text, full=topic)
    return below


def below_size(state: State, topic: Topic, bound: int) -> int:
    """Return the offset below which batches go so that about `bound` bytes stay.

    The batch that crosses the bound stays; so does what somebody still has to read, unless the topic trims.
    """
    found = state.store.offset_after_bytes(topic.number, topic.bytes_total - bound)
    below = topic.visible_end if found is None else found
    return below if topic.settings.at_bound == TRIM else min(below, topic.slowest_cursor())


def unread_bytes(state: State, topic: Topic, enough: int) -> int:
    """Return the bytes that somebody still has to read; no more than this when it is at most `enough`.

    Of a topic that lets go of what was read, that is what is stored.
    """
    if topic.retention == UNTIL_READ:
        return topic.stored_bytes
    slowest = max(topic.slowest_cursor(), topic.first_offset)
    if slowest >= topic.visible_end:  # all that is committed is read; what is taken will have to be, if anybody reads
        return min(topic.stored_bytes, topic.bytes_total - topic.visible_bytes) if topic.subscriptions else 0
    if topic.unread_mark[0] > slowest:
        topic.unread_mark = (0, 0)
    offset, below = topic.unread_mark
    if topic.bytes_total - below > enough and slowest > offset:
        try:
            found = read_batches(state, topic, slowest, 1, 1)
        except UNREAD:
            found = []
        if found:
            topic.unread_mark = (slowest, found[0].bytes_total - len(found[0].data))
    return min(topic.stored_bytes, topic.bytes_total - topic.unread_mark[1])


def grant_messages(state: State, topic: Topic, now_s: float) -> int:
    """Return the messages one publisher may put beyond what it has put, at least one.

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
    share = room_bytes // (bytes_each * max(1, _active_writers(topic, now_s, limits.credit_s)))
    return max(1, min(limits.credit_max_messages, share))


def _active_writers(topic: Topic, now_s: float, credit_s: float) -> int:
    """Return how many publishers share what a topic grants; of very many they are counted only now and then."""
    if not 0 <= now_s - topic.active_writers[0] <= _COUNTED_EVERY * credit_s or len(topic.writers) <= _FEW_WRITERS:
        active = sum(1 for writer in topic.writers.values() if now_s - writer.seen_s <= credit_s)
        topic.active_writers = (now_s, active)
    return topic.active_writers[1]
