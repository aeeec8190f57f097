"""The administrator's client: topics, subscriptions, dead letters, and the broker's counters; and what it is told."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from clarion.model.arguments import as_list, seconds, whole
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, NotSubscribed, StoredDataCorrupt
from clarion.model.ids import MessageId
from clarion.model.names import DEAD, DEAD_READER, dead_letters_of, is_pattern, matches, to_bytes, to_text
from clarion.model.options import KEEP, SubscriptionOptions, TopicSettings, check_settings
from clarion.model.ranges import AckedRanges, merged
from clarion.publisher.stager import StagedOutcome, commit_staged, drop_staged
from clarion.session.calls import Requests
from clarion.session.connection import broker_url
from clarion.session.endings import watch
from clarion.session.exchange import Reply, Seen, hello
from clarion.session.thread_session import ThreadSession
from clarion.subscriber.subscriber_core import (
    AskState,
    Order,
    Start,
    Subscribe,
    SubscribeOutcome,
    Unsubscribe,
    options_of,
    start_fields,
)
from clarion.subscriber.subscriber_transactions import State
from clarion.wire import bodies, link_bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.bodies import TopicRow
from clarion.wire.frames import Kind
from clarion.wire.link_bodies import AskLinks, LinksAre
from clarion.wire.messages import Message, MessageBatch, unreadable
from clarion.wire.timestamps import unix_us

_PAGE = 1000
_ID_BYTES = 16  # of a message
PAGE_MESSAGES = 1000
PAGE_BYTES = 2**20
AskRead = Callable[[bodies.Read], Reply]
_RANGES_AT_ONCE = 10_000
_DEAD_HEADERS = "clarion-dead-"


class HasId(Protocol):
    """A message, or what tells of one that was stored."""

    @property
    def id(self) -> MessageId:
        """The message's id."""


class Admin:
    """Asks the broker at `url` (None: at CLARION_URL, else at the usual address). Safe from many threads; close it, or
    use `with`."""

    def __init__(self, url: str | None = None, *, timeout_s: float = 10.0) -> None:
        self._timeout_s = seconds(timeout_s, "timeout_s")
        url = broker_url(url)
        self._session = ThreadSession(url, Requests(url, os.urandom(16)))
        watch(self, self._session, self._session.url)

    def hello(self, seen: Seen | None = None) -> bodies.Welcome:
        """Ask who answers: its version, ids and limits, and whether what was `seen` earlier is lost."""
        return self._call(Kind.HELLO, hello("clarion admin", seen)).read(bodies.Welcome)

    def stats(self) -> dict[str, Any]:
        """Return the broker's counters since its start, and what it holds now; under "publishers" the PublisherReports
        of those who told of themselves lately."""
        return read_stats(self._call(Kind.STATS, bodies.AskStats()).read(bodies.Stats).values)

    def trace(self, message: MessageId | str | bytes | HasId) -> Trace:
        """Tell where a message went: where it was put, which brokers carried it and who received it, as far as brokers
        track it. Any broker may be asked: it asks the others that it is linked with.

        `message` is its id, the 32 hexadecimal digits (with dashes, as in a UUID, or without) or 16 bytes of that, or
        what has it: a message, or what a receipt resulted in. InvalidRequest where it is nothing of the kind.
        """
        traced = self._call(Kind.TRACE, link_bodies.Trace(_id_bytes(message))).read(link_bodies.Traced)
        return Trace(traced.values, traced.text)

    # Links.

    def links(self) -> LinksDescription:
        """Tell the links of the broker, and all brokers that can be reached over them, or could be once."""
        return self._links("")

    def forget_broker(self, name: bytes | str) -> LinksDescription:
        """Keep nothing any more for a broker, by its name or id, that will not come back; return what is left.
        InvalidRequest where it is linked right now, or nothing is kept for it."""
        try:
            text = to_bytes(name, "the name of a broker").decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"the name of a broker is a text, not {name!r:.100}") from None
        if not text:
            raise InvalidRequest("say which broker to forget, by its name or id")
        return self._links(text)

    def _links(self, forget: str) -> LinksDescription:
        return read_links(self._call(Kind.LINKS, AskLinks(forget)).read(LinksAre).values)

    # Topics.

    def configure_topic(
        self,
        topic: bytes | str,
        *,
        retention: Literal["until-read", "keep"] | None = None,
        **settings: Unpack[TopicChanges],
    ) -> None:
        """Make the topic if it is not there, and set what it keeps: messages until every subscriber has read them,
        or for ever, within the bounds that `settings` names. What is not named stays as it is; 0 is no bound."""
        changes = _checked(settings, retention)
        self._call(Kind.CONFIGURE, bodies.Configure(to_bytes(topic, "topic"), retention or "", changes)).read(
            bodies.Done
        )

    def topics(self, prefix: bytes | str = b"") -> Iterator[TopicRow]:
        """Return every topic, or those whose names begin with `prefix`, with its subscriptions, by name."""
        prefix = to_bytes(prefix, "prefix")
        after = prefix[:-1] + (bytes([prefix[-1] - 1]) if prefix[-1:] > b"\0" else b"")  # before the first of them
        while True:
            page = self._call(Kind.TOPICS, bodies.ListTopics(after, _PAGE)).read(bodies.TopicRows)
            for row in page.topics:
                if row.topic.startswith(prefix):
                    yield row
                elif row.topic > prefix:
                    return
            if not page.more or not page.topics:
                return
            after = page.topics[-1].topic

    def describe_topic(self, topic: bytes | str) -> TopicDescription:
        """Tell everything about a topic; NoTopic where there is none."""
        reply = self._call(Kind.DESCRIBE, bodies.Describe(to_bytes(topic, "topic")))
        return read_description(reply.read(bodies.Description).values)

    def describe_topics(self, topics: Iterable[bytes | str]) -> Iterator[TopicDescription]:
        """Tell everything about each of many topics; nothing of one that is not there."""
        names = iter(dict.fromkeys(to_bytes(topic, "topic") for topic in as_list(topics, "topics")))
        while some := tuple(islice(names, bodies.MAX_DESCRIBED)):
            reply = self._call(Kind.DESCRIBE_MANY, bodies.DescribeMany(some))
            if reply.kind != Kind.INVALID:
                yield from map(read_description, reply.read(bodies.Descriptions).topics)
                continue
            for topic in some:  # a broker that takes them one by one
                with suppress(NoTopic):
                    yield self.describe_topic(topic)

    def usage(self) -> list[TopicUsage]:
        """Tell what each topic takes on the broker's disk, the largest first."""
        rows = {row.topic: row for row in self.topics()}
        found = [
            TopicUsage(told.topic, rows[told.topic].stored_bytes, told.staged_bytes)
            for told in self.describe_topics(list(rows))  # but for those that were deleted meanwhile
        ]
        return sorted(found, key=lambda one: one.stored_bytes + one.staged_bytes, reverse=True)

    def purge(self, topic: bytes | str, below: int | None = None) -> int:
        """Forget a topic's messages, all or those below an offset, read or not: every subscription has them behind it.
        Return how many. A batch that reaches beyond the offset stays stored until the rest of it goes."""
        below = None if below is None else whole(below, "below")
        found = self.describe_topic(topic)  # what is meant, and not a topic or messages that come meanwhile
        body = bodies.Purge(to_bytes(topic, "topic"), found.next_offset if below is None else below, found.number)
        return self._call(Kind.PURGE, body).read(bodies.Purged).messages

    def delete_topic(self, topic: bytes | str) -> None:
        """Forget a topic with its messages and subscriptions; NoTopic where there is none."""
        number = self.describe_topic(topic).number  # so that a request repeated after a lost reply takes no newer one
        self._call(Kind.DELETE, bodies.Delete(to_bytes(topic, "topic"), number)).read(bodies.Done)

    def read(
        self, topic: bytes | str, position: int | Literal["earliest"] = "earliest", max_messages: int = 100
    ) -> list[Message]:
        """Return messages from an offset on without a subscription: nothing changes at the broker. [] at the end.

        Where those at the offset are no longer kept, raise MessagesGone with the gap.
        """
        return list(islice(self.browse(topic, position), whole(max_messages, "max_messages")))

    def offset_at(self, topic: bytes | str, at: datetime) -> int:
        """Return the first offset of a topic that was committed at a time or later; its end where there is none."""
        body = bodies.FindOffset(to_bytes(topic, "topic"), unix_us(at))
        return self._call(Kind.FIND_OFFSET, body).read(bodies.OffsetIs).offset

    def browse(self, topic: bytes | str, position: int | Literal["earliest"] = "earliest") -> Iterator[Message]:
        """As `read`, but one by one to the end of the topic."""
        topic = to_bytes(topic, "topic")
        if position == "earliest":
            return self._from_earliest(topic)
        return browse(self._read, topic, whole(position, 'position, where it is not "earliest",'))

    # Subscriptions.

    def subscribe(
        self,
        topic: bytes | str,
        name: bytes | str,
        start: Start | Literal["end"] = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> SubscribeOutcome:
        """Subscribe somebody, as `Subscriber.subscribe` does; what is returned is false where that is done already."""
        topic, name = to_bytes(topic, "topic"), to_bytes(name, "name")
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        begin = "new" if start == "end" else start
        found: SubscribeOutcome = self._session.run(Subscribe(topic, name, begin, options, self._timeout_s))
        return found

    def unsubscribe(self, topic: bytes | str, name: bytes | str) -> bool:
        """End a subscription; what only it still needed is let go. Return False where there was none."""
        found: bool = self._session.run(Unsubscribe(topic, to_bytes(name, "name"), self._timeout_s))
        return found

    def subscriptions(self, topic: bytes | str | None = None) -> Iterator[SubscriptionDescription]:
        """Tell every subscription, or those of one topic (NoTopic where there is none), or of a pattern."""
        wanted = None if topic is None else to_bytes(topic, "topic")
        if wanted is not None and not is_pattern(wanted):
            yield from self.describe_topic(wanted).subscriptions
            return
        rows = (row for row in self.topics() if row.subscriptions)
        names = [row.topic for row in rows if wanted is None or matches(wanted, row.topic)]
        for told in self.describe_topics(names):  # but for those that were deleted meanwhile
            yield from told.subscriptions

    def describe_subscription(self, topic: bytes | str, name: bytes | str) -> SubscriptionDescription:
        """Tell everything about a subscription; NoTopic or NotSubscribed where there is none."""
        topic, name = to_bytes(topic, "topic"), to_bytes(name, "name")
        for one in self.describe_topic(topic).subscriptions:
            if one.name == name:
                return one
        raise NotSubscribed(f"{to_text(name)} does not subscribe to {to_text(topic)}")

    def seek(self, topic: bytes | str, name: bytes | str, start: Start | Literal["end"]) -> None:
        """Have a subscription go on elsewhere: at the end, at the earliest message kept, at an offset, or at the
        first message from a time on. What lies before counts as read, what lies after as unread. Its consumers
        follow by themselves, and can no longer ack what they hold."""
        kind, at = start_fields("new" if start == "end" else start)
        self._call(Kind.SEEK, bodies.Seek(to_bytes(topic, "topic"), to_bytes(name, "name"), kind, at)).read(bodies.Done)

    # Dead letters.

    def dead_letters(self, topic: bytes | str, limit: int = 100) -> list[DeadLetter]:
        """Return the messages of a topic that were given up after too many attempts, oldest first; NoTopic where there
        is no such topic."""
        topic = to_bytes(topic, "topic")
        try:
            found = list(islice(self._from_earliest(dead_letters_of(topic), DEAD_READER), whole(limit, "limit")))
        except (NoTopic, NotSubscribed):  # none was ever given up; but is there the topic itself?
            self.describe_topic(topic)
            return []
        return [read_dead_letter(message) for message in found]

    def is_dead(self, topic: bytes | str, offset: int) -> bool:
        """Tell whether the dead letter at an offset (of `DeadLetter.offset`) is still there, neither replayed nor
        dropped."""
        try:
            found = next(browse(self._read, dead_letters_of(to_bytes(topic, "topic")), offset, DEAD_READER), None)
        except (NoTopic, NotSubscribed, MessagesGone):
            return False
        return found is not None and found.offset == offset

    def replay_dead(self, topic: bytes | str, offsets: Iterable[int] | None = None) -> Replayed:
        """Put dead letters, all or those at `offsets` (of `DeadLetter.offset`), back on their topic: each for the
        subscription it came from alone, as its first attempt."""
        return self._dead(topic, "replay", offsets)

    def drop_dead(self, topic: bytes | str, offsets: Iterable[int] | None = None) -> int:
        """Forget dead letters, all or those at `offsets`; return how many."""
        return self._dead(topic, "drop", offsets).done

    # State and staged messages.

    def state(self, name: bytes | str) -> State:
        """Return a named state: its value and version; None and 0 where it is not set."""
        found: State = self._session.run(AskState(name, self._timeout_s))
        return found

    def commit_staged(
        self, writer: bytes | str, epoch: int, parts: Iterable[bytes | str] | None = None
    ) -> StagedOutcome:
        """Show what `writer` staged in `epoch`, as `clarion.publisher.commit_staged` does."""
        return commit_staged(self._session, writer, epoch, parts, timeout_s=self._timeout_s)

    def drop_staged(self, writer: bytes | str, epoch: int) -> StagedOutcome:
        """Forget what `writer` staged in `epoch`, as `clarion.publisher.drop_staged` does."""
        return drop_staged(self._session, writer, epoch, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, kind: Kind, body: bodies.Body) -> Reply:
        return self._session.call(kind, body, timeout_s=self._timeout_s, retry=True)

    def _read(self, body: bodies.Read) -> Reply:
        return self._call(Kind.READ, body)

    def _from_earliest(self, topic: bytes, name: bytes = b"") -> Iterator[Message]:
        position = self.describe_topic(topic).first_offset
        while True:
            try:
                yield from browse(self._read, topic, position, name)
            except MessagesGone as error:
                if error.stop <= position:
                    raise
                position = error.stop  # the earliest went meanwhile, and others are now
            else:
                return

    def _end_of_dead(self, topic: bytes) -> int:
        """Return where a topic's dead letters end now: what comes later is not meant."""
        try:
            return self.describe_topic(dead_letters_of(topic)).next_offset
        except NoTopic:
            return 0

    def _dead(self, topic: bytes | str, action: str, offsets: Iterable[int] | None) -> Replayed:
        """Ask until all are done; the broker takes so many at a time, and says where the rest begins."""
        name = to_bytes(topic, "topic")
        ranges = (
            [(0, self._end_of_dead(name))]
            if offsets is None
            else as_ranges(whole(each, "each of offsets") for each in as_list(offsets, "offsets"))
        )
        done = skipped = 0
        while ranges:  # none named would mean all
            asked = ranges[:_RANGES_AT_ONCE]
            body = bodies.Dead(name, action, tuple(asked))
            told = self._call(Kind.DEAD, body).read(bodies.DeadDone)
            done, skipped = done + told.done, skipped + told.skipped
            following = asked[-1][1] if told.next < 0 else told.next
            ranges = [(max(start, following), stop) for start, stop in ranges if stop > following]
        if not done + skipped:
            self.dead_letters(name, 1)  # where there is no such topic, that is told
        return Replayed(done, skipped)


def _checked(settings: TopicChanges, retention: str | None) -> dict[str, Any]:
    """Return the changes that are any; what no topic can be set to is a TypeError or InvalidRequest at once."""
    changes = {name: value for name, value in settings.items() if value is not None}
    try:
        check_settings(msgspec.convert(changes, TopicSettings), retention or KEEP)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise TypeError(f"a topic cannot be set so: {error}") from None
    return changes


# What an administrator is told.


class Trace(NamedTuple):
    """Where a message went: as values, and drawn as a tree."""

    values: dict[str, Any]
    text: str

    @property
    def state(self) -> str:
        """What became of it: "delivered", "on its way", "not delivered", "never seen" or "unknown"."""
        return str(self.values.get("state", ""))

    @property
    def summary(self) -> str:
        """The same in a sentence."""
        return str(self.values.get("summary", ""))

    @property
    def unknown(self) -> dict[str, str]:
        """The brokers that may have had it, for all that is known, by name, each with why no more is known."""
        return dict(self.values.get("unknown", {}))


class TopicChanges(TypedDict, total=False):
    """What can be set of a topic, beside its retention; what is left out, or None, stays as it is."""

    max_age_s: float | None
    max_bytes: int | None
    at_bound: str | None
    ttl_s: float | None
    max_batch_bytes: int | None
    max_subscriptions: int | None
    temporary: bool | None


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, now."""

    topic: bytes
    name: bytes
    cursor: int  # everything below it is acked
    lag: int  # messages that are not acked
    acked_ranges: int  # above the cursor
    options: SubscriptionOptions
    consumers: int  # of a shared one, now; else 1 where somebody has attached
    leased: int  # messages that consumers hold
    returned: int  # messages given back, to be tried again
    oldest_unacked_at_us: int
    seen_at_us: int

    @property
    def oldest_unacked_at(self) -> datetime | None:
        """When the oldest message that is not acked was committed; None where all are acked."""
        return _time(self.oldest_unacked_at_us)

    @property
    def seen_at(self) -> datetime | None:
        """About when it was used last, if it is one that expires; when it was made, if not."""
        return _time(self.seen_at_us)


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic, now."""

    topic: bytes
    retention: str
    settings: TopicSettings
    first_offset: int  # of the oldest message stored
    next_offset: int  # of the message that is put next
    stored_bytes: int
    staged_messages: int  # stored, and not to be seen yet: staged or delayed
    staged_bytes: int
    oldest_at_us: int
    subscriptions: tuple[SubscriptionDescription, ...]
    number: int = 0  # no other topic ever has it, not one made under the same name later; 0: the broker does not say

    @property
    def messages(self) -> int:
        """How many messages are stored, as offsets tell it."""
        return self.next_offset - self.first_offset

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest message stored was committed; None where there is none."""
        return _time(self.oldest_at_us)


class TopicUsage(NamedTuple):
    """What a topic takes on the broker's disk."""

    topic: bytes
    stored_bytes: int
    staged_bytes: int


class PublisherReport(bodies.Report, frozen=True, kw_only=True, array_like=False):  # type: ignore[misc]  # no dataclass
    """What a publisher told of itself on one topic; brokers forget it when no newer one comes."""

    age_s: float  # since it told this


class LinkDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a broker, or where one should be."""

    url: str  # that this broker calls; empty: the other one calls
    name: str  # of the neighbour; empty: not known yet
    broker: str  # its id
    state: Literal["up", "down", "refused"]
    reason: str  # why it is not up
    for_s: float | None  # since it came up, or went down; None: it was never up


class LinkedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """Another broker that can be reached over links, or could be once; its counts are since this broker's start."""

    name: str  # empty: it was not heard of since this broker was started
    broker: str  # its id
    reachable: bool
    via: str  # the neighbour that it is reached by
    confirmed: bool  # it has confirmed all that is wanted of it
    refused: dict[str, str] = {}  # topics that it does not send, and why
    sent_messages: int = 0  # to it, those sent again included
    sent_per_s: float = 0.0  # over the last seconds
    received_messages: int = 0  # from it
    received_per_s: float = 0.0
    lag_topics: int = 0  # on which it has not confirmed everything
    lag_messages: int = 0  # that it has not confirmed
    gone_messages: int = 0  # that it did not keep for this broker
    kept_out_messages: int = 0  # that may not cross a link on the way


class LinksDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's links, now."""

    name: str  # of the broker that tells this
    broker: str  # its id
    links: tuple[LinkDescription, ...]
    brokers: tuple[LinkedBroker, ...]
    counters: dict[str, int] = {}


class Replayed(NamedTuple):
    """What became of dead letters: `done` of them went back; `skipped` ones have no subscription to go back to."""

    done: int
    skipped: int


class DeadLetter(NamedTuple):
    """A message that was given up. `offset` is its place among the dead letters: replay and drop take that."""

    offset: int
    topic: bytes
    subscription: bytes
    attempts: int
    reason: str  # of the last attempt
    at: datetime  # when it was given up
    id: MessageId
    key: bytes | None
    headers: dict[str, bytes]  # its own
    payload: bytes
    original_offset: int  # in its topic


def _time(unix_us: int) -> datetime | None:
    """Return a time of the broker's; 0 is none."""
    return datetime.fromtimestamp(unix_us / 1e6, UTC) if unix_us else None


def read_description(values: dict[str, Any]) -> TopicDescription:
    """Read the answer to a DESCRIBE; settings that a newer broker knows are left out."""
    try:
        return msgspec.convert(
            {
                **values,
                "settings": known_fields(values["settings"], TopicSettings),
                "subscriptions": [
                    {
                        **one,
                        "topic": values["topic"],
                        "options": known_fields(one["options"], SubscriptionOptions),
                    }
                    for one in values["subscriptions"]
                ],
            },
            TopicDescription,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"the broker's description cannot be read: {error!r}") from error


def read_stats(values: dict[str, Any]) -> dict[str, Any]:
    """Read the answer to a STATS: counters as they are, `publishers` as PublisherReports; none from an old broker."""
    try:
        reports = [
            msgspec.convert(known_fields(one, PublisherReport), PublisherReport) for one in values.get("publishers", ())
        ]
    except (AttributeError, TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"what the broker tells of publishers cannot be read: {error!r}") from error
    return {**values, "publishers": reports}


def read_links(values: dict[str, Any]) -> LinksDescription:
    """Read the answer to a LINKS; what a newer broker tells beside is left out."""
    try:
        return msgspec.convert(values, LinksDescription)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"what the broker tells of its links cannot be read: {error!r}") from error


def known_fields(values: dict[str, Any], of: type[msgspec.Struct]) -> dict[str, Any]:
    """Return those of the values whose names are known here."""
    return {name: value for name, value in values.items() if name in of.__struct_fields__}


def read_dead_letter(message: Message) -> DeadLetter:
    """Return a message of a dead-letter topic as what it was, with what its headers say about its end."""
    headers = message.headers
    own = {name: value for name, value in headers.items() if not name.startswith(_DEAD_HEADERS)}
    told = {name.removeprefix(_DEAD_HEADERS): value for name, value in headers.items() if name not in own}
    id_text = told.get("id", b"").decode(errors="replace")
    return DeadLetter(
        offset=message.offset,
        topic=told.get("topic", message.topic.removeprefix(DEAD)),
        subscription=told.get("subscription", b""),
        attempts=_number(told.get("attempts")) or 0,
        reason=told.get("reason", b"").decode(errors="replace"),
        at=_time(_number(told.get("at")) or 0) or message.committed_at,
        id=MessageId.parse(id_text) if len(id_text) == 32 else message.id,
        key=message.key,
        headers=own,
        payload=message.payload,
        original_offset=-1 if (offset := _number(told.get("offset"))) is None else offset,
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


# Reading a topic without a subscription: page after page, leaving out what is not to be seen.


class Page(NamedTuple):
    """Messages from a position on; the next page begins at `position`, and there is none after `last`."""

    parts: list[MessageBatch]
    position: int
    last: bool


def browse(ask: AskRead, topic: bytes, position: int, name: bytes = b"") -> Iterator[Message]:
    """Return the messages from `position` to the end, one page at a time; of those that `name` acked, none.

    Where the topic no longer has them, raise MessagesGone with the gap; reading can begin anew at its `stop`.
    """
    last = False
    while not last:
        reply = ask(bodies.Read(topic, position, PAGE_MESSAGES, PAGE_BYTES, name))
        parts, position, last = read_page(reply, topic, position, PAGE_MESSAGES)
        for part in parts:
            try:
                messages = part.messages()
            except BadBatch as error:
                raise unreadable(part, error) from error
            yield from messages


def read_page(reply: Reply, topic: bytes, position: int, most: int) -> Page:
    """Read the answer to a READ of so many messages from `position` on; of what else comes in its batches, nothing is
    said about what to leave out."""
    refusal = reply.refusal()
    if refusal is not None and refusal.gone is not None:
        error = MessagesGone(refusal.text)
        error.topic, (error.start, error.stop) = topic, refusal.gone
        raise error
    if reply.kind == Kind.NO_MESSAGES:
        return Page([], position, True)
    told = reply.read(bodies.Delivery)
    skip = AckedRanges(position, told.skip)
    parts: list[MessageBatch] = []
    until = position
    for (first_offset, committed_at_us), blob in zip(told.batches, reply.blobs, strict=True):
        try:
            batch = Batch.parse(blob)
        except BadBatch as bad:
            text = f"the batch of {to_text(topic)} at offset {first_offset} is damaged: {bad}"
            raise StoredDataCorrupt(text) from bad
        batch_stop = min(first_offset + batch.count, position + most)
        until = max(until, batch_stop)
        for start, stop in skip.unacked(max(position, first_offset), batch_stop):
            parts.append(
                MessageBatch(topic, batch, first_offset, committed_at_us, start - first_offset, stop - first_offset)
            )
    until = skip.next_unacked(until)
    return Page(parts, until, until >= told.end or until == position)


def _id_bytes(message: Any) -> bytes:
    """Return the bytes of a message's id, in whatever form it is given; InvalidRequest where that is none."""
    given = message if isinstance(message, MessageId) else getattr(message, "id", message)
    try:
        if isinstance(given, MessageId):
            return given.to_bytes()
        if isinstance(given, bytes | bytearray | memoryview):
            raw = bytes(given)
            if len(raw) == _ID_BYTES:
                return raw
            given = raw.decode("ascii")
        if isinstance(given, str):
            return MessageId.parse(given.replace("-", "")).to_bytes()
    except (ValueError, OverflowError, TypeError, AttributeError, struct.error):  # numbers that fit into no id
        pass
    raise InvalidRequest(f"a message id has 32 hexadecimal digits, not {message!r:.100}")


def as_ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return offsets as half-open ranges, sorted and disjoint."""
    return merged((offset, offset + 1) for offset in offsets)
