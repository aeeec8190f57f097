"""The scheme of *Low-Overhead Message Tracking for Distributed Messaging* as it is written, a key for each message: the
experiment's messages, the 21 configurations of its Table 2, and what each stores. Pure: times are arguments.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from clarion.tracking.accuracy import efpp_of
from clarion.tracking.bloom import BloomFilter, Keys, Shape, false_positives, salts_of

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

ID_BYTES = 16  # publisher 4, broker 4, time stamp 6, counter 2 (Table 1)
MATCHING = 2  # filters that may have one stamp
_BROKER = 1
_BEGIN_MS = 1_100_000_000_000  # stamps are of 2004, as the document is: six bytes, of which the first ones stay
_SAMPLED = 8  # stored buffers of a kind that are built and compressed; all others are like them
_SALT = 5
_GZIP_LEVEL = 6  # gzip's own


@dataclass(frozen=True, slots=True)
class Load:
    """The experiment: one broker, its publishers and subscribers, and how much is put."""

    publishers: int = 200
    subscribers: int = 500  # of one topic each
    topics: int = 500
    topics_each: int = 10  # of a publisher
    per_s: float = 5000.0  # messages, of all publishers
    seed: int = 1

    def topics_of_publishers(self) -> Numbers:
        """Return the topics of each publisher, a row each: every topic has as many publishers, or one more or less."""
        dice = np.random.default_rng([self.seed, 1])
        wanted = self.publishers * self.topics_each
        shuffled = [dice.permutation(self.topics) for _ in range(-(-wanted // self.topics))]
        return np.concatenate(shuffled)[:wanted].reshape(self.publishers, self.topics_each)

    def topics_of_subscribers(self) -> Numbers:
        """Return the topic of each subscriber, drawn at random: some topics have several, some none."""
        return np.random.default_rng([self.seed, 2]).integers(0, self.topics, self.subscribers)


class Traffic(NamedTuple):
    """Messages in the order in which they come, and who gets them."""

    seconds: float
    at_s: Times
    keys: Keys
    message: Numbers  # of a delivery: which message
    subscriber: Numbers  # and to whom

    @property
    def delivered(self) -> float:
        """Deliveries for each message."""
        return len(self.message) / len(self.at_s)


def make_traffic(load: Load, seconds: float) -> Traffic:
    """Return messages of so long: each publisher puts at an even pace, at random within each of its gaps (an order that
    repeats itself would compress better than any real one does), and on its topics in turn."""
    dice = np.random.default_rng([load.seed, 3])
    gap_s = load.publishers / load.per_s
    each = max(1, int(seconds / gap_s))
    turns = np.arange(each) + dice.random((load.publishers, each))
    publisher = np.repeat(np.arange(load.publishers), each)
    topic = load.topics_of_publishers()[publisher, np.tile(np.arange(each) % load.topics_each, load.publishers)]
    at_s = turns.ravel() * gap_s
    order = np.argsort(at_s, kind="stable")
    at_s, publisher, topic = at_s[order], publisher[order], topic[order]
    stamps = (_BEGIN_MS + (at_s * 1e3).astype(np.uint64)) << np.uint64(16)
    keys = np.stack([(_BROKER << 32) + publisher.astype(np.uint64) + np.uint64(1), stamps], axis=1)
    readers = load.topics_of_subscribers()
    by_topic = np.argsort(readers, kind="stable")
    starts = np.searchsorted(readers[by_topic], np.arange(load.topics + 1))
    counts = np.diff(starts)[topic]
    message = np.repeat(np.arange(len(topic)), counts)
    within = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Traffic(seconds, at_s, keys, message, by_topic[starts[topic[message]] + within])


Strategy = Literal["NULL", "ASYNC", "BF"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A row of Table 2."""

    strategy: Strategy
    buffer: str = ""
    accuracy: float = 1.0
    capacity: int = 0  # n: messages of a full buffer
    bits: int = 0  # m
    hashes: int = 0  # k
    persist_s: float = 0.0  # T_p
    stores_full: bool | None = None  # as the document says

    @property
    def name(self) -> str:
        """The row in a few words: BF 10K 99.999% 1s."""
        if self.strategy == "NULL":
            return "NULL"
        accuracy = f" {self.accuracy * 100:g}%" if self.strategy == "BF" else ""
        return f"{self.strategy} {self.buffer}{accuracy} {self.persist_s:g}s"

    @property
    def efpp(self) -> float:
        """The chance that a history of full filters claims a message that it never had (Eq. 1 and 2)."""
        return efpp_of(false_positives(self.bits, self.hashes, self.capacity), MATCHING) if self.bits else 0.0

    @property
    def full_bytes(self) -> int:
        """How much a full buffer takes."""
        return self.bits // 8 if self.bits else self.capacity * ID_BYTES

    def stored_bytes(self, count: int) -> int:
        """Return what a buffer with so many messages takes on disk: a filter takes the same, full or not."""
        return self.bits // 8 if self.bits else count * ID_BYTES


def _async(buffer: str, size: int, persist_s: float, stores_full: bool) -> Configuration:
    return Configuration("ASYNC", buffer, 1.0, size // ID_BYTES, persist_s=persist_s, stores_full=stores_full)


_64K, _1M = 1 << 16, 1 << 20
_SMALL = {0.99999: (2521, _64K, 16), 0.99: (5461, _64K, 8), 0.95: (7281, _64K, 8)}
_LARGE = {0.99999: (38_836, _1M, 12), 0.99: (87_381, _1M, 6), 0.95: (131_072, _1M, 6)}


def _filters(buffer: str, persist_s: float, rows: dict[float, bool]) -> Iterator[Configuration]:
    for accuracy, stores_full in rows.items():
        shape = (_SMALL if buffer == "10K" else _LARGE)[accuracy]
        yield Configuration("BF", buffer, accuracy, *shape, persist_s, stores_full)


TABLE_2: tuple[Configuration, ...] = (
    Configuration("NULL"),
    _async("10K", 10_000, 1, True),
    _async("135K", 135_000, 1, False),
    _async("135K", 135_000, 2, True),
    *_filters("10K", 1, {0.99999: True, 0.99: False, 0.95: False}),
    *_filters("10K", 2, {0.99: True, 0.95: True}),
    *_filters("135K", 1, {0.99999: False, 0.99: False, 0.95: False}),
    *_filters("135K", 2, {0.99999: False, 0.99: False, 0.95: False}),
    *_filters("135K", 8, {0.99999: True, 0.99: False, 0.95: False}),
    *_filters("135K", 18, {0.99: True, 0.95: False}),
    *_filters("135K", 27, {0.95: True}),
)


class Stored(NamedTuple):
    """A buffer that was forced to disk: which entries of its history it has, and when."""

    start: int
    stop: int
    at_s: float


def cut(at_s: Times, capacity: int, persist_s: float, until_s: float) -> list[Stored]:
    """Return the buffers of one history: each is stored when it is full, or T_p after it was begun unless it is empty.
    What is not stored at the end is left out."""
    stored: list[Stored] = []
    start, begun_s = 0, 0.0
    while True:
        due_s = begun_s + persist_s
        last = start + capacity - 1
        if last < len(at_s) and at_s[last] <= min(due_s, until_s):
            begun_s = float(at_s[last])
            stored.append(Stored(start, last + 1, begun_s))
            start = last + 1
        elif due_s > until_s:
            return stored
        else:
            stop = int(np.searchsorted(at_s, due_s, side="right"))
            if stop > start:
                stored.append(Stored(start, stop, due_s))
            start, begun_s = stop, due_s


Layout = Literal["publisher", "together", "each"]
LAYOUTS: dict[Layout, str] = {
    "publisher": "the publisher history alone",
    "together": "and one buffer for all deliveries",
    "each": "and one buffer for each subscriber",
}


class Kept(NamedTuple):
    """What histories of one kind store."""

    histories: int
    forces_per_s: float
    full: float  # share of stored buffers that are
    fill: float  # mean share of their capacity that they have
    bytes_per_entry: float
    gzip_per_entry: float
    memory_bytes: int  # of what is not stored yet, at most


class Outcome(NamedTuple):
    """What a configuration takes, by which histories there are; bytes are for each message that is routed."""

    configuration: Configuration
    publisher: Kept
    together: Kept
    each: Kept
    delivered: float  # deliveries for each message

    def bytes_per_message(self, layout: Layout) -> float:
        """Return how much is stored for a message, in the publisher history and in those of its subscribers."""
        more = 0.0 if layout == "publisher" else self.delivered * self._delivering(layout).bytes_per_entry
        return self.publisher.bytes_per_entry + more

    def gzip_per_message(self, layout: Layout) -> float:
        """Return the same with each stored buffer compressed."""
        more = 0.0 if layout == "publisher" else self.delivered * self._delivering(layout).gzip_per_entry
        return self.publisher.gzip_per_entry + more

    def overwritten_per_message(self, layout: Layout) -> float:
        """Return the room where a partly full filter stays in memory, and its stored copy is overwritten until it is
        full, as the document's conclusion proposes: full buffers alone take room."""
        chosen = self.configuration
        entries = 1.0 + (0.0 if layout == "publisher" else self.delivered)
        return entries * chosen.full_bytes / chosen.capacity if chosen.capacity else 0.0

    def forces_per_s(self, layout: Layout) -> float:
        """Return how often something is forced to disk."""
        more = 0.0 if layout == "publisher" else self._delivering(layout).forces_per_s
        return self.publisher.forces_per_s + more

    def memory_bytes(self, layout: Layout) -> int:
        """Return how much waits in memory at most."""
        more = 0 if layout == "publisher" else self._delivering(layout).memory_bytes
        return self.publisher.memory_bytes + more

    def _delivering(self, layout: Layout) -> Kept:
        return self.each if layout == "each" else self.together


_NOTHING = Kept(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)


class _History(NamedTuple):
    at_s: Times
    keys: Keys


def model(
    load: Load,
    seconds: float,
    configurations: Sequence[Configuration] = TABLE_2,
    *,
    on_done: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Return what each configuration stores of so many seconds of the experiment."""
    traffic = make_traffic(load, seconds)
    published = [_History(traffic.at_s, traffic.keys)]
    keys = traffic.keys[traffic.message]
    salts = salts_of(_SALT, np.arange(load.subscribers, dtype=np.uint64))
    # One filter for all deliveries must tell subscribers apart; one buffer of ids, as the document counts, does not.
    salted = keys.copy()
    salted[:, 0] ^= salts[traffic.subscriber]
    at_s = traffic.at_s[traffic.message]
    by_subscriber = np.argsort(traffic.subscriber, kind="stable")
    edges = np.searchsorted(traffic.subscriber[by_subscriber], np.arange(load.subscribers + 1)).tolist()
    places = [by_subscriber[start:stop] for start, stop in pairwise(edges)]
    each = [_History(at_s[some], keys[some]) for some in places]
    outcomes = []
    for chosen in configurations:
        together = [_History(at_s, salted if chosen.bits else keys)]
        first, second, third = (_keep(chosen, some, seconds) for some in (published, together, each))
        outcomes.append(Outcome(chosen, first, second, third, traffic.delivered))
        if on_done is not None:
            on_done()
    return outcomes


def _keep(chosen: Configuration, histories: Sequence[_History], seconds: float) -> Kept:
    """Return what histories of one kind store; some buffers are built and compressed, evenly chosen among all."""
    if chosen.strategy == "NULL":
        return _NOTHING
    found = [
        (history, one) for history in histories for one in cut(history.at_s, chosen.capacity, chosen.persist_s, seconds)
    ]
    memory = len(histories) * chosen.bits // 8
    if not chosen.bits:
        largest = max((one.stop - one.start for _, one in found), default=0)
        memory = len(histories) * min(largest, chosen.capacity) * ID_BYTES
    if not found:
        return _NOTHING._replace(histories=len(histories), memory_bytes=memory)
    counts = np.array([one.stop - one.start for _, one in found])
    plain = sum(chosen.stored_bytes(count) for count in counts.tolist())
    sample = [found[at] for at in np.linspace(0, len(found) - 1, min(_SAMPLED, len(found))).round().astype(int)]
    bodies = [buffer_of(chosen, history.keys[one.start : one.stop]) for history, one in sample]
    ratio = sum(len(gzip.compress(body, _GZIP_LEVEL, mtime=0)) for body in bodies) / sum(map(len, bodies))
    entries = int(counts.sum())
    return Kept(
        len(histories),
        len(found) / seconds,
        float(np.mean(counts == chosen.capacity)),
        float(np.mean(counts / chosen.capacity)),
        plain / entries,
        plain * ratio / entries,
        memory,
    )


def buffer_of(chosen: Configuration, keys: Keys) -> bytes:
    """Return a buffer with these messages as it is stored: a filter, or their ids one after the other."""
    if chosen.bits:
        built = BloomFilter(Shape(chosen.bits, chosen.hashes))
        built.add(keys)
        return built.to_bytes()
    ids = np.empty((len(keys), 2), dtype=">u8")
    who = keys[:, 0]
    ids[:, 0] = (who & np.uint64(0xFFFFFFFF)) << np.uint64(32) | who >> np.uint64(32)  # publisher, then broker
    ids[:, 1] = keys[:, 1]
    return ids.tobytes()
