"""The bodies of requests and replies: msgpack arrays whose places have names; new fields go at the end.

Requests that change something, and are not numbered by a publisher or a consumer, carry a `nonce` and the broker's
count `as_of` which the caller decided (Welcome tells it; 0: from before there was one). So the same request again,
whenever it comes, changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.model.options import SubscriptionOptions

Ranges = tuple[tuple[int, int], ...]  # of offsets, half-open
Acks = tuple[tuple[int, int, int, int], ...]  # number of the topic, token, start, stop; those of a topic together
Refusals = tuple[tuple[int, int, str], ...]  # number of the topic, code, text


class Body(msgspec.Struct, array_like=True, gc=False):
    """A msgpack array whose places have names."""


class ByConsumer(Body):
    """A request of an attached consumer begins with who that is."""

    topic: bytes
    name: bytes
    token: int


# Requests.


class Hello(Body):
    """Who calls, and which versions it speaks; the answer is a Welcome."""

    oldest_version: int
    newest_version: int
    client: str
    seen_store: bytes = b""  # what the last Welcome of this client's said, and the highest sequence it was told since
    seen_timeline: int = 0
    seen_start: bytes = b""
    seen_sequence: int = 0


class Register(Body):
    """Ask for a new publisher id. `nonce` makes a repeated request give the same id."""

    nonce: bytes
    as_of: int = 0


class Forget(Body):
    """The publisher is done for good; its numbers need not be kept."""

    publisher: int


class Open(Body):
    """Ask for the numbers of topics that are going to be put on; a topic is made where a put may make one."""

    topics: tuple[bytes, ...]


class Put(Body):
    """Store the batch in the next frame, for `ttl_ms` (0: as the topic says).

    `due`, where given, is when each of its messages appears: unix µs, 8 bytes each, little endian, never going back.
    `topic_number` is the one that an Open told: the batch is for that topic, not for one made under the name since.
    0: any.
    """

    topic: bytes
    ttl_ms: int = 0
    due: bytes = b""
    topic_number: int = 0


class PutMany(Body):
    """Store the batches that lie one after the other in the next frame; each is taken or refused by itself."""

    puts: tuple[
        tuple[int, int, int], ...
    ]  # number of its topic (as an Open told), bytes, ttl_ms (0: as the topic says)


class Subscribe(Body):
    """Make a durable subscription. `start` is "new", "earliest", "offset" or "time" (`at`: offset, or unix µs).

    A topic that is a pattern subscribes to all topics it matches, present (from `start`) and future (from their first
    message).
    """

    topic: bytes
    name: bytes
    start: str = "new"
    at: int = 0
    options: SubscriptionOptions = SubscriptionOptions()
    nonce: bytes = b""
    as_of: int = 0


class Unsubscribe(Body):
    """End a subscription; one that was made, sought or attached to later than `as_of` is not meant."""

    topic: bytes
    name: bytes
    nonce: bytes = b""
    as_of: int = 0


class Attach(Body):
    """Become the consumer of a subscription; who had it before is taken over, unless that came later than `as_of`."""

    topic: bytes
    name: bytes
    nonce: bytes
    max_unacked: int = 10_000  # messages lent to this consumer at a time, of a shared subscription
    as_of: int = 0


class Get(ByConsumer):
    """Return messages at or after `position`, waiting for them up to `wait_ms`.

    `acked` ranges are done: the answer says whether that is on disk by then. Where not, they are said again.
    """

    position: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    acked: Ranges = ()


class Ack(ByConsumer):
    """These half-open ranges of offsets are done; answered once that is on disk."""

    acked: Ranges


class BeginFetch(Body):
    """Become the consumer of all topics of these patterns, and of these topics, to fetch from them together.

    A topic that a pattern matches is attached to when something of it is delivered, unless another consumer attached to
    it later than this. The same `nonce` again is the same; `as_of` as in Attach.
    """

    topics: tuple[bytes, ...]  # or patterns
    name: bytes
    nonce: bytes
    as_of: int = 0


class Fetch(Body):
    """Return what there is on all topics of a fetch session beyond what it `got`, waiting for it up to `wait_ms`.

    A consumer numbers its fetches 1, 2, 3, …, so that one that comes late is known. `got` is the `serial` of the last
    answer with messages that it has: what was sent after that did not arrive, and comes again. `acks` as in AckMany;
    the answer says whether they are on disk by then, and which are refused.
    """

    name: bytes
    token: int
    number: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    got: int = 0
    acks: Acks = ()


class AckMany(Body):
    """These offsets of many topics are done; answered once that is on disk. Each is taken or refused by itself."""

    name: bytes
    acks: Acks
    soon: bool = False  # somebody waits for the answer: otherwise it may take a moment longer, to go with other changes


class Configure(Body):
    """Make the topic if it is not there, and set its retention ("until-read" or "keep"; "": leave it) and settings.

    `changes` has names and values of TopicSettings; what it does not name stays.
    """

    topic: bytes
    retention: str = ""
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    nonce: bytes = b""
    as_of: int = 0


class ListTopics(Body):
    """List topics after `after` in byte order, at most `limit`."""

    after: bytes = b""
    limit: int = 1000


class AskStats(Body):
    """Ask for the broker's counters."""


class Take(ByConsumer):
    """Borrow messages of a shared subscription. A consumer numbers its takes; the same number gives the same loan."""

    number: int
    max_messages: int
    max_bytes: int
    wait_ms: int


class Renew(ByConsumer):
    """The consumer lives, and holds these offsets; after a restart of the broker that is how it keeps them.

    Each range names the attempt it was lent for, or 0. What is being given back is named, too.
    """

    held: tuple[tuple[int, int, int], ...]  # start, stop, attempt
    start: int = 0  # which start of the broker asked for this: `expected` of its SHOW_HELD; 0: whichever
    taken: int = 0  # the last take that brought messages
    released: int = 0  # the last Return that was not counted


class Return(ByConsumer):
    """Return messages back. Each range names the attempt it was lent for; what is lent otherwise by now is left alone.

    `counted` ones were tried, and come again after `delay_ms` as the next attempt, or go to the dead letters.
    """

    returned: tuple[tuple[int, int, int], ...]  # start, stop, attempt
    counted: bool
    delay_ms: int = 0
    reason: str = ""
    number: int = 0  # of those that are not counted, 1, 2, 3, …: the same again is done already


class Detach(ByConsumer):
    """The consumer leaves: what it holds is given back, `untouched` ranges as if they had never been lent."""

    untouched: Ranges


class Transact(Body):
    """All of this or nothing, once for each number of a publisher. The batches follow in one frame."""

    publisher: int
    number: int
    acks: tuple[tuple[bytes, bytes, int, Ranges], ...]  # topic, name, token, offsets
    puts: tuple[tuple[bytes, int, int, bytes], ...]  # topic, bytes of its batch, ttl_ms, due as in Put
    sets: tuple[tuple[bytes, bytes | None, int | None], ...]  # name, value (None: remove), version expected (0: none)


class AskState(Body):
    """Ask for a named state."""

    name: bytes


class Stage(Body):
    """Store the batch in the next frame, to be seen when (writer, epoch) is committed. Batches have their `place` in
    a `part` of the whole, so that the same one sent again is known."""

    topic: bytes
    writer: bytes
    epoch: int
    part: bytes
    place: int
    as_of: int = 0


class CommitStaged(Body):
    """Show what was staged as (writer, epoch) in the `parts` named (None: in all), drop the rest; or `drop` it all.

    `messages`, where it is not -1, is how many there must be: what expired meanwhile is then told, not passed over.
    """

    writer: bytes
    epoch: int
    parts: tuple[bytes, ...] | None = None
    drop: bool = False
    messages: int = -1
    nonce: bytes = b""
    as_of: int = 0


class Describe(Body):
    """Ask for everything about a topic."""

    topic: bytes


MAX_DESCRIBED = 100  # topics of one DescribeMany: each may have to be read from the store


class DescribeMany(Body):
    """Ask for everything about many topics."""

    topics: tuple[bytes, ...]


class Seek(Body):
    """Have a subscription go on elsewhere; `start` and `at` as in Subscribe, "new" being the end.

    One that was made, sought or attached to later than `as_of` is not meant.
    """

    topic: bytes
    name: bytes
    start: str
    at: int = 0
    nonce: bytes = b""
    as_of: int = 0


class Purge(Body):
    """Forget a topic's messages below an offset (-1: all), for every subscription. `number` as in Delete."""

    topic: bytes
    below: int = -1
    number: int = 0
    nonce: bytes = b""
    as_of: int = 0


class Delete(Body):
    """Forget a topic, its messages and its subscriptions.

    `number` is the one that a Describe told: asked again, it does not take what was made under the name since. 0: any.
    """

    topic: bytes
    number: int = 0
    nonce: bytes = b""
    as_of: int = 0


class Read(Body):
    """Return messages from `position` on without a subscription; what subscription `name`, if given, acked is told."""

    topic: bytes
    position: int
    max_messages: int
    max_bytes: int
    name: bytes = b""


class FindOffset(Body):
    """Ask for the first offset of a topic that was committed at a time (unix µs) or later; its end where there is
    none."""

    topic: bytes
    at_us: int


class Matches(Body):
    """Ask which topics a pattern has subscribed `name` to, waiting for news beyond `version`."""

    pattern: bytes
    name: bytes
    version: int = 0
    wait_ms: int = 0


class Dead(Body):
    """Replay dead letters of a topic to the subscription each came from, or drop them; none named: all."""

    topic: bytes
    action: str  # "replay" or "drop"
    offsets: Ranges = ()
    nonce: bytes = b""
    as_of: int = 0


class Report(Body):
    """What a publisher tells of itself on one topic, for `clarion stats`; the latest is kept for a while, in memory."""

    topic: bytes
    instance: bytes  # 16 random bytes, the same for as long as this publisher lives
    policy: str  # of its tuner
    batch_size: int  # N
    poll_interval_s: float  # T_poll
    load_per_s: float  # lambda_est
    capacity_per_s: float  # eta_est; 0: nothing was transferred yet
    credit: int  # messages the broker would take; -1: no bound is known
    pending: int  # messages that wait to be published
    in_transfer: int  # messages sent and not confirmed
    drops: int = 0  # messages refused by a full buffer, since the publisher began
    stored: int = 0  # messages confirmed by the broker, since the publisher began


# Replies.


class Welcome(Body):
    """Who answers: version, broker id, store UUID and timeline, and its limits."""

    version: int
    broker: int
    store_uuid: bytes
    timeline: int
    max_batch_bytes: int
    max_in_flight: int
    max_get_bytes: int
    start: bytes = b""  # of the broker, random
    sequence: int = 0  # of the last commit that is on disk; other replies tell it, too
    lost: bool = False  # what the client has seen is not of this store's past: it went back, or is another one
    count: int = 0  # of the broker's decisions: what a request that changes something is made `as_of`


class Registered(Body):
    """The id the publisher has from now on."""

    broker: int
    publisher: int


class Opened(Body):
    """What each topic of an Open is: its number, or 0 with the code and text of why nothing can be put there now."""

    topics: tuple[tuple[int, int, str], ...]


class PutDone(Body):
    """The batch is on disk at `first_offset`. `credit` messages in all may be put, until `credit_s` from now."""

    number: int
    first_offset: int
    committed_at_us: int
    credit: int
    credit_s: float
    sequence: int = 0
    skew: tuple[int, int] | None = None  # the stamp of a batch that is off the broker's clock, and by how many stamps


class PutsDone(Body):
    """What became of each batch of a PutMany, in their order, all that are taken being on disk; `offsets` has -1 for
    those that are `refused`."""

    offsets: tuple[int, ...]  # of its first message
    times_us: tuple[int, ...]  # of its commit
    credits: tuple[int, ...]  # as in PutDone
    credit_s: float
    refused: tuple[
        tuple[int, int, str, float, int], ...
    ] = ()  # place, and of Refused: code, text, retry_after_s, expected
    sequence: int = 0
    lag_ms: int = 0  # from a commit to its delivery, lately, by the quickest reader of the topic that is read quickest
    skew: tuple[int, int] | None = None  # as in PutDone, of one of the batches


class FetchBegun(Body):
    """What a fetch session has to show with every fetch; `shared` where the patterns are read with Take instead, topic
    by topic, and no session was begun."""

    token: int
    shared: bool = False
    count: int = 0  # as in Welcome
    sequence: int = 0


class Fetched(Body):
    """Batches of many topics follow, one after the other in as many frames as suits; none lies in two frames.

    What is told of a topic holds before its batches here. A topic is told of before its first batch, and again, with
    another token, where it begins anew elsewhere (sought, or made again): what the consumer has of it is nobody's then.
    """

    serial: int  # of this answer, in its session
    batches: tuple[tuple[int, int, int, int], ...]  # number of the topic, first offset, commit time in µs, bytes
    topics: tuple[tuple[int, bytes, int, int], ...] = ()  # number, name, token, cursor
    skip: tuple[tuple[int, int, int], ...] = ()  # number, start, stop: not for this reader; expired, or done already
    gone: tuple[tuple[int, int, int], ...] = ()  # number, start, stop: no longer kept; the consumer acks them
    left: tuple[tuple[int, int, str], ...] = ()  # number, code, text: no longer of this session, and why
    trouble: tuple[tuple[int, int, str], ...] = ()  # number, code, text: cannot be read, for now or for good
    shared: tuple[bytes, ...] = ()  # topics that the consumer has to read with Take instead
    sequence: int = 0
    acked: bool = False  # whether all acks that the fetch said are on disk, but for those `refused`
    refused: Refusals = ()


class AcksDone(Body):
    """All acks of an AckMany that are not `refused` are on disk."""

    refused: Refusals = ()


class Attached(Body):
    """What the consumer has to show with every get and ack, and what is already acked."""

    token: int
    cursor: int
    acked: Ranges
    options: SubscriptionOptions = SubscriptionOptions()
    sequence: int = 0


class Lent(Body):
    """Batches follow, one frame each: (first offset, commit time in µs). Of them `lent` is this consumer's."""

    batches: tuple[tuple[int, int], ...]
    lent: tuple[tuple[int, int, int], ...]  # start, stop, attempt
    waiting: int  # messages that could be lent now, beside these
    sequence: int = 0


class Renewed(Body):
    """The lease is good for `lease_s` from now, but for what is `lost`."""

    lost: Ranges
    lease_s: float


class Transacted(Body):
    """What became of a transaction: done, or refused with `code`."""

    code: int
    text: str
    offsets: tuple[int, ...] = ()  # of the first message of each put
    versions: tuple[int, ...] = ()  # of each state that was set
    committed_at_us: int = 0
    sequence: int = 0


class StateIs(Body):
    """A named state; version 0 when it was never set, or removed."""

    value: bytes | None
    version: int


class Staged(Body):
    """The batch is on disk; `already` when its epoch was committed before, and nothing was stored."""

    already: bool


class StagedCommitted(Body):
    """(writer, epoch) is committed: so many messages became visible, now or, `already`, before."""

    epoch: int
    messages: int
    already: bool


class Description(Body):
    """Everything about a topic, by name."""

    values: dict[str, Any]


class Descriptions(Body):
    """Everything about topics, each by name; nothing of one that is not there."""

    topics: tuple[dict[str, Any], ...]


class Purged(Body):
    """So many messages were forgotten."""

    messages: int


class OffsetIs(Body):
    """An offset that was asked for."""

    offset: int


class Matched(Body):
    """The topics a pattern subscribes to; the version changes with them."""

    version: int
    topics: tuple[bytes, ...]
    count: int = 0  # as in Welcome


class DeadDone(Body):
    """So many dead letters were replayed or dropped; `skipped` ones have no subscription to go back to.

    Much is done in several requests: where `next` is not -1, ask again for what is at or after it.
    """

    done: int
    skipped: int
    next: int = -1


class Subscribed(Body):
    """The subscription sees every message from this offset on."""

    cursor: int
    options: SubscriptionOptions = SubscriptionOptions()
    count: int = 0  # as in Welcome
    origins: tuple[tuple[str, int], ...] = ()  # linked brokers that confirmed it, and from which offset there; -1: any
    unconfirmed: tuple[str, ...] = ()  # those that did not; by address, where nobody answered there yet
    reasons: tuple[tuple[str, str], ...] = ()  # of those, why nothing comes, where waiting does not help


class Delivery(Body):
    """Batches follow, one frame each: (first offset, commit time in µs). `end` is the topic's end now.

    `skip` are offsets that are not for this reader: expired, or done already.
    """

    batches: tuple[tuple[int, int], ...]
    end: int
    skip: Ranges = ()
    sequence: int = 0
    acked: bool = False  # whether what a Get said to be acked is on disk


class NoMessages(Body):
    """Nothing at or after the position asked for."""

    end: int
    acked: bool = False  # as in Delivery and Fetched


class Refused(Body):
    """Why not, for a program (`code`), for a person (`text`), and what else a program needs."""

    code: int
    text: str
    retry_after_s: float = 0.0
    expected: int = 0
    gone: tuple[int, int] | None = None  # with GONE: the offsets asked for that are gone


class TopicRow(Body):
    """One topic as `clarion topics` shows it."""

    topic: bytes
    retention: str
    first_offset: int
    next_offset: int
    stored_bytes: int
    subscriptions: tuple[tuple[bytes, int, int], ...]  # name, cursor, acked ranges above it
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    shared: tuple[bytes, ...] = ()  # which of the subscriptions


class TopicRows(Body):
    """A page of topics; `more` says whether another follows."""

    topics: tuple[TopicRow, ...]
    more: bool


class Stats(Body):
    """The broker's counters and gauges."""

    values: dict[str, Any]


class Done(Body):
    """The request is done, and on disk."""


TELLING = (
    Welcome,
    PutDone,
    PutsDone,
    Attached,
    FetchBegun,
    Lent,
    Delivery,
    Fetched,
    Transacted,
)  # those that tell the `sequence`
