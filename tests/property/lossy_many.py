"""Clients of many topics on a network that loses, repeats and reorders: they speak the protocol themselves."""

from __future__ import annotations

from functools import partial

from tests.property.lossy_network import Client, World
from tests.unit.broker.fetch_reader import FetchReader

from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind

_REQUESTS_UNDER_WAY = 3
_PARTS_AT_ONCE = 6


class _Batch:
    def __init__(self, number: int, packed: bytes, payloads: list[bytes]) -> None:
        self.number = number
        self.packed = packed
        self.payloads = payloads
        self.is_under_way = False
        self.offset: int | None = None  # once it is answered


class _Log:
    """What is put on one topic, as long as that has one number."""

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.number: int | None = None  # None: it is being asked for
        self.batches: list[_Batch] = []
        self.is_gone = False


class ManyPublisher(Client):
    """Puts on many topics with PUT_MANY, several requests at a time, and again what was refused for now."""

    def __init__(self, world: World, name: bytes, ttl_ms: dict[bytes, int] | None = None) -> None:
        super().__init__(world)
        self.name = name
        self.ttl_ms = ttl_ms or {}  # by topic
        self.publisher = 0
        self.logs: list[_Log] = []
        self._by_topic: dict[bytes, _Log] = {}
        self._under_way = self._stamp = 0
        self.codes: set[int] = set()  # of parts that were refused
        self.ask(Kind.REGISTER, bodies.Register(b"publisher " + name), self._on_registered)

    def _on_registered(self, reply: Reply) -> None:
        if reply.refusal() is not None:
            self.ask(Kind.REGISTER, bodies.Register(b"publisher " + self.name), self._on_registered)
            return
        self.publisher = reply.read(bodies.Registered).publisher

    def add(self, topic: bytes) -> None:
        """Put one batch more, of one message or two."""
        if not self.publisher:
            return
        log = self._by_topic.get(topic)
        if log is None:
            log = self._by_topic[topic] = _Log(topic)
            self.logs.append(log)
            self._open(log)
        self._stamp += 1
        payloads = [b"%s %d %d" % (self.name, self._stamp, place) for place in range(self.world.dice.choice((1, 2)))]
        number = len(log.batches) + 1
        packed = encode_batch(payloads, broker=1, publisher=self.publisher, stamp=self._stamp, number=number)
        log.batches.append(_Batch(number, bytes(packed), payloads))

    def _open(self, log: _Log) -> None:
        self.ask(Kind.OPEN, bodies.Open((log.topic,)), partial(self._on_opened, log))

    def _on_opened(self, log: _Log, reply: Reply) -> None:
        if reply.refusal() is None and reply.read(bodies.Opened).topics[0][0]:
            log.number = reply.read(bodies.Opened).topics[0][0]
        else:
            self._open(log)

    def turn(self) -> None:
        self.session_turn()
        self.send_some()

    def send_some(self) -> None:
        dice = self.world.dice
        ready = [
            (log, batch)
            for log in self.logs if log.number is not None and not log.is_gone
            for batch in log.batches if batch.offset is None and not batch.is_under_way
        ]  # fmt: skip
        if not ready or self._under_way >= _REQUESTS_UNDER_WAY:
            return
        parts = ready[: dice.randint(1, _PARTS_AT_ONCE)] if dice.random() < 0.5 else ready[-_PARTS_AT_ONCE:]
        for _, batch in parts:
            batch.is_under_way = True
        self._under_way += 1
        ttl_ms = self.ttl_ms
        puts = ((log.number or 0, len(batch.packed), ttl_ms.get(log.topic, 0)) for log, batch in parts)
        body = bodies.PutMany(tuple(puts))
        self.ask(Kind.PUT_MANY, body, partial(self._on_put, parts), [b"".join(batch.packed for _, batch in parts)])

    def _on_put(self, parts: list[tuple[_Log, _Batch]], reply: Reply) -> None:
        self._under_way -= 1
        for _, batch in parts:
            batch.is_under_way = False
        refusal = reply.refusal()
        if refusal is not None:
            assert refusal.code in RETRIED, refusal
            return
        done = reply.read(bodies.PutsDone)
        refused = {place: code for place, code, *_ in done.refused}
        for place, (log, batch) in enumerate(parts):
            code = refused.get(place)
            if code is None:
                assert batch.offset in (None, done.offsets[place]), "two answers differ"
                batch.offset = done.offsets[place]
            elif code == Code.NO_TOPIC:
                log.is_gone = True
                if self._by_topic.get(log.topic) is log:
                    del self._by_topic[log.topic]
            else:
                assert code in RETRIED, code
            self.codes |= {code} if code else set()

    def done(self) -> bool:
        return all(log.is_gone or all(batch.offset is not None for batch in log.batches) for log in self.logs)

    def confirmed(self) -> dict[int, dict[int, bytes]]:
        """Return what was answered: payloads by number of the topic and offset."""
        return {
            log.number or 0: {
                batch.offset + place: payload
                for batch in log.batches if batch.offset is not None
                for place, payload in enumerate(batch.payloads)
            }
            for log in self.logs
        }  # fmt: skip


class FetchClient(Client):
    """Reads all topics of a pattern in one session; acks some of it now and some later, in any order."""

    def __init__(self, world: World, topics: tuple[bytes, ...], nonce: bytes) -> None:
        super().__init__(world)
        self.reader = FetchReader(topics, nonce)
        self.acked: set[tuple[int, int]] = set()  # number and offset, as the broker confirmed
        self.heard: list[tuple[int, int, bytes]] = []  # number, offset, payload
        self._unacked: list[tuple[int, int, int]] = []  # number, token, offset
        self._acks_under_way = self._fetches = self._carried = 0
        self.begins = self.empty = 0
        self._begin()

    def _begin(self) -> None:
        self.begins += 1
        self.reader.token = None
        self.ask(Kind.BEGIN_FETCH, self.reader.body, self._on_begun)

    def _on_begun(self, reply: Reply) -> None:
        refusal = reply.refusal()
        if refusal is None:
            self.reader.on_begun(reply.read(bodies.FetchBegun))
        else:
            assert refusal.code in RETRIED, refusal
            self._begin()

    def turn(self) -> None:
        self.session_turn()
        dice = self.world.dice
        if self.reader.token is not None and self._fetches < (2 if dice.random() < 0.1 else 1):
            wait_ms = dice.choice((0, 50, 1000))
            body = self.reader.next_fetch(wait_ms, dice.choice((1, 5, 1000)), dice.choice((1, 300, 1 << 20)))
            some = self._take_unacked() if dice.random() < 0.3 else []
            body.acks = _acks(some)
            self._carried += len(some)
            self._fetches += 1
            self.ask(Kind.FETCH, body, partial(self._on_fetched, some), wait_s=wait_ms / 1000)
        if self._unacked and not self._acks_under_way and dice.random() < 0.5:
            self.send_acks()

    def _on_fetched(self, some: list[tuple[int, int, int]], reply: Reply) -> None:
        self._fetches -= 1
        self._carried -= len(some)
        refusal, reader = reply.refusal(), self.reader
        told = None if refusal else reply.read(bodies.Fetched if reply.kind == Kind.MESSAGES else bodies.NoMessages)
        refused = {number for number, *_ in told.refused} if isinstance(told, bodies.Fetched) else set()
        left = [each for each in some if each[0] not in refused]
        if isinstance(told, bodies.Fetched | bodies.NoMessages) and told.acked:
            self.acked |= {(number, offset) for number, _, offset in left}
        else:
            self._unacked += left
        if refusal is None and reply.kind == Kind.MESSAGES:
            for heard in reader.take_in(reply.read(bodies.Fetched), reply.blobs):
                self.heard.append((heard.number, heard.offset, heard.payload))
                self._unacked.append((heard.number, reader.topics[heard.number].token, heard.offset))
        elif refusal is None:
            self.empty += 1
        elif refusal.code == Code.NO_SESSION:
            if reader.token is not None:
                self._begin()
        else:
            assert refusal.code in RETRIED, refusal

    def _take_unacked(self) -> list[tuple[int, int, int]]:
        dice = self.world.dice
        dice.shuffle(self._unacked)
        some = sorted(self._unacked[: dice.choice((1, 3, 1000))])
        del self._unacked[: len(some)]
        return some

    def send_acks(self) -> None:
        some = self._take_unacked()
        self._acks_under_way += 1
        body = bodies.AckMany(self.reader.name, _acks(some), self.world.dice.random() < 0.3)
        self.ask(Kind.ACK_MANY, body, partial(self._on_acked, some))

    def _on_acked(self, some: list[tuple[int, int, int]], reply: Reply) -> None:
        self._acks_under_way -= 1
        refusal = reply.refusal()
        if refusal is not None:
            assert refusal.code in RETRIED, refusal
            self._unacked += some
            return
        refused = {number for number, *_ in reply.read(bodies.AcksDone).refused}
        self.acked |= {(number, offset) for number, _, offset in some if number not in refused}

    def acks_done(self) -> bool:
        return not self._unacked and not self._acks_under_way and not self._carried


def _acks(some: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int, int], ...]:
    return tuple((number, token, offset, offset + 1) for number, token, offset in some)
