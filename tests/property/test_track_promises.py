"""A broker's notes of where batches went have no gaps: whatever is saved late, lost in a crash, acked out of order, or
let go of by topics that were read."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.broker.asker import Asker, body_of

from clarion.broker.engine import Engine, Group
from clarion.tracking.tracker import GONE, HistoryName, Tracker, Unsaved
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

_TOPICS = [b"a", b"b", b"c"]
_NAMES = [b"x", b"y"]
_DONE = ("subscribe", "put", "ack", "save", "tick", "crash", "unsubscribe", "seek")
_OFTEN = (3, 10, 8, 2, 4, 0.7, 0.4, 0.7)


class WaitingAsker(Asker):
    """An engine some of whose commits wait until its notes are saved, as a server has them wait."""

    def __init__(self, tracked: Tracked) -> None:
        super().__init__()
        self._tracked = tracked

    def commit(self, group: Group) -> None:
        if group.notes_first:
            if self._tracked.dice.random() < 0.1:
                self._tracked.save(fails=True)
            self._tracked.save(fails=False)
        super().commit(group)


class Tracked:
    """A broker whose notes are saved now and then, beside the truth."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.asker = WaitingAsker(self)
        self.names: dict[HistoryName, int] = {}
        self.saved: set[tuple[int, int, int]] = set()
        self.received: dict[tuple[bytes, bytes], int] = {}
        self.published_us = 0
        self.start()
        self.publisher = self.asker.register()
        self.numbers: dict[bytes, int] = {}
        self.tokens: dict[tuple[bytes, bytes], int] = {}
        self.put_keys: dict[int, tuple[bytes, int, int]] = {}  # by stamp: topic, first offset, count
        self.acked: dict[tuple[bytes, bytes], set[int]] = {}
        self.begun: set[tuple[bytes, bytes]] = set()  # who subscribes
        self.had: set[tuple[bytes, bytes, int]] = set()  # what they ever acked
        self.left_with: set[tuple[int, bytes]] = set()  # by stamp: what those had who went elsewhere

    def start(self) -> None:
        self.tracker = Tracker(self.names)
        self.asker.engine = Engine(self.asker.store, self.asker.limits, tracker=self.tracker)
        self.asker.engine.tracks.begin(self.received, self.published_us, self.asker.now)

    def crash(self) -> None:
        self.asker.settle()
        self.start()
        self.tokens.clear()

    def save(self, *, fails: bool) -> None:
        tracks = self.asker.engine.tracks
        unsaved = tracks.take()
        if unsaved is None:
            return
        if fails:
            tracks.failed()
            return
        self._keep(unsaved)
        tracks.saved()

    def _keep(self, unsaved: Unsaved) -> None:
        self.names |= {name: number for number, name in unsaved.names}
        notes = unsaved.notes.tolist()
        self.saved |= set(zip(notes[::3], notes[1::3], notes[2::3], strict=True))
        self.received = {who: at for who, at in (self.received | unsaved.received).items() if at != GONE}
        self.published_us = max(self.published_us, unsaved.published_us)

    def subscribe(self, topic: bytes, name: bytes) -> None:
        if (topic, name) not in self.begun:
            body_of(self.asker.subscribe(topic, name), bodies.Subscribed)
            self.begun.add((topic, name))
            self.acked[topic, name] = set()

    def unsubscribe(self, topic: bytes, name: bytes) -> None:
        if (topic, name) in self.begun:
            self._leave(topic, name)
            body_of(self.asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name)), bodies.Done)
            self.begun.remove((topic, name))

    def seek(self, topic: bytes, name: bytes) -> None:
        if (topic, name) in self.begun:
            self._leave(topic, name)
            log = self.asker.state.find_topic(topic, self.asker.now_s)
            to = self.dice.randint(log.first_offset, log.visible_end)
            self.asker.ask(Kind.SEEK, bodies.Seek(topic, name, "offset", to))

    def _leave(self, topic: bytes, name: bytes) -> None:
        """Take down what a subscriber has, before it goes elsewhere."""
        self.asker.settle()
        acked = self.acked[topic, name]
        for stamp, (read, first, count) in self.put_keys.items():
            if read == topic and set(range(first, first + count)) <= acked:
                self.left_with.add((stamp, name))
        self.acked[topic, name] = set()
        self.tokens.pop((topic, name), None)

    def put(self, topic: bytes) -> None:
        if not any(key[0] == topic for key in self.begun):
            return
        count = self.dice.choice((1, 1, 3))
        number = self.numbers[topic] = self.numbers.get(topic, 0) + 1
        packed = self.asker.batch(self.publisher, number, *[b"payload"] * count)
        done = body_of(self.asker.put(topic, packed), bodies.PutDone)
        self.put_keys[self.asker.last_stamp] = (topic, done.first_offset, count)

    def ack(self, topic: bytes, name: bytes) -> None:
        if (topic, name) not in self.begun:
            return
        if (topic, name) not in self.tokens:
            self.tokens[topic, name] = self.asker.attach(topic, name, self.dice.randbytes(8)).token
        self.asker.settle()
        end = self.asker.state.topics[topic].visible_end
        cursor = self.asker.state.topics[topic].subscriptions[name].acked.cursor
        if cursor == end:
            return
        start = self.dice.choice((cursor, cursor, self.dice.randrange(cursor, end)))
        stop = self.dice.randrange(start, end) + 1
        body_of(self.asker.ack(topic, self.tokens[topic, name], (start, stop), name=name), bodies.Done)
        self.acked[topic, name] |= set(range(start, stop))
        self.had |= {(topic, name, offset) for offset in range(start, stop)}

    def check(self) -> None:
        """Each batch that was put, or received whole, is noted: saved or not."""
        self.asker.settle()
        names = self.names | self.tracker._numbers
        for stamp, (topic, first, count) in self.put_keys.items():
            who = 1 << 32 | self.publisher
            claims = {claim.history for claim in self.tracker.seen((who, stamp)) if not claim.parts}
            published = HistoryName("publisher", 1)
            assert published in claims or (names[published], who, stamp) in self.saved
            for (read, name), acked in self.acked.items():
                history = HistoryName("subscriber", 1, 0, name)
                has = history in claims or (names.get(history, -1), who, stamp) in self.saved
                if (stamp, name) in self.left_with:
                    assert has, "it had it when it went elsewhere, and that is not noted"
                if read != topic:
                    continue
                if (read, name) in self.begun and set(range(first, first + count)) <= acked:
                    number = self.asker.store.topic(topic).number  # type: ignore[union-attr]
                    (row,) = [each for each in self.asker.store.subscriptions(number) if each.name == name]
                    assert has or row.cursor < first + count, "it has it, and that is not noted"
                elif not any((topic, name, offset) in self.had for offset in range(first, first + count)):
                    assert not has, "it never had it"


@pytest.mark.parametrize("seed", range(30))
def test_notes_have_no_gaps(seed: int) -> None:
    tracked = Tracked(seed)
    dice = tracked.dice
    for _ in range(150):
        topic, name = dice.choice(_TOPICS), dice.choice(_NAMES)
        what = dice.choices(_DONE, _OFTEN)[0]
        if what == "subscribe":
            tracked.subscribe(topic, name)
        elif what == "put":
            tracked.put(topic)
        elif what == "ack":
            tracked.ack(topic, name)
        elif what == "save":
            tracked.asker.settle()
            tracked.save(fails=dice.random() < 0.2)
        elif what == "unsubscribe":
            tracked.unsubscribe(topic, name)
        elif what == "seek":
            tracked.seek(topic, name)
        elif what == "crash":
            tracked.crash()
        else:
            tracked.asker.now_s += 1.1
            tracked.asker.engine.tick(tracked.asker.now)
            tracked.asker.settle()
    tracked.check()
    assert tracked.put_keys


class Trimmed:
    """A topic that lets go of what a subscriber has not read, and that subscriber, who acks what it is told is gone."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.asker, self.tracker = Asker(), Tracker()
        self.asker.engine = Engine(self.asker.store, self.asker.limits, tracker=self.tracker)
        self.publisher = self.asker.register()
        self.asker.subscribe(b"a", b"x")
        self.asker.ask(Kind.CONFIGURE, bodies.Configure(b"a", "keep", {"max_bytes": 400, "at_bound": "trim"}))
        self.batches: list[tuple[int, int]] = []  # by stamp, from 1 on: first offset and end
        self.sent: set[int] = set()  # that it may ack
        self.done: set[int] = set()  # that it acked, gone or not
        self.had: set[int] = set()
        self.gone = 0  # how often it was told
        self.attach()

    def attach(self) -> None:
        self.token = self.asker.attach(b"a", b"x", self.dice.randbytes(8)).token
        self.position = self.cursor
        self.sent = set()

    @property
    def cursor(self) -> int:
        return int(self.asker.state.topics[b"a"].subscriptions[b"x"].acked.cursor)

    def put(self) -> None:
        for _ in range(self.dice.choice((1, 1, 4))):
            count = self.dice.choice((1, 2, 3))
            packed = self.asker.batch(self.publisher, len(self.batches) + 1, *[b"x" * 40] * count)
            done = body_of(self.asker.put(b"a", packed), bodies.PutDone)
            self.batches.append((done.first_offset, done.first_offset + count))
        if self.dice.random() < 0.3 and self.asker.engine.tracks.take() is not None:  # which lets go of keys
            self.asker.engine.tracks.failed()  # so all are still to be seen here

    def get(self) -> None:
        reply = self.asker.get(b"a", self.token, self.position, self.dice.choice((1, 2, 100)), b"x")
        if reply.kind == Kind.MESSAGES:
            first, _ = body_of(reply, bodies.Delivery).batches[-1]
            end = first + Batch.parse(bytes(reply.blobs[-1])).count
            self.sent |= set(range(self.position, end)) - self.done
            self.position = end
        elif reply.kind == Kind.REFUSED:
            start, stop = body_of(reply, bodies.Refused).gone or (0, 0)
            assert start < stop
            self.gone += 1
            self._ack(start, stop)
            self.position = stop

    def ack(self) -> None:
        if self.sent:
            start = self.dice.choice((min(self.sent), self.dice.choice(sorted(self.sent))))
            stop = start + 1
            while stop in self.sent and self.dice.random() < 0.7:
                stop += 1
            self.had |= set(range(start, stop))
            self.sent -= self.had
            self._ack(start, stop)

    def _ack(self, start: int, stop: int) -> None:
        body_of(self.asker.ack(b"a", self.token, (start, stop), name=b"x"), bodies.Done)
        self.done |= set(range(start, stop))

    def noted(self) -> set[int]:
        """Return the offsets of messages that it is said to have."""
        found: set[int] = set()
        for stamp, (first, end) in enumerate(self.batches, 1):
            for claim in self.tracker.seen((1 << 32 | self.publisher, stamp)):
                if claim.history.kind == "subscriber":
                    found |= {
                        first + place for low, high in claim.parts or [(0, end - first)] for place in range(low, high)
                    }
        return found


@pytest.mark.parametrize("seed", range(30))
def test_of_what_a_topic_lets_go_of_a_subscriber_has_what_it_was_sent_before(seed: int) -> None:
    trimmed = Trimmed(seed)
    for _ in range(200):
        what = trimmed.dice.choices(("put", "get", "ack", "attach"), (5, 4, 5, 0.3))[0]
        getattr(trimmed, what)()
    ended = {each for first, end in trimmed.batches if end <= trimmed.cursor for each in range(first, end)}
    assert trimmed.had & ended <= trimmed.noted() <= trimmed.had
    assert trimmed.gone
