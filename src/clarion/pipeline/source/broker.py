"""What the driver asks a broker: who it is, which topics it has, and where they begin and end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from clarion.admin import Admin
from clarion.admin.descriptions import SubscriptionDescription, TopicDescription
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, NotSubscribed, TimedOut, Unreachable
from clarion.model.names import is_pattern, matches, to_text
from clarion.pipeline.source.positions import Store, TopicNow
from clarion.session.exchange import Seen
from clarion.wire import bodies
from clarion.wire.timestamps import unix_us

log = logging.getLogger("clarion.pipeline")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US = unix_us(datetime.max.replace(tzinfo=UTC))


@contextmanager
def told_away(url: str, timeout_s: float) -> Iterator[None]:
    """Say what to do where the broker does not answer."""
    try:
        yield
    except TimedOut as error:
        raise Unreachable(
            f"no broker answers at {url} within {timeout_s:g} s (option timeoutS). Nothing is lost; is it running, and"
            " is the option url right?"
        ) from error


def store_of(welcome: bodies.Welcome) -> Store:
    """Give which store a broker has."""
    return Store(welcome.store_uuid.hex(), welcome.timeline, welcome.start.hex(), welcome.sequence)


def seen_of(store: Store) -> Seen:
    """Give what to ask a broker with, whether that is of its store's past."""
    return Seen(bytes.fromhex(store.uuid), store.timeline, bytes.fromhex(store.start), store.sequence)


def now_of(told: TopicDescription) -> TopicNow:
    """Give what counts here of a topic's description; its end is that of what may be read."""
    return TopicNow(told.topic, told.number, told.first_offset, told.next_offset)


def find_topics(admin: Admin, wanted: Sequence[bytes], *, missing_ok: bool = False) -> list[TopicDescription]:
    """Describe the topics that are named, or that a pattern matches now, by name; NoTopic where a named one is not
    there, unless that is allowed."""
    patterns = [name for name in wanted if is_pattern(name)]
    names = {name for name in wanted if not is_pattern(name)}
    if patterns:
        rows = list(admin.topics())
        names |= {row.topic for row in rows if any(matches(pattern, row.topic) for pattern in patterns)}
    found = []
    for name in sorted(names):
        try:
            found.append(admin.describe_topic(name))
        except NoTopic:
            if not missing_ok and name in wanted:  # else it was deleted meanwhile
                raise NoTopic(
                    f"there is no topic {to_text(name)} at this broker. A topic is there once something was put on it,"
                    " or it was configured; a pattern may match none yet"
                ) from None
    return found


def offset_at(admin: Admin, topic: bytes, at_us: int) -> int:
    """Give the first offset of a topic committed at a time or later, or its end."""
    return admin.offset_at(topic, _EPOCH + timedelta(microseconds=min(at_us, _LATEST_US)))


def follow_with(
    admin: Admin,
    cursor: bytes,
    kept_from: Mapping[bytes, int],
    found: Sequence[TopicDescription],
    *,
    let_go: bool = True,
) -> None:
    """Have a subscription `cursor` of each topic keep what is from an offset on; it is made where there is none. What
    lies before is let go, unless `let_go` says otherwise."""
    for told in found:
        offset = kept_from.get(told.topic)
        if offset is None:
            continue
        cursors = [_plain(one).cursor for one in told.subscriptions if one.name == cursor]
        try:
            if not cursors:
                admin.subscribe(told.topic, cursor, offset)
            elif cursors[0] > offset or (let_go and cursors[0] < offset):
                admin.seek(told.topic, cursor, offset)
        except MessagesGone:  # who reads them is told; from here on the rest is kept
            if not cursors:
                admin.subscribe(told.topic, cursor, "earliest")
        except (NoTopic, NotSubscribed):  # gone meanwhile: the next look finds out
            log.info("cursor %s on %s was not moved: it is gone", to_text(cursor), to_text(told.topic))


def _plain(one: SubscriptionDescription) -> SubscriptionDescription:
    if one.options.shared:
        raise InvalidRequest(
            f"option cursor: {to_text(one.name)} is a shared subscription of {to_text(one.topic)}, and its consumers'."
            " Take a name that is the query's own"
        )
    return one
