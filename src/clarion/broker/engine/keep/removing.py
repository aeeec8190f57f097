"""Letting go: of the oldest batches of a topic, and of a whole topic."""

from __future__ import annotations

from clarion.broker.engine.state import Group, State
from clarion.broker.engine.subscribe.subscribing import Subscribing
from clarion.broker.engine.topics import Topic
from clarion.model.names import to_text
from clarion.store.port import Trim


def trim(state: State, topic: Topic, below: int) -> None:
    """Forget the committed batches of a topic that end at or before an offset, with the open group."""
    below = min(below, topic.visible_end)
    while topic.recent and topic.recent[0].first_offset + topic.recent[0].count <= below:
        state.drop_oldest(topic)
    if topic.deleted or below <= max(topic.first_offset, topic.tried_below):
        return
    if topic.number not in state.open.changes.trims:
        state.open.trimmed.append(topic)
    state.open.changes.trims[topic.number] = Trim(
        topic.number, below, topic.next_offset, topic.last_commit_us, topic.bytes_total
    )
    topic.tried_below = below
    topic.first_offset = below  # who subscribes from now on must not be promised what goes
    state.changed(topic)


def delete_topic(state: State, subscribing: Subscribing, topic: Topic) -> None:
    """Forget a topic with all that is its own, with the open group; its name stays taken until that is on disk."""
    topic.deleted = True
    for subscription in list(topic.subscriptions.values()):
        subscribing.end(topic, subscription, f"topic {to_text(topic.name)} was deleted")
    state.open.changes.gone_topics.add(topic.number)
    state.changed(topic)
    state.read_topics.discard(topic)
    state.counters["topics_deleted"] += 1


def forget_deleted(state: State, group: Group) -> None:
    """Free the names of the topics that a group, which is on disk now, deleted."""
    if not group.changes.gone_topics:
        return
    for topic in [topic for topic in group.topics if topic.number in group.changes.gone_topics]:
        while topic.recent:
            state.drop_oldest(topic)
        state.read_topics.discard(topic)
        del state.topics[topic.name]
        state.topic_count -= 1
