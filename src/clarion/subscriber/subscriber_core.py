"""The core of a subscriber: all that it does, without I/O, for whoever drives it: a thread, a waiting caller, an event
loop, a test.

A verb that waits is a call: `begin` takes it up, and `on_time`, which follows all events of a turn, has the calls that
wait go on as far as they get.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from math import inf
from typing import Any, Literal, NamedTuple

from clarion.model.arguments import seconds, whole
from clarion.model.errors import ClarionError, InvalidRequest, NotSubscribed, Unreachable
from clarion.model.names import is_pattern, matches, to_bytes, to_text
from clarion.model.options import SubscriptionOptions, check_options
from clarion.session.calls import Call, Request, Requests
from clarion.session.exchange import Instruction, Reply, Wake
from clarion.subscriber.consumer import Attachment, Consumer
from clarion.subscriber.core_state import CoreState, FetchSettings, SteppedCall, Steps, no_longer_reads
from clarion.subscriber.fetch_session import FetchedTopic, FetchSession
from clarion.subscriber.pattern_reader import PatternReader
from clarion.subscriber.subscriber_transactions import State, Transactions
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.messages import Holder, Message, MessageBatch
from clarion.wire.timestamps import unix_us

log = logging.getLogger("clarion.subscriber")
MANY = 65_536
_AS_MANY_AS_SUITS = 0
_LONG_WAIT_S = 30.0
_GRACE_S = 0.05  # for the broker to answer a get whose wait is over
_SETTLED_AT_ONCE = 1000  # topics that are acked together when closing: all of 100,000 would wait for each other
_LEAVE_S = 2.0  # how long a close waits to tell the broker that this one leaves, at most

Topics = bytes | tuple[bytes, ...]  # a topic or pattern, or several
Source = Consumer | PatternReader
Start = Literal["new", "earliest"] | int | datetime
Order = Literal["key"]


class SubscriberCore:
    """The consumers and transactions of one subscriber. Whoever calls it holds the client's lock."""

    def __init__(
        self, name: bytes, url: str, timeout_s: float, settings: FetchSettings, *, auto_ack: bool, seed: bytes
    ) -> None:
        self.name = name
        self.url = url
        self.auto_ack = auto_ack
        self.instructions: list[Instruction] = []
        self._requests = Requests(url, seed, self.instructions)
        self.count = self._requests.count
        self.state = CoreState(name, url, timeout_s, settings, self._requests, self.instructions)
        self.transactions = Transactions(self.state)
        self._consumers: dict[bytes, Consumer] = {}
        self._patterns: dict[Topics, PatternReader] = {}
        self._timed: dict[Consumer | FetchSession, None] = {}  # those that may have something to do by the clock
        self._calls: dict[SteppedCall, None] = {}  # those that wait
        self._rests_until_s = -inf  # before which there is nothing to do, unless something happens

    # Events.

    def begin(self, call: Call, now_s: float, unix_s: float) -> None:
        """Take up a call."""
        rests_until_s, self._rests_until_s = self._rests_until_s, -inf
        if isinstance(call, Unsubscribe):
            self._end_subscription(call.topic)
        if isinstance(call, Request):
            self._requests.begin(call, now_s, unix_s)
            return
        assert isinstance(call, SteppedCall)
        if not call.begin(self, now_s, unix_s):
            if not (self._calls or self._timed):  # it has gone as far as it gets, and there is nobody else
                self._rests_until_s = min(rests_until_s, call.until_s)
            self._calls[call] = None

    def cancel(self, call: Call, now_s: float) -> None:
        """Nobody waits for a call any more, or takes what it brought: that is put back."""
        self._rests_until_s = -inf
        if isinstance(call, Request):
            self._requests.cancel(call, now_s)
        elif isinstance(call, SteppedCall) and call in self._calls:
            del self._calls[call]
            call.stop()
        elif isinstance(call, SteppedCall) and call.done and call.error is None:
            call.undo()
        self.advance(now_s)

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """Hand a reply to the part that asked."""
        self._rests_until_s = -inf
        if reply.seen is not None:
            self.state.version = reply.seen.version  # which may be another than the last time
        if tag is self.state:
            self.state.on_welcome(reply, now_s)
        elif isinstance(tag, Request):
            self._requests.on_reply(tag, reply, now_s)
        else:
            part, about = tag
            if part is not None:
                part.on_reply(about, reply, now_s)
            if isinstance(part, (Consumer, FetchSession)):
                self._timed[part] = None

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """The store is not the one that was spoken with: whoever reads is told once, and goes on from its cursor."""
        log.error("%s", error)
        self._rests_until_s = -inf
        self.transactions.on_lost()
        for pattern in self._patterns.values():
            pattern.on_lost(error)
        for consumer in self._consumers.values():
            consumer.on_lost_store(error)

    def on_failed(self, error: ClarionError) -> None:
        """Whoever waits hears it from the session."""

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Do what is due; return when to come back."""
        if now_s < self._rests_until_s:
            return None if self._rests_until_s == inf else self._rests_until_s
        wanted = [self.state.on_time(now_s), self.transactions.on_time(now_s)]
        wanted += [pattern.on_time(now_s) for pattern in self._patterns.values()]
        for consumer in list(self._timed):
            moment_s = consumer.on_time(now_s)
            if moment_s is None:
                del self._timed[consumer]  # an answer brings it back
            wanted.append(moment_s)
        wanted.append(self.advance(now_s))
        wanted_s = min([moment_s for moment_s in wanted if moment_s is not None], default=None)
        self._rests_until_s = inf if wanted_s is None else wanted_s
        return wanted_s

    def advance(self, now_s: float) -> float | None:
        """Have the calls that wait go on; return when the next one goes on though nothing happens."""
        wanted_s = self._requests.on_time(now_s, 0.0)
        while any(self._go_on(call, now_s) for call in list(self._calls)):
            pass  # what one of them did may be what another waits for
        return min([call.until_s for call in self._calls] + ([] if wanted_s is None else [wanted_s]), default=None)

    def _go_on(self, call: SteppedCall, now_s: float) -> bool:
        if call not in self._calls or not call.advance(now_s):
            return False
        self._calls.pop(call, None)
        self.instructions.append(Wake(call))
        return True

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done, once."""
        return self._requests.take_instructions()

    def wants_turn(self) -> bool:
        """Whether there is something to be done."""
        return bool(self.instructions)

    # Topics.

    def source(self, topics: Topics) -> Source:
        """Return what reads a topic, all topics of a pattern, or several such."""
        if isinstance(topics, bytes) and (topics in self._consumers or not is_pattern(topics)):
            return self.of(topics)
        pattern = self._patterns.get(topics)
        if pattern is None:
            several = (topics,) if isinstance(topics, bytes) else topics
            pattern = self._patterns[topics] = PatternReader(several, self.state, self)
        return pattern

    def of(self, topic: bytes, reader: PatternReader | None = None) -> Consumer:
        """Return the consumer of a topic, for the reader of several or a call for this one alone."""
        consumer = self._consumers.get(topic)
        if consumer is None:
            consumer = self._consumers[topic] = Consumer(topic, self.state)
            for pattern in self._patterns.values():
                if pattern is not reader:
                    pattern.on_consumer(consumer)
        return consumer

    def consumers_of(self, covers: Callable[[bytes], bool]) -> list[Consumer]:
        """Return the consumers of topics that a reader covers."""
        return [consumer for topic, consumer in self._consumers.items() if covers(topic)]

    def overlaps_session(self, topics: tuple[bytes, ...]) -> bool:
        """Return whether a session may read one of these topics: a second one would take it away from the first."""
        return any(pattern.overlaps(topics) for pattern in self._patterns.values())

    def on_left(self, consumer: Consumer) -> None:
        """A pattern no longer reads a topic; once no other does, either, nothing is kept of it."""
        topic = consumer.topic
        read = any(topic in pattern.members for pattern in self._patterns.values())
        if self._consumers.get(topic) is consumer and not read:
            del self._consumers[topic]
            self._timed.pop(consumer, None)
            consumer.end(no_longer_reads(self.name, topic))

    def _end_subscription(self, topic: bytes) -> None:
        pattern = self._patterns.pop(topic, None)
        for session in self._sessions():
            for read in session.topics():
                if _is_of(topic, read.name):
                    session.drop(read, no_longer_reads(self.name, read.name))
        for name in [name for name in self._consumers if _is_of(topic, name)]:
            consumer = self._consumers[name]
            consumer.end(no_longer_reads(self.name, name))
            self.on_left(consumer)
        if pattern is not None:
            pattern.end()

    def consumers(self) -> list[Consumer | FetchSession]:
        """Return the consumers of all topics, and the sessions of several."""
        return [*self._consumers.values(), *self._sessions()]

    def _sessions(self) -> list[FetchSession]:
        return [pattern.session for pattern in self._patterns.values() if pattern.session is not None]

    # What takes no waiting.

    def next_now(self, topics: Topics, holder: Holder, now_s: float) -> Message | None:
        """Return the next message, if that takes no waiting."""
        if self.state.settings.at_most_once:
            return None
        source = self.source(topics)
        if self.auto_ack:
            source.ack_handed(now_s, gets_next=True)
        if source.troubled:
            return None
        message = source.next_message(now_s)
        if message is not None:
            part, offset = message.part, message.offset
            part.holder = holder
            if self.auto_ack:
                part.attachment.consumer.hand_out(part.attachment, offset, offset + 1)
        return message

    def drop_all(self, error: ClarionError) -> None:
        """Let go of everything, the connection being gone."""
        for consumer in self.consumers():
            consumer.end(error)

    def stats(self) -> dict[str, Any]:
        """Return what is buffered and held, in all and by topic."""
        by_topic: dict[bytes, dict[str, Any]] = {}
        for session in self._sessions():
            by_topic |= session.stats_by_topic()
        by_topic |= {topic: consumer.stats() for topic, consumer in self._consumers.items()}
        return {
            "buffered": sum(each["buffered"] for each in by_topic.values()),
            "held": sum(each["held"] for each in by_topic.values()),
            "topics": len(by_topic),
            "transactions": self.transactions.committed,
            "by_topic": {to_text(topic): each for topic, each in by_topic.items()},
        }


def _is_of(topic: bytes, name: bytes) -> bool:
    """Return whether a name is the topic, or one that it stands for."""
    return name == topic or (is_pattern(topic) and matches(topic, name))


# Verbs that ask once.


def start_fields(start: object) -> tuple[str, int]:
    """Return a subscription's start as the wire has it."""
    if isinstance(start, datetime):
        return "time", unix_us(start)
    if isinstance(start, str) and start in ("new", "earliest"):
        return start, 0
    if hasattr(start, "__index__") and not isinstance(start, bool):
        return "offset", whole(start, "an offset to start at")
    raise ValueError(f'start is "new", "earliest", an offset or a datetime, not {start!r}')


def options_of(
    shared: bool, order: str | None, lease_s: float | None, max_attempts: int | None, expires_s: float | None
) -> SubscriptionOptions:
    """Return a subscription's options, the usual ones where there is None; TypeError, ValueError or InvalidRequest for
    what it cannot be."""
    usual = SubscriptionOptions()
    options = SubscriptionOptions(
        bool(shared),
        "" if order is None else order,
        usual.lease_s if lease_s is None else seconds(lease_s, "lease_s"),
        usual.max_attempts if max_attempts is None else whole(max_attempts, "max_attempts"),
        usual.expires_s if expires_s is None else seconds(expires_s, "expires_s"),
    )
    check_options(options)
    return options


def check_same_use(topic: bytes, name: bytes, asked: SubscriptionOptions, found: SubscriptionOptions) -> None:
    """Raise InvalidRequest where a subscription that is there is used otherwise than asked for."""
    if (asked.shared, asked.order) != (found.shared, found.order):
        raise InvalidRequest(
            f"{to_text(name)} subscribes to {to_text(topic)} already, {_use(found)}, and not {_use(asked)};"
            " unsubscribe it first, or ask for what it is"
        )


def _use(options: SubscriptionOptions) -> str:
    if not options.shared:
        return "for one consumer at a time (shared=False)"
    return "shared" + (f' with order="{options.order}"' if options.order else " without order")


class SubscribeOutcome(NamedTuple):
    """What became of a subscribe; true where the subscription is new, false where there was one already.

    Where the broker is linked with others, `origins` has the names of those that have confirmed it, with the offset
    there from which on everything comes (-1: that is not told, as of a pattern), and `unconfirmed` the others: what is
    put there meanwhile may not come. `reasons` says of some of these why nothing comes, however long one waits: by the
    settings of a link, or as it is refused.
    """

    is_new: bool
    origins: dict[str, int]
    unconfirmed: tuple[str, ...]
    reasons: dict[str, str]

    def __bool__(self) -> bool:
        return self.is_new


class Subscribe(Request):
    """Make a subscription."""

    def __init__(
        self, topic: bytes | str, name: bytes, start: Start, options: SubscriptionOptions, timeout_s: float
    ) -> None:
        self.options = options
        kind, at = start_fields(start)
        body = bodies.Subscribe(to_bytes(topic, "topic"), name, kind, at, options)
        super().__init__(Kind.SUBSCRIBE, body, timeout_s, retry=True)

    def outcome(self) -> SubscribeOutcome:
        """Return whether it is new, and for which brokers; InvalidRequest where one that is there is used otherwise."""
        reply: Reply = super().outcome()
        found = reply.read(bodies.Subscribed)
        assert isinstance(self.body, bodies.Subscribe)
        if reply.kind == Kind.ALREADY_SUBSCRIBED:
            check_same_use(self.body.topic, self.body.name, self.options, found.options)
        is_new = reply.kind != Kind.ALREADY_SUBSCRIBED
        return SubscribeOutcome(is_new, dict(found.origins), found.unconfirmed, dict(found.reasons))


class Unsubscribe(Request):
    """End a subscription; False where there was none."""

    def __init__(self, topic: bytes | str, name: bytes, timeout_s: float) -> None:
        self.topic = to_bytes(topic, "topic")
        super().__init__(Kind.UNSUBSCRIBE, bodies.Unsubscribe(self.topic, name), timeout_s, retry=True)

    def outcome(self) -> bool:
        """Return whether there was one."""
        reply: Reply = super().outcome()
        try:
            reply.read(bodies.Done)
        except NotSubscribed:
            return False
        return True


class AskState(Request):
    """Ask for a named state."""

    def __init__(self, name: bytes | str, timeout_s: float) -> None:
        super().__init__(Kind.STATE, bodies.AskState(to_bytes(name, "name")), timeout_s)

    def outcome(self) -> State:
        """Return its value and version."""
        found: bodies.StateIs = super().outcome().read(bodies.StateIs)
        return State(found.value, found.version)


class AskStates(SteppedCall):
    """Ask for several named states at once."""

    def __init__(self, names: Iterable[bytes | str], timeout_s: float) -> None:
        self._asked = [AskState(name, timeout_s) for name in names]

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Send all questions, and wait for all answers."""
        for one in self._asked:
            core.begin(one, now_s, unix_s)
        while not all(one.done for one in self._asked):
            yield inf  # each has a deadline of its own
        return [one.outcome() for one in self._asked]


# Verbs that wait.


def _arrival(source: Source, state: CoreState, most: int, deadline_s: float, now_s: float) -> Steps:
    """Wait for messages until a deadline; return the time when there are some, or were none until then."""
    mark = source.mark(now_s)
    waits = now_s < deadline_s
    ask_again_s, give_up_s = deadline_s + _GRACE_S, deadline_s + state.timeout_s
    while True:
        source.raise_error()
        if source.buffered or (now_s >= deadline_s and source.empty_since(mark)):
            return now_s
        if now_s >= give_up_s:
            raise source.last_word or state.no_answer()
        # What is under way may be another caller's that waits longer: then an own one asks when time is up, but not
        # before what waited no longer than this had the time to come.
        if not (waits and deadline_s <= now_s < ask_again_s):
            source.want(max(0.0, deadline_s - now_s), most, now_s)
        now_s = yield ask_again_s if now_s < ask_again_s else give_up_s


class Get(SteppedCall):
    """Get up to `most` messages, waiting up to `wait_s` for the first; as batches, or one by one."""

    def __init__(
        self,
        topics: Topics,
        most: int,
        wait_s: float,
        *,
        opened: bool = False,
        single: bool = False,
        holder: Holder | None = None,
        keeper: object = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"max_messages is at least 1, not {most}")
        self._topics = topics
        self._most = most
        self._wait_s = wait_s
        self._opened = opened  # only from batches whose messages can be looked at
        self._single = single
        self._holder = holder
        self._keeper = keeper
        self.result: list[MessageBatch] = []

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Ack what was handed out, wait for messages, and hand them out."""
        deadline_s = now_s + self._wait_s
        source = core.source(self._topics)
        if core.auto_ack:
            source.ack_handed(now_s, gets_next=True)
        while True:
            now_s = yield from _arrival(source, core.state, self._most, deadline_s, now_s)
            if not source.buffered:
                return []
            parts = source.take(self._most, now_s, opened=self._opened)
            if handed := (yield from _handed_out(parts, core, now_s)):
                return handed

    def undo(self) -> None:
        """Take the messages back; the next call gets them."""
        _put_back(self.result)

    def outcome(self) -> Any:
        """Return the messages."""
        super().outcome()
        messages: list[Message] = []
        for part in self.result:
            part.holder, part.keeper = self._holder, self._keeper
            if self._single:
                messages += part.messages()
        return messages if self._single else self.result


class Next(SteppedCall):
    """Get the next message; None where none came for `wait_s`."""

    def __init__(self, topics: Topics, wait_s: float | None, *, holder: Holder | None = None) -> None:
        self._topics = topics
        self._wait_s = wait_s
        self._holder = holder

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Ack the one before, and wait for the next; for ever, if that is wanted, also for a broker."""
        while True:
            source = core.source(self._topics)
            if core.auto_ack:
                source.ack_handed(now_s, gets_next=True)
            deadline_s = now_s + (_LONG_WAIT_S if self._wait_s is None else self._wait_s)
            try:
                now_s = yield from _arrival(source, core.state, _AS_MANY_AS_SUITS, deadline_s, now_s)
            except Unreachable:
                if self._wait_s is not None:
                    raise
                log.warning("no broker answers at %s; the stream goes on when one does", core.url)
                continue
            came = bool(source.buffered)
            message = source.next_message(now_s) if came else None
            if message is not None and (yield from _handed_out([message.alone()], core, now_s)):
                return message
            if self._wait_s is not None and not came:
                return None

    def undo(self) -> None:
        """Take the message back; the next call gets it."""
        if self.result is not None:
            _put_back([self.result.alone()])

    def outcome(self) -> Message | None:
        """Return the message."""
        message: Message | None = super().outcome()
        if message is not None:
            message.part.holder = self._holder
        return message


def _put_back(parts: list[MessageBatch]) -> None:
    for part in reversed(parts):
        part.attachment.consumer.put_back(part)


def _handed_out(parts: list[MessageBatch], core: SubscriberCore, now_s: float) -> Steps:
    """Return messages that the next call acks, with ack="auto". At most once: ack them now, and return only what could
    be acked."""
    at_most_once = core.state.settings.at_most_once
    for part in parts if core.auto_ack or at_most_once else ():
        first = part.batch_offset
        part.attachment.consumer.hand_out(part.attachment, first + part.start, first + part.stop)
    if not at_most_once:
        return parts
    try:
        deadline_s = now_s + core.state.timeout_s
        for consumer in {part.attachment.consumer: None for part in parts}:
            consumer.hurry_acks(now_s)
            consumer.ack_handed(now_s)
            while not consumer.is_settled() and now_s < deadline_s:
                now_s = yield deadline_s
            consumer.raise_unless_settled()
    except BaseException:
        _put_back(parts)
        raise
    return [part for part in parts if part.attachment.error is None]


class Extend(SteppedCall):
    """Renew the lease on messages, and wait until the broker says that it did."""

    def __init__(self, attachment: Attachment | FetchedTopic, start: int, stop: int) -> None:
        self._attachment = attachment
        self._offsets = start, stop
        self.answered = False

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Send a sign of life, and wait for the answer."""
        self._attachment.check()
        lent = self._attachment.consumer.lent
        if lent is None:
            return
        lent.beat(now_s, self)
        deadline_s = now_s + core.state.timeout_s
        while not self.answered and self._attachment.error is None:
            if now_s >= deadline_s:
                raise core.state.no_answer()
            now_s = yield deadline_s
        self._attachment.check()
        lent.check_held(*self._offsets)


class Flush(SteppedCall):
    """Wait until every ack made so far is durable."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Wait for one consumer after the other."""
        deadline_s = now_s + (core.state.timeout_s if self._timeout_s is None else self._timeout_s)
        consumers = core.consumers()
        for consumer in consumers:
            consumer.hurry_acks(now_s)
        for consumer in consumers:
            while not consumer.is_settled() and now_s < deadline_s:
                now_s = yield deadline_s
            consumer.raise_unless_settled()


class Close(SteppedCall):
    """Ack what was handed out, if that is wanted, and leave; within the time that any call has, or another."""

    def __init__(self, ack: bool, timeout_s: float | None = None) -> None:
        self._ack = ack
        self._timeout_s = timeout_s

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Settle what was acked, then transactions, then leave what is shared."""
        deadline_s = now_s + (core.state.timeout_s if self._timeout_s is None else self._timeout_s)
        failure: ClarionError | None = None
        consumers = core.consumers()
        in_time = True
        for first in range(0, len(consumers), _SETTLED_AT_ONCE):
            some = consumers[first : first + _SETTLED_AT_ONCE]
            for consumer in some:
                consumer.hurry_acks(now_s)
                if self._ack and core.auto_ack:
                    consumer.ack_handed(now_s)
            patience_s = min(deadline_s, now_s + _LEAVE_S)
            for consumer in some if len(consumers) > len(some) else ():
                while in_time and not consumer.is_settled():
                    in_time = now_s < patience_s
                    if in_time:
                        now_s = yield patience_s
        for consumer in consumers:
            while not consumer.is_settled() and now_s < deadline_s:
                now_s = yield deadline_s
            try:
                consumer.raise_unless_settled()
            except ClarionError as error:
                failure = failure or error
        while core.transactions.busy and now_s < deadline_s:
            now_s = yield deadline_s
        leave_s = min(deadline_s, now_s + _LEAVE_S)
        forgetting = core.transactions.forget()
        while forgetting is not None and not forgetting.left and now_s < leave_s:
            now_s = yield leave_s
        for consumer in core.consumers():
            while not consumer.leave() and now_s < leave_s:
                now_s = yield leave_s
            consumer.leave(at_once=True)  # though something may still be lent to it
        if failure is not None:
            raise failure
