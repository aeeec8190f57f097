"""What publishers and subscribers ask in any order, and what each must be answered; the rules of the state machine."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.property.broker_model import BrokerModel, ModelBatch, ModelSubscription
from tests.property.checked_broker import CheckedBroker
from tests.property.checked_engine import Key, code_of, done, subscribed

from clarion.broker.engine import Reply
from clarion.store.port import KEEP, UNTIL_READ
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

PEERS = (b"peer 1", b"peer 2")
TOPICS = (b"a", b"b", b"c")
NAMES = (b"reader", b"other")
# Most of it happens in one place, so that much happens there.
peers, names = st.sampled_from(PEERS), st.sampled_from((*NAMES, NAMES[0]))
topics = st.sampled_from((*TOPICS, *TOPICS[:2], TOPICS[0], TOPICS[0], TOPICS[0]))
rarely = st.sampled_from((False, False, True))
small, pick = st.integers(1, 6), st.integers(0, 10_000)


class Publishing(RuleBasedStateMachine):
    """Register, put in order, again, too early, with other contents, and leave."""

    both: CheckedBroker
    sent: dict[tuple[int, bytes, int], ModelBatch]  # by publisher, topic, number
    publishers: list[int]
    nonces: list[bytes]
    counter: int

    @rule(place=st.integers(0, 2))
    def register(self, place: int) -> None:
        nonce = self.nonces[place]
        key = self.both.ask(PEERS[0], Kind.REGISTER, bodies.Register(nonce))
        if _is_refused_for_room(self.both, key):
            return
        publisher = self.both.current.register(nonce)

        def check(reply: Reply) -> None:
            assert reply.body == bodies.Registered(1, publisher)
            if publisher not in self.publishers:
                self.publishers.append(publisher)

        self.both.expect(key, check, lambda durable: publisher <= durable.last_publisher)

    def new_batch(self, publisher: int, number: int, count: int, padding: int = 0) -> ModelBatch:
        payloads = []
        for _ in range(count):
            self.counter += 1
            payloads.append(b"publisher %d message %d" % (publisher, self.counter) + bytes(padding))
        return self.both.pack_batch(publisher, number, tuple(payloads))

    def last_number(self, publisher: int, topic: bytes) -> int:
        found = self.both.current.topics.get(topic)
        return len(found.writers.get(publisher, [])) if found else 0

    @rule(peer=peers, place=pick, topic=topics, count=small)
    def put(self, peer: bytes, place: int, topic: bytes, count: int) -> None:
        """The next number; where that was sent before and lost, what was sent then."""
        publisher = self.publishers[place % len(self.publishers)]
        number = self.last_number(publisher, topic) + 1
        batch = self.sent.get((publisher, topic, number)) or self.new_batch(publisher, number, count)
        self.sent[publisher, topic, number] = batch
        self.both.put(peer, topic, batch)

    @rule(peer=peers, topic=topics, counts=st.lists(small, min_size=1, max_size=4))
    def put_and_settle(self, peer: bytes, topic: bytes, counts: list[int]) -> None:
        for place, count in enumerate(counts):
            self.put(peer, place, topic, count)
        self.both.settle()

    @rule(peer=peers, place=pick, topic=topics)
    def put_too_large(self, peer: bytes, place: int, topic: bytes) -> None:
        publisher = self.publishers[place % len(self.publishers)]
        number = self.last_number(publisher, topic) + 1
        if (publisher, topic, number) not in self.sent:
            self.sent[publisher, topic, number] = self.new_batch(publisher, number, 1, padding=500)
            self.both.put(peer, topic, self.sent[publisher, topic, number])

    @precondition(lambda self: self.sent)
    @rule(peer=peers, place=pick)
    def send_again(self, peer: bytes, place: int) -> None:
        publisher, topic, number = sorted(self.sent)[place % len(self.sent)]
        self.both.put(peer, topic, self.sent[publisher, topic, number])

    @rule(peer=peers, place=pick, topic=topics, ahead=st.integers(2, 4))
    def overtake(self, peer: bytes, place: int, topic: bytes, ahead: int) -> None:
        publisher = self.publishers[place % len(self.publishers)]
        self.both.put(peer, topic, self.new_batch(publisher, self.last_number(publisher, topic) + ahead, 1))

    @precondition(lambda self: self.sent)
    @rule(peer=peers, place=pick)
    def send_other_contents(self, peer: bytes, place: int) -> None:
        publisher, topic, number = sorted(self.sent)[place % len(self.sent)]
        if number <= self.last_number(publisher, topic):
            self.both.put(peer, topic, self.new_batch(publisher, number, 1))

    @precondition(lambda self: len(self.publishers) < 6)
    @rule(place=pick, really=rarely)
    def forget(self, place: int, really: bool) -> None:
        if not really:
            return
        publisher = self.publishers[place % len(self.publishers)]
        key = self.both.ask(PEERS[0], Kind.FORGET, bodies.Forget(publisher))
        nonce = self.both.current.publishers.get(publisher)
        self.both.current.forget(publisher)
        if nonce in self.nonces:
            self.nonces[self.nonces.index(nonce)] = nonce + b"'"
        self.both.expect(key, done, lambda durable: publisher not in durable.publishers)


class Subscribing(RuleBasedStateMachine):
    """Subscribe, attach, get, wait, ack, take over and leave."""

    both: CheckedBroker

    @rule(peer=peers, topic=topics, name=names, start=st.sampled_from(("new", "earliest", "offset", "time")), at=pick)
    def subscribe(self, peer: bytes, topic: bytes, name: bytes, start: str, at: int) -> None:
        both = self.both
        known = topic in both.current.topics
        plain = both.current.topic(topic)
        end, unread_from = len(plain.log), plain.unread_from()
        if start == "offset":
            at %= end + 2
        elif start == "time":
            at = both.now_us - at * 100
        key = both.ask(peer, Kind.SUBSCRIBE, bodies.Subscribe(topic, name, start, at))
        old = plain.subscriptions.get(name)
        if old is not None:
            _expect_subscribed(both, key, topic, name, Kind.ALREADY_SUBSCRIBED, old.cursor())
            return
        if _is_refused_for_room(both, key):
            if not known:  # what is refused makes no topic
                del both.current.topics[topic]
            return
        if start == "offset" and at > end:
            both.expect_at_once(key, Kind.INVALID, Code.MALFORMED)
            if not known:
                del both.current.topics[topic]
            return
        if (reply := both.answers.get(key)) is not None and reply.kind == Kind.REFUSED:
            both.expect_at_once(key, Kind.REFUSED, Code.GONE)
            assert start == "offset"
            assert at < unread_from, "what somebody has not read is not gone"
            return
        held = both.held(topic, name)
        cursor: int = held.acked.cursor
        if start in ("new", "offset"):
            assert cursor == (end if start == "new" else at)
        elif start == "earliest":
            assert cursor <= (unread_from if plain.ever_trimmed else 0)
        else:
            later = [b.first_offset for b in plain.batches if b.committed_at_us >= at]
            kept = unread_from if plain.ever_trimmed else 0
            assert cursor <= max(kept, min(later, default=end)), "began after what it asked for"
        plain.subscriptions[name] = ModelSubscription(cursor, held.token, held.token)
        _expect_subscribed(both, key, topic, name, Kind.ACK, cursor)

    @rule(peer=peers, topic=topics, name=names, really=rarely)
    def unsubscribe(self, peer: bytes, topic: bytes, name: bytes, really: bool) -> None:
        both = self.both
        if not really and both.subscription(topic, name) is not None:
            return
        key = both.ask(peer, Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name))
        subscription = both.subscription(topic, name)
        if subscription is None:
            both.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        del both.current.topics[topic].subscriptions[name]
        both.turn_away(topic, name, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        both.expect(key, done, lambda durable: _token(durable, topic, name) != subscription.token)

    @rule(peer=peers, topic=topics, name=names, consumer=st.integers(0, 3))
    def attach(self, peer: bytes, topic: bytes, name: bytes, consumer: int) -> None:
        both = self.both
        nonce = b"consumer %d" % consumer
        key = both.ask(peer, Kind.ATTACH, bodies.Attach(topic, name, nonce))
        subscription = both.subscription(topic, name)
        if subscription is None:
            both.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        if subscription.nonce != nonce:
            token: int = both.held(topic, name).token
            assert token > subscription.token
            subscription.token, subscription.nonce = token, nonce
            both.turn_away(topic, name, Kind.REFUSED, Code.TAKEN_OVER)
        due = bodies.Attached(subscription.token, subscription.cursor(), subscription.ranges())

        def check(reply: Reply) -> None:
            assert reply.body == due, "a consumer must be told what is acked, and nothing else"
            told = both.tokens.setdefault((topic, name), {})
            assert told.setdefault(due.token, nonce) == nonce, "two consumers were given one token"

        both.expect(key, check, lambda durable: (_token(durable, topic, name) or ALL_TOKENS) >= due.token)

    def told_token(self, topic: bytes, name: bytes, place: int) -> int:
        """Return the newest token a consumer was told, often, or an older one."""
        told = sorted(self.both.tokens.get((topic, name), {1: b""}), reverse=True)
        return told[max(0, place % (len(told) + 5) - 5)]

    @rule(
        peer=peers, topic=topics, name=names, token=pick, position=pick, most=small, wait=st.sampled_from((0, 50, 5000))
    )
    def get(self, peer: bytes, topic: bytes, name: bytes, token: int, position: int, most: int, wait: int) -> None:
        subscription, end = self.both.subscription(topic, name), self.both.durable.visible_end(topic)
        if subscription is not None and position % 4:  # mostly where a reader would be
            position = end - position % max(1, end - subscription.cursor() + 1)
        else:
            position %= end + 2
        self.both.get(peer, topic, name, self.told_token(topic, name, token), position, most, wait)

    @rule(peer=peers, topic=topics, name=names, most=small, leave=st.integers(0, 2))
    def consume(self, peer: bytes, topic: bytes, name: bytes, most: int, leave: int) -> None:
        """Get from the cursor on and ack what came, as a good consumer does, but perhaps not all of it."""
        subscription = self.both.subscription(topic, name)
        if subscription is None or subscription.token not in self.both.tokens.get((topic, name), {}):
            return
        cursor, end = subscription.cursor(), self.both.durable.visible_end(topic)
        self.both.get(peer, topic, name, subscription.token, 0, most, 0)
        stop = min(end, cursor + most) - leave
        if stop > cursor:
            self.send_ack(peer, bodies.Ack(topic, name, subscription.token, ((cursor, stop),)))

    @rule(
        peer=peers,
        topic=topics,
        name=names,
        token=pick,
        wanted=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), min_size=1, max_size=3),
    )
    def ack(self, peer: bytes, topic: bytes, name: bytes, token: int, wanted: list[tuple[int, int]]) -> None:
        end = self.both.durable.visible_end(topic)
        subscription = self.both.subscription(topic, name)
        low = min(subscription.cursor(), end) if subscription else 0
        starts = [low + start % max(1, end - low) for start, _ in wanted]
        acked = tuple((start, start + size) for start, (_, size) in zip(starts, wanted, strict=True))
        if end > low and sum(size for _, size in wanted) % 5:  # mostly within the topic
            acked = tuple((start, min(stop, end)) for start, stop in acked)
        self.send_ack(peer, bodies.Ack(topic, name, self.told_token(topic, name, token), acked))

    def send_ack(self, peer: bytes, body: bodies.Ack) -> None:
        both = self.both
        key = both.ask(peer, Kind.ACK, body)
        subscription = both.find(key, body.topic, body.name, body.token)
        if subscription is None:
            return
        if any(stop > both.durable.visible_end(body.topic) for _, stop in body.acked):
            both.expect_at_once(key, Kind.INVALID, Code.MALFORMED)
            return
        cursor, after = subscription.cursor(), subscription.copy()
        after.acked |= {offset for start, stop in body.acked for offset in range(start, stop) if offset >= cursor}
        if (reply := both.answers.get(key)) is not None and reply.kind == Kind.REFUSED:
            both.expect_at_once(key, Kind.REFUSED, Code.LIMIT)
            assert len(after.ranges()) > both.limits.max_acked_ranges
            return
        assert len(after.ranges()) <= both.limits.max_acked_ranges + 1
        subscription.acked = after.acked
        born = subscription.born
        both.expect(key, done, lambda durable: _has_acked(durable, body, born))

    @rule(topic=topics, retention=st.sampled_from((UNTIL_READ, KEEP)))
    def configure(self, topic: bytes, retention: str) -> None:
        key = self.both.ask(PEERS[0], Kind.CONFIGURE, bodies.Configure(topic, retention))
        if _is_refused_for_room(self.both, key):
            return
        if topic in self.both.current.topics:
            plain = self.both.current.topics[topic]
            plain.ever_trimmed |= retention == UNTIL_READ
        else:
            plain = self.both.current.topic(topic)
            plain.ever_trimmed = retention == UNTIL_READ
        plain.retention = retention
        self.both.expect(key, done, lambda durable: topic in durable.topics)


ALL_TOKENS = 1 << 62


def _token(broker: BrokerModel, topic: bytes, name: bytes) -> int | None:
    found = broker.topics.get(topic)
    subscription = found.subscriptions.get(name) if found else None
    return subscription.token if subscription else None


def _has_acked(broker: BrokerModel, body: bodies.Ack, born: int) -> bool:
    """Whether these are done; also where the subscription has ended since."""
    found = broker.topics[body.topic].subscriptions.get(body.name)
    if found is None or found.born != born:
        return True
    wanted = {offset for start, stop in body.acked for offset in range(start, stop)}
    return all(offset < found.start or offset in found.acked for offset in wanted)


def _is_refused_for_room(both: CheckedBroker, key: Key) -> bool:
    """Nothing new is made where only the disk's reserve is left."""
    reply = both.answers.get(key)
    if reply is None or code_of(reply) != Code.DISK_FULL:
        return False
    assert both.store.free_bytes() < 1 << 30 or both.capacity_changed
    both.expect_at_once(key, Kind.REFUSED, Code.DISK_FULL)
    return True


def _expect_subscribed(both: CheckedBroker, key: Key, topic: bytes, name: bytes, kind: Kind, cursor: int) -> None:
    def check(reply: Reply) -> None:
        assert subscribed(reply) == (kind, bodies.Subscribed(cursor))

    both.expect(key, check, lambda durable: topic in durable.topics)
