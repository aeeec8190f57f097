"""Power cuts: what a real broker wrote is replayed up to any moment, without what was not synced, and opened again.

`python -m tests.integration.power_cuts --cuts 20000` exits with 1 when something acked is lost, or a store stays shut.

A broker is recorded (recording.py) while clients have it do all that a store has to do. Then the disk is made as a
power cut could have left it at any moment of that. The disk of the model keeps its word and does nothing else:

* What was written to a file is there for sure after an fsync or fdatasync of that file. Without, any part of it may be
  there: pages of 4 KB or sectors of 512 bytes, of any write, in any order; and the file as long as it was at any time.
* A name made, changed or removed is so for sure after an fsync of its folder; without, it may be so or not.

The store is opened on what is left. It must have exactly what was committed up to some commit that is not older than
the last one anybody was told of, and take new commits. A start after a cut is recorded and cut, too.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.broker_process import BrokerProcess
from tests.integration.planted_bugs import planted
from tests.integration.recorded_broker import BUG, MARKS, STORE_SETTINGS
from tests.integration.recording import Call, calls_in
from tests.integration.sharing import ack_all, take, take_one, worker
from tests.unit.store.making import everything

from clarion import Admin, Publisher, Stager, Subscriber, commit_staged
from clarion.model.errors import ClarionError
from clarion.store.memory import MemoryStore
from clarion.store.port import KEEP, Changes, Store, StoredBatch, TopicRow
from clarion.store.records import MAGIC
from clarion.store.recovery import Beginning
from clarion.store.segmented import SegmentedStore
from clarion.wire.batch import encode_batch

WAIT_S = 60.0
SECTOR, PAGE = 512, 4096
_GOES_ON = 10  # one in so many is tried further
_NEAR = 30  # calls after a name was changed
_CUTS_WITHIN = 60
_CUTS_OF_ONE, _AGAIN_OF_ONE = 2000, 10  # recording, in a long campaign

# The disk.

Image = dict[str, bytes | None]  # what is in the files by their paths; None is a folder


@dataclass(eq=False)
class File:
    """A file: as it is, as it is on disk for sure, and what happened to it since."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and data; or size and None

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        _put(self.content, offset, data)

    def resize(self, size: int) -> None:
        self.pending.append((size, None))
        _resize(self.content, size)

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def left(self, way: str, dice: random.Random) -> bytes:
        """Return what a power cut leaves of it."""
        if way == "none" or not self.pending:
            return self.durable
        if way == "all":
            return bytes(self.content)
        last = dice.randrange(len(self.pending)) if way == "torn" else len(self.pending) - 1
        unit = SECTOR if way == "torn" else dice.choice((SECTOR, PAGE))
        chance = dice.choice((0.1, 0.5, 0.9))
        sized = last if way == "torn" else dice.randrange(len(self.pending) + 1)  # up to here the length is known
        content, size = bytearray(self.durable), len(self.durable)
        for place, (offset, data) in enumerate(self.pending[: last + 1]):
            if data is None:
                if place < sized:
                    _resize(content, offset)
                elif offset < size:  # What was written after this lies elsewhere on the disk.
                    break
            else:
                for at, piece in _pieces(offset, data, unit):
                    is_before_the_torn = way == "torn" and place < last
                    if is_before_the_torn or dice.random() < chance:
                        _put(content, at, piece)
            if place < sized:
                size = offset if data is None else max(size, offset + len(data))
        _resize(content, size)
        return bytes(content)


@dataclass(eq=False)
class Folder:
    """A folder: its names as they are, as they are on disk for sure, and what happened to them since."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[Node, str, str]] = field(default_factory=list)  # its old name, if any, and its new one, if any

    def change(self, node: Node, old: str, new: str) -> None:
        """Have a node called `old` be called `new`; without one it is made, or gone."""
        self.pending.append((node, old, new))
        _rename(self.names, node, old, new)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def left(self, way: str, dice: random.Random) -> dict[str, Node]:
        """Return the names that a power cut leaves. What happened to one node is there in order, up to somewhere."""
        if way == "all":
            return self.names
        counts = Counter(id(node) for node, _, _ in self.pending)
        kept = {node: 0 if way == "none" else dice.randint(0, count) for node, count in counts.items()}
        names = dict(self.durable)
        for node, old, new in self.pending:
            if kept[id(node)] > 0:
                kept[id(node)] -= 1
                _rename(names, node, old, new)
        return names


Node = File | Folder


class Disk:
    """The folder that was recorded, as it is at some call; in the beginning as a power cut left it."""

    def __init__(self, image: Image) -> None:
        self._root = Folder()
        self._files: dict[int, File] = {}  # by the number of the inode
        for path, content in image.items():
            folder, _, name = path.rpartition("/")
            place = self._node(folder)
            assert isinstance(place, Folder)
            place.names[name] = Folder() if content is None else File(bytearray(content), content)
            place.sync()

    def apply(self, call: Call) -> None:
        """Do what was recorded."""
        kind, what = call.kind, call.what
        if kind == "write":
            self._files[what[0]].write(what[1], what[2])
        elif kind == "resize":
            self._files[what[0]].resize(what[1])
        elif kind == "sync":
            self._files[what[0]].sync()
        elif kind == "sync names":
            node = self._node(what[0])
            assert isinstance(node, Folder)
            node.sync()
        elif kind == "found":
            node = self._node(what[0])
            assert isinstance(node, File) == (what[1] is not None), f"{what[0]} came into being unseen"
            if isinstance(node, File):
                self._files[what[1]] = node
        elif kind != "mark":
            self._change_names(kind, *what)

    def _change_names(self, kind: str, path: str, more: Any = None) -> None:
        folder, _, name = path.rpartition("/")
        place = self._node(folder)
        assert isinstance(place, Folder)
        if kind == "create":
            self._files[more] = File()
            place.change(self._files[more], "", name)
        elif kind == "mkdir":
            place.change(Folder(), "", name)
        elif kind == "unlink":
            place.change(place.names[name], name, "")
        else:
            assert kind == "rename", kind
            assert more.rpartition("/")[0] == folder, f"{path} goes to another folder, {more}"
            place.change(place.names[name], name, more.rpartition("/")[2])

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for part in path.split("/") if path not in ("", ".") else ():
            assert isinstance(node, Folder)
            node = node.names[part]
        return node

    def is_large(self, file: int) -> bool:
        """Tell whether a record of the log waits to be synced that a power cut could tear."""
        return any(data and data.startswith(MAGIC) and len(data) > 2 * SECTOR for _, data in self._files[file].pending)

    def left(self, ways: Ways, dice: random.Random) -> Image:
        """Return what a power cut leaves now."""
        names = _walk("", self._root, lambda _: ways.names, dice)
        return {
            path: node.left(ways.of(path, dice), dice) if isinstance(node, File) else None
            for path, node in names
            if path
        }


class Ways(NamedTuple):
    """What becomes of names, of the log's files, and of the others: none, all, torn, some, or any of these by file."""

    names: str
    log: str
    rest: str

    def of(self, path: str, dice: random.Random) -> str:
        way = self.log if "/log/" in path else self.rest
        return dice.choice(("none", "all", "torn", "some")) if way == "any" else way


NOTHING, EVERYTHING, ANYTHING = Ways("none", "none", "none"), Ways("all", "all", "all"), Ways("any", "any", "any")
INDEX_AHEAD, INDEX_BEHIND = Ways("all", "none", "all"), Ways("all", "all", "none")
TORN_LOG, TORN_INDEX, NO_NAMES = Ways("any", "torn", "any"), Ways("any", "all", "some"), Ways("none", "all", "all")

# Where the power is cut, and how; each is as likely. Most bugs show at few moments, and there in one way.
PLANS = [
    *(("promised", ways) for ways in (NOTHING, NO_NAMES, INDEX_AHEAD, INDEX_BEHIND)),
    *(("settling", ways) for ways in (NOTHING, NO_NAMES, INDEX_AHEAD, INDEX_BEHIND, ANYTHING)),
    *(("large", TORN_LOG), ("large", TORN_LOG), ("doubted", TORN_LOG), ("doubted", TORN_INDEX)),
    *(("opening", ways) for ways in (NOTHING, ANYTHING)),
    *(("any", ways) for ways in (EVERYTHING, ANYTHING)),
]


def _walk(
    path: str, node: Node, way_of: Callable[[str], str], dice: random.Random | None = None
) -> Iterator[tuple[str, Node]]:
    yield path, node
    if isinstance(node, Folder):
        names = node.left(way_of(path), dice or random.Random(0))
        for name, below in sorted(names.items()):
            yield from _walk(f"{path}/{name}".lstrip("/"), below, way_of, dice)


def _rename(names: dict[str, Node], node: Node, old: str, new: str) -> None:
    if old and names.get(old) is node:
        del names[old]
    if new:
        names[new] = node


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _pieces(offset: int, data: bytes, unit: int) -> Iterator[tuple[int, bytes]]:
    """Cut what is written into what a disk takes as a whole."""
    at = offset
    while at < offset + len(data):
        end = min((at // unit + 1) * unit, offset + len(data))
        yield at, data[at - offset : end - offset]
        at = end


def write_image(folder: Path, image: Image) -> None:
    """Make a folder as a power cut left it."""
    folder.mkdir(parents=True)
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


# The recording.


class Fact(NamedTuple):
    """What a client was told: this payload is at this offset of a topic that keeps all, or (None) is acked up to it."""

    at_ns: int
    topic: bytes
    offset: int
    payload: bytes | None


@dataclass
class Recording:
    """All calls of a broker's lives, and what clients were told meanwhile."""

    calls: list[Call]
    facts: list[Fact]
    folder: Path  # as it was in the end


def recorded_broker(folder: Path, bug: str | None) -> BrokerProcess:
    """Return a broker whose data folder is below folder/disk, and that is recorded."""
    disk, out, marks = (folder / name for name in ("disk", "calls", "marks"))
    for made in (disk, out):
        made.mkdir(parents=True, exist_ok=True)
    recorded = ["env", f"{MARKS}={marks}", f"{BUG}={bug or ''}"]
    recorded += [sys.executable, "-m", "tests.integration.recording", str(out), str(disk), str(marks)]
    return BrokerProcess(
        disk / "data", log=folder / "log", within=recorded, module="tests.integration.recorded_broker",
        stale_msg_interval_s=0.02, least_hold_s=0.0,
    )  # fmt: skip


def record_work(folder: Path, bug: str | None = None, rounds: tuple[int, ...] = (3, 1)) -> Recording:
    """Have a broker work, die and come back, stop and come back, and give what it did to its folder."""
    broker = recorded_broker(folder, bug)
    try:
        facts = _Work(broker).run(rounds)
    finally:
        broker.close()
    return Recording(_calls_below(folder), facts, folder / "disk")


def record_opening(folder: Path, image: Image, bug: str | None = None) -> Recording:
    """Have a broker start and stop on what a power cut left, and give what it did to that."""
    write_image(folder / "disk", image)
    broker = recorded_broker(folder, bug)
    try:
        broker.start()
        assert broker.stop() == 0, broker.said()
    finally:
        broker.close()
    return Recording(_calls_below(folder), [], folder / "disk")


def _calls_below(folder: Path) -> list[Call]:
    lives = sorted((folder / "calls").iterdir(), key=lambda file: int(file.name))
    return [call for life in lives for call in calls_in(life)]


class _Work:
    """What clients do, so that the store has to do everything it can."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._facts: list[Fact] = []
        self._number = 0

    def run(self, rounds: tuple[int, ...]) -> list[Fact]:
        """Do so many rounds in each life, of which the first is broken off by a kill."""
        self._broker.start(crash_at="inside-commit:35")
        watcher = threading.Thread(target=self._start_again)
        watcher.start()
        self._do(rounds[0])
        watcher.join()
        assert self._broker.stop() == 0, self._broker.said()
        for more in rounds[1:]:
            self._broker.start()
            self._do(more)
            assert self._broker.stop() == 0, self._broker.said()
        return self._facts

    def _start_again(self) -> None:
        assert self._broker.wait() == 128 + signal.SIGKILL, self._broker.said()
        self._broker.start()

    def _do(self, rounds: int) -> None:
        url = self._broker.url
        with (
            Admin(url, timeout_s=WAIT_S) as admin,
            Publisher(url) as publisher,
            Subscriber(url, "reader", ack="explicit", timeout_s=WAIT_S) as reader,
            worker(url) as workers,
        ):
            admin.configure_topic("kept", retention="keep")
            for topic in ("kept", "work", "many/#", "clean", "later"):
                reader.subscribe(topic)
            workers.subscribe("work", shared=True, max_attempts=2)
            for place in range(rounds):
                self._work_and_trim(publisher, reader, workers)
                self._bury(admin, publisher, workers, reader)
                self._delay(publisher, reader)
                self._stage(url, place)
                self._transact(publisher, reader)
                self._administer(admin, publisher, reader, place)

    def _payload(self, size: int) -> bytes:
        self._number += 1
        return b"%d " % self._number + random.Random(self._number).randbytes(size)

    def _keep(self, publisher: Publisher, size: int) -> None:
        payload = self._payload(size)
        offset = publisher.put("kept", payload).result(WAIT_S).offset
        assert offset is not None
        self._facts.append(Fact(time.monotonic_ns(), b"kept", offset, payload))

    def _work_and_trim(self, publisher: Publisher, reader: Subscriber, workers: Subscriber) -> None:
        """Fill segments with what is soon gone, and with little that stays and is moved."""
        for place in range(15):
            publisher.put("work", self._payload(1500)).result(WAIT_S)
            if place % 5 == 0:
                self._keep(publisher, 100)
        ack_all(reader, take(reader, "work", 15))
        ack_all(workers, take(workers, "work", 15))
        kept = take(reader, "kept", 3)
        ack_all(reader, kept)
        self._facts.append(Fact(time.monotonic_ns(), b"kept", kept[-1].offset + 1, None))

    def _bury(self, admin: Admin, publisher: Publisher, workers: Subscriber, reader: Subscriber) -> None:
        publisher.put("work", self._payload(300)).result(WAIT_S)
        ack_all(reader, take(reader, "work", 1))
        for _ in range(2):
            take_one(workers, "work").nack(reason="for the dead letters")
        workers.flush_acks()
        admin.replay_dead("work")
        ack_all(workers, take(workers, "work", 1))

    def _delay(self, publisher: Publisher, reader: Subscriber) -> None:
        now = datetime.now(UTC)
        publisher.put("later", self._payload(300), deliver_at=now + timedelta(seconds=0.05)).result(WAIT_S)
        publisher.put("later", self._payload(300), deliver_at=now + timedelta(days=1)).result(WAIT_S)
        ack_all(reader, take(reader, "later", 1))

    def _stage(self, url: str, place: int) -> None:
        writer = f"writer {self._number}"
        for epoch in range(1, 3):
            with Stager(url, writer=writer, epoch=epoch, part=b"a") as stager:
                stager.put_many("clean", [self._payload(400) for _ in range(3)])
        assert commit_staged(url, writer, 1, parts=[b"a"], messages=3).messages == 3

    def _transact(self, publisher: Publisher, reader: Subscriber) -> None:
        for message in take(reader, "clean", 3):
            with reader.transaction() as transaction:
                transaction.put("kept", self._payload(200))
                transaction.set("last", str(message.offset))
                transaction.ack(message)
        ack_all(reader, take(reader, "kept", 3))

    def _administer(self, admin: Admin, publisher: Publisher, reader: Subscriber, place: int) -> None:
        topics = [f"many/{self._number}/{topic}" for topic in range(4)]
        for topic in topics:
            publisher.put(topic, self._payload(1000)).result(WAIT_S)
        admin.purge(topics[0])
        admin.delete_topic(topics[1])
        admin.unsubscribe(topics[2], "reader")
        self._keep(publisher, 20_000 if place == 1 else 500)  # once larger than a segment
        ack_all(reader, take(reader, "kept", 1))


# What must hold.


class Lost(AssertionError):
    """A power cut took something that somebody had been told of, or left a store that does not open."""


class Bounds(NamedTuple):
    """At some moment: how many commits were told and begun, and of how many facts clients know."""

    told: int
    begun: int
    facts: int


class Truth:
    """What was committed, and told, by when."""

    def __init__(self, recording: Recording, before: Sequence[Changes] = ()) -> None:
        self._facts = recording.facts
        self._changes = list(before)
        self.bounds: list[Bounds] = []  # before each call, and after the last
        times_ns = [fact.at_ns for fact in recording.facts]
        told = before_this_life = len(before)
        for call in recording.calls:
            self.bounds.append(Bounds(told, len(self._changes), bisect_right(times_ns, call.at_ns)))
            if call.kind == "mark":
                what, *more = pickle.loads(call.what[0])
                if what == "begun":
                    self._changes += more
                elif what == "opened":  # What a broker finds it serves.
                    told = before_this_life = len(self._changes)
                else:
                    told = before_this_life + more[0]
        self.bounds.append(Bounds(told, len(self._changes), len(times_ns)))
        publishers = {number for changes in self._changes for number in changes.publishers}
        writers = {row.writer for changes in self._changes for row, _ in changes.staged}
        self._asked: dict[str, Any] = {"publishers": tuple(publishers), "writers": tuple(writers), "epochs": 3}
        self._states = list(self._all_states())

    def _all_states(self) -> Iterator[dict[str, Any]]:
        store = MemoryStore()
        yield self.told_by(store)
        for changes in self._changes:
            store.commit(changes)
            yield self.told_by(store)

    def up_to(self, bounds: Bounds, place: int) -> tuple[list[Fact], list[Changes]]:
        """Return the facts that are known within bounds, and the commits up to one."""
        return [fact._replace(at_ns=0) for fact in self._facts[: bounds.facts]], self._changes[:place]

    def told_by(self, store: Store) -> dict[str, Any]:
        """Return all that a store tells."""
        return everything(store, **self._asked)

    def check(self, store: Store, bounds: Bounds) -> int:
        """Return up to which commit a store has come; raise Lost if that is not one it may have come to."""
        found = self.told_by(store)
        for fact in self._facts[: bounds.facts]:
            self._check_fact(store, fact)
        for place in range(bounds.begun, bounds.told - 1, -1):
            if found == self._states[place]:
                return place
        older = [place for place, state in enumerate(self._states) if state == found]
        wrong = [name for name, value in self._states[bounds.told].items() if found[name] != value]
        raise Lost(f"it has come to commit {older or '?'} of {bounds}: {', '.join(wrong)} are others")

    def _check_fact(self, store: Store, fact: Fact) -> None:
        topic = store.topic(fact.topic)
        if topic is None:
            raise Lost(f"{fact.topic!r} is gone")
        if fact.payload is None:
            cursors = {row.name: row.cursor for row in store.subscriptions(topic.number)}
            if cursors[b"reader"] < fact.offset:
                raise Lost(f"reader stands at {cursors[b'reader']} and was told that {fact.offset} is acked")
        elif not any(fact.payload in bytes(batch.data) for batch in store.batches(topic.number, fact.offset, 1, 1)):
            raise Lost(f"the message at {fact.offset} of {fact.topic!r} is gone")


class _UnmendedStore(SegmentedStore):
    """Does not mend an index, which no power cut may damage."""

    def _make_again(self, log: Beginning, reason: str, page_bytes: int) -> None:
        raise Lost(f"the index would have to be made again: {reason}")


class Cut(NamedTuple):
    """A power cut before a call."""

    at: int
    ways: Ways
    seed: int


class Campaign:
    """Cuts the power in a recording, at many moments and in many ways."""

    def __init__(
        self,
        recording: Recording,
        folder: Path,
        bug: str | None = None,
        start: Image | None = None,
        before: Sequence[Changes] = (),
    ) -> None:
        self._folder, self._bug, self._start = folder, bug, start or {}
        self._calls, self._truth = recording.calls, Truth(recording, before)
        self._came_to: dict[bytes, tuple[int, int]] = {}  # by image: the commit, and how many facts were looked at
        self.counts: Counter[str] = Counter()
        self._moments = self._look_through(recording.folder)

    def within(self, cut: Cut, folder: Path) -> Campaign:
        """Return the campaign that cuts the power again while the broker starts on what a cut left."""
        disk = Disk(self._start)
        for call in self._calls[: cut.at]:
            disk.apply(call)
        image, bounds = disk.left(cut.ways, random.Random(cut.seed)), self._truth.bounds[cut.at]
        facts, changes = self._truth.up_to(bounds, self._open(image, bounds))
        recording = record_opening(folder, image, self._bug)
        return Campaign(Recording(recording.calls, facts, recording.folder), folder, self._bug, image, changes)

    def _look_through(self, real: Path) -> dict[str, list[int]]:
        """Return the moments to cut the power at, by kind; see on the way that nothing went unseen."""
        disk = Disk(self._start)
        found: dict[str, list[int]] = {kind: [] for kind, _ in PLANS}
        is_opening, named_at = True, 0
        for at, call in enumerate(self._calls):
            if call.kind == "mark":  # just before a commit, and just after
                found["promised"].append(at + 1)
                is_opening = is_opening and pickle.loads(call.what[0])[0] != "told"
            elif call.kind in ("sync", "sync names"):
                found["doubted"].append(at)
                if call.kind == "sync" and disk.is_large(call.what[0]):
                    found["large"].append(at)
            elif call.kind in ("found", "create", "mkdir", "rename", "unlink"):
                named_at = at
                is_opening = is_opening or call.kind == "found"
            if is_opening:
                found["opening"].append(at)
            if at < named_at + _NEAR and call.kind in ("mark", "sync", "sync names", "rename", "unlink"):
                found["settling"].append(at + 1)
            disk.apply(call)
        write_image(self._folder / "whole", disk.left(EVERYTHING, random.Random(0)))
        _compare(self._folder / "whole", real)
        shutil.rmtree(self._folder / "whole")
        found["any"] = list(range(len(self._calls) + 1))
        return found

    def run(self, cuts: int, seed: int = 1) -> None:
        """Cut the power so many times by chance, and after each change of names; raise Lost where something is lost."""
        chosen = self.choose(cuts, seed)
        chosen += [Cut(at, ways, 0) for at in self._moments["settling"] for ways in (NOTHING, INDEX_AHEAD)]
        disk, applied = Disk(self._start), 0
        for cut in sorted(chosen):
            for call in self._calls[applied : cut.at]:
                disk.apply(call)
            applied = cut.at
            try:
                self._open(disk.left(cut.ways, random.Random(cut.seed)), self._truth.bounds[cut.at])
            except (ClarionError, Lost) as error:
                raise Lost(f"{cut}: {type(error).__name__}: {error}") from error

    def choose(self, cuts: int, seed: int) -> list[Cut]:
        """Return so many cuts."""
        dice = random.Random(seed)
        plans = [plan for plan in (dice.choice(PLANS) for _ in range(cuts)) if self._moments[plan[0]]]
        return [Cut(dice.choice(self._moments[moment]), ways, dice.randrange(1 << 30)) for moment, ways in plans]

    def _open(self, image: Image, bounds: Bounds) -> int:
        """Open a store on what is left; return the commit that it has come to."""
        digest = hashlib.blake2b(repr(sorted(image.items())).encode()).digest()
        known = self._came_to.get(digest)
        if known and bounds.told <= known[0] <= bounds.begun and bounds.facts <= known[1]:
            self.counts["seen before"] += 1
            return known[0]
        self.counts["opened"] += 1
        folder = self._folder / "image"
        shutil.rmtree(folder, ignore_errors=True)
        write_image(folder, image)
        with planted(self._bug):
            store = _UnmendedStore(folder / "data", **STORE_SETTINGS)
            try:
                place = self._truth.check(store, bounds)
                if self.counts["opened"] % _GOES_ON == 0:
                    self._go_on(store)
            finally:
                store.close()
        self._came_to[digest] = place, bounds.facts
        return place

    def _go_on(self, store: SegmentedStore) -> None:
        """See that what is committed now is there after the next power cut, which takes nothing but the index."""
        number = store.last_topic_number() + 1
        data = bytes(encode_batch([b"after the cut"], broker=1, publisher=1, stamp=1, number=1))
        for first in range(4):
            batch = StoredBatch(number, first, 1, 1, len(data) * (first + 1), data)
            topics = {number: TopicRow(number, b"after the cut", KEEP)}
            store.commit(Changes(topics=topics, batches=[batch]), index_later=first > 0)
        image = self._folder / "later"
        shutil.copytree(store.path, image)
        before = self._truth.told_by(store)
        again = SegmentedStore(image, **STORE_SETTINGS)
        try:
            if self._truth.told_by(again) != before:
                raise Lost("what was committed after the cut is not there")
        finally:
            again.close()
            shutil.rmtree(image)


def _compare(replayed: Path, real: Path) -> None:
    """See that what was recorded is all that happened."""
    for one, other in ((replayed, real), (real, replayed)):
        for path in sorted(one.rglob("*")):
            twin = other / path.relative_to(one)
            assert twin.exists(), f"{twin} is not there"
            if path.is_file() and not path.name.endswith("-shm"):
                assert path.read_bytes() == twin.read_bytes(), f"{path} and {twin} differ"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Return a folder where syncs cost nothing, if there is such a place: here nothing depends on them."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="clarion-power-cuts-", dir=memory if memory.is_dir() else None))
    try:
        yield folder.resolve()
    finally:
        shutil.rmtree(folder)


def cut_power(seed: int, cuts: int, again: int) -> Counter[str]:
    """Record a broker, cut the power so many times, and so many times again while it starts after that."""
    with quick_folder() as folder:
        campaign = Campaign(record_work(folder / "work"), folder)
        campaign.run(cuts, seed)
        counts = campaign.counts
        for place, cut in enumerate(campaign.choose(again, seed + 1)):
            within = campaign.within(cut, folder / str(place))
            within.run(_CUTS_WITHIN, seed)
            counts += within.counts
            counts["cut again while starting"] += 1
        return counts


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20_000, help="power cuts, more or less")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first recording (default: the time)")
    chosen = parser.parse_args()
    counts: Counter[str] = Counter()
    seed = chosen.seed
    while counts.total() < chosen.cuts:
        try:
            counts += cut_power(seed, _CUTS_OF_ONE, _AGAIN_OF_ONE)
        except Lost as error:
            sys.stdout.write(f"seed {seed}: {error}\n")
            return 1
        seed += 1
        sys.stdout.write(f"{counts.total()} of {chosen.cuts} cuts ({dict(counts)})\n")
        sys.stdout.flush()
    sys.stdout.write("nothing that anybody was told of was lost, and every store opened\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
