"""What Spark calls to read topics: in batch, ranges fixed once; as a stream, exactly from where the checkpoint ends.

The driver asks a broker which store it has, which topics, and where they begin and end. Messages are read in tasks: a
page is asked for while the one before it becomes record batches.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from clarion.admin import Admin
from clarion.admin.admin import SubscriptionDescription, TopicDescription, read_description, read_page
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, NotSubscribed, TimedOut, Unreachable
from clarion.model.names import is_pattern, to_text
from clarion.pipeline import read_positions
from clarion.pipeline.format_options import SourceOptions
from clarion.pipeline.read_positions import EARLIEST, LATEST, Bounds, PushedFilters, Range, Slice, Store, StreamPosition
from clarion.pipeline.topic_table import to_record_batches
from clarion.session.calls import Request
from clarion.session.exchange import Reply, Seen, hello
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch import BadBatch
from clarion.wire.frames import Kind
from clarion.wire.messages import MessageBatch, unreadable
from clarion.wire.timestamps import unix_us

log = logging.getLogger("clarion.pipeline")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US = unix_us(datetime.max.replace(tzinfo=UTC))
_MOST_MESSAGES = 2**31  # the broker gives as many as it may
_IDLE_S = 0.2  # that Spark is kept waiting for news: it asks again at once
_LOOK_EVERY_S = 0.02


@contextmanager
def timeout_explained(options: SourceOptions) -> Iterator[None]:
    """Say what to do where the broker does not answer."""
    try:
        yield
    except TimedOut as error:
        raise Unreachable(
            f"no broker answers at {options.url} within {options.timeout_s:g} s (option timeoutS). Nothing is lost; is"
            " it running, and is the option url right?"
        ) from error


@contextmanager
def open_admin(options: SourceOptions) -> Iterator[Admin]:
    """Yield a client that asks the broker; say what to do where that does not answer."""
    with timeout_explained(options), Admin(options.url, timeout_s=options.timeout_s) as admin:
        yield admin


def store_of(welcome: bodies.Welcome) -> Store:
    """Return which store a broker has."""
    return Store(welcome.store_uuid.hex(), welcome.timeline, welcome.start.hex(), welcome.sequence)


def seen_of(store: Store) -> Seen:
    """Return what to ask a broker with, whether that is of its store's past."""
    return Seen(bytes.fromhex(store.uuid), store.timeline, bytes.fromhex(store.start), store.sequence)


def kept_of(told: TopicDescription) -> Range:
    """Return the offsets that may be read of a topic, by its description."""
    return Range(told.topic, told.number, told.first_offset, told.next_offset)


def matching_topics(admin: Admin, wanted: Sequence[bytes]) -> list[bytes]:
    """Return the topics that are named, there or not, and those that a pattern matches now, by name."""
    names = {name for name in wanted if not is_pattern(name)}
    if any(map(is_pattern, wanted)):
        names |= {row.topic for row in admin.topics() if read_positions.is_wanted(row.topic, wanted)}
    return sorted(names)


def find_topics(admin: Admin, wanted: Sequence[bytes], *, missing_ok: bool = False) -> list[TopicDescription]:
    """Describe the topics that are named, or that a pattern matches now, by name; NoTopic where a named one is not
    there, unless that is allowed."""
    found = []
    for name in matching_topics(admin, wanted):
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
    """Return the first offset of a topic committed at a time or later, or its end."""
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


def read_slice(options: SourceOptions, what: Slice) -> Iterator[pa.RecordBatch]:
    """Return all that is kept of the ranges, exactly up to their ends, in order."""
    session = ThreadSession(options.url)
    try:
        with timeout_explained(options):
            yield from to_record_batches(_SliceReader(session, options, what).parts(), options.columns)
    finally:
        session.close()


class _SliceReader:
    """One slice, read once."""

    def __init__(self, session: ThreadSession, options: SourceOptions, what: Slice) -> None:
        self._session = session
        self._options = options
        self._what = what
        self._page_bytes = 0

    def parts(self) -> Iterator[MessageBatch]:
        """Return the stored batches, or what lies in the ranges of them."""
        self._check_store()
        for one in self._what.ranges:
            if self._check_topic(one):
                yield from self._parts_of(one)
                self._check_topic(one, was_read=True)
        # As no store takes up a timeline again, nor a topic a number, all that lies between was of the right one.
        self._check_store()

    def _parts_of(self, wanted: Range) -> Iterator[MessageBatch]:
        position, end = wanted.start, wanted.end
        ahead = self._ask(wanted.topic, position, end)
        while position < end:
            try:
                page = read_page(self._reply(ahead), wanted.topic, position, end - position)
            except MessagesGone as gone:
                left, lost = read_positions.without_lost(
                    Range(wanted.topic, wanted.number, position, end), gone.stop, fail=self._options.fail_on_data_loss
                )
                log.warning("%s", lost)
                position, parts = left.start, []
            except (InvalidRequest, NoTopic):
                self._check_store()
                if self._check_topic(wanted, was_read=position > wanted.start):
                    raise
                return
            else:
                if page.position == position:
                    self._check_store()
                    self._check_topic(wanted, was_read=True)
                    raise MessagesGone(
                        f"{to_text(wanted.topic)} ends at offset {position} now, and went on to {end} before: the"
                        " broker lost what it had stored"
                    )
                position, parts = page.position, page.parts
            if position < end:
                ahead = self._ask(wanted.topic, position, end)
            yield from filter(self._is_readable, parts)

    def _is_readable(self, part: MessageBatch) -> bool:
        """Return whether a batch can be opened; if not, that is an error, unless losses are allowed."""
        try:
            part.batch.open()
        except BadBatch as error:
            told = unreadable(part, error)
            if self._options.fail_on_data_loss:
                raise type(told)(f"{told}. The option failOnDataLoss=false leaves them out") from error
            log.warning("%s; they are left out", told)
            return False
        return True

    def _ask(self, topic: bytes, position: int, end: int) -> Request:
        """Ask for a page before it is needed."""
        body = bodies.Read(topic, position, min(end - position, _MOST_MESSAGES), self._page_bytes)
        request = Request(Kind.READ, body, self._options.timeout_s, retry=True)
        self._session.begin(request)
        return request

    def _reply(self, asked: Request) -> Reply:
        """Wait for the answer; where it did not come while nobody waited for it, ask once more."""
        self._session.wait(asked)
        if asked.error is not None:
            return self._call(asked.kind, asked.body)
        reply: Reply = asked.outcome()
        return reply

    def _check_store(self) -> None:
        greeting = hello("clarion pipeline", seen_of(self._what.store))
        welcome = self._call(Kind.HELLO, greeting).read(bodies.Welcome)
        self._page_bytes = welcome.max_get_bytes
        read_positions.check_store(self._what.store, store_of(welcome), self._options.url)

    def _check_topic(self, wanted: Range, *, was_read: bool = False) -> bool:
        """Return whether it is still the same topic; if not, that is an error, unless losses are allowed. Where another
        one may have been read in its place, it is one in any case: that one's rows are read later, from its start."""
        try:
            reply = self._call(Kind.DESCRIBE, bodies.Describe(wanted.topic))
            number = read_description(reply.read(bodies.Description).values).number
        except NoTopic:
            number = None
        lost = read_positions.check_number(wanted, number, fail=self._options.fail_on_data_loss)
        if lost and was_read and number is not None:
            raise MessagesGone(f"{lost}, while they were read. Nothing of that counts: read again")
        if lost:
            log.warning("%s", lost)
        return lost is None

    def _call(self, kind: Kind, body: bodies.Body) -> Reply:
        return self._session.call(kind, body, timeout_s=self._options.timeout_s, retry=True)


def _partitions(options: SourceOptions, store: Store, ranges: Iterable[Range]) -> list[InputPartition]:
    cuts = read_positions.split(ranges, options.partitions, os.cpu_count() or 1)
    return [InputPartition(Slice(store, cut)) for cut in cuts]


class BatchReader(DataSourceReader):
    """Reads a range of each topic that is fixed once, when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_schema(schema)
        self._options = options
        self._pushed = PushedFilters()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], list[Filter]]:  # noqa: N802 (Spark's name)
        """Take the filters that topics, offsets and times can answer, where that was asked for; return the others.

        Where the session's setting for filters is off, Spark refuses every read of a source that has a method of its
        own, and it tells by `__func__`. So this shows Spark's; where the setting is on, it is called, and does what it
        should.
        """

        def push(filters: list[Filter]) -> list[Filter]:
            if not self._options.push_filters:
                return filters
            self._pushed, left = read_positions.push_down(filters)
            return left

        push.__dict__["__func__"] = DataSourceReader.pushFilters
        return push

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges, and cut them into partitions."""
        options = self._options
        with open_admin(options) as admin:
            store = store_of(admin.hello())
            return _partitions(options, store, self._ranges(admin))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; Spark asks for one without a value where there is none."""
        return iter(()) if partition.value is None else read_slice(self._options, partition.value)

    def _ranges(self, admin: Admin) -> list[Range]:
        options = self._options
        start, end = options.start or Bounds(), options.end or Bounds()
        found = [kept_of(told) for told in find_topics(admin, options.topics)]
        names = [kept.topic for kept in found]
        start.check_named("start", names)
        end.check_named("end", names)
        at = partial(offset_at, admin)
        ranges = [
            read_positions.resolve(kept, start.of(kept.topic, EARLIEST), end.of(kept.topic, LATEST), at)
            for kept in found
        ]
        first = {kept.topic: kept.start for kept in found}
        narrowed = read_positions.narrow(ranges, self._pushed, at)
        left = [read_positions.without_lost(one, first[one.topic], fail=options.fail_on_data_loss) for one in narrowed]
        _warn([lost for _, lost in left if lost])
        return [kept for kept, _ in left]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the checkpoint ends.

    The driver's part lives in one process and asks the broker; `read` runs in tasks. Spark calls `latestOffset` with
    the end of a micro-batch when it has recorded that as done, and not before: so that is where the durable cursor
    follows. Its own `commit` comes later, and for the last one never.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_schema(schema)
        if options.end is not None:
            raise InvalidRequest("a stream has no end: leave the option end out, or read in batch")
        self._options = options
        self._asked: Admin | None = None
        self._target: StreamPosition | None = None
        self._latest: StreamPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return where the stream begins, if it has no past."""
        options = self._options
        with timeout_explained(options):
            store, found = self._look(named=True)
            start = options.start or Bounds()
            start.check_named("start", [told.topic for told in found])
            position, lost = read_positions.begin(
                store,
                map(kept_of, found),
                start,
                partial(offset_at, self._admin),
                fail=options.fail_on_data_loss,
            )
            _warn(lost)
            # Where the first micro-batch is to be repeated, Spark asks this, too, and that batch began earlier.
            self._follow(position, position, found, let_go=False)
        return position.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return where the micro-batch that begins at `start` ends; without news, `start` after a short while."""
        position = StreamPosition.from_json(start)
        until_s = time.monotonic() + _IDLE_S
        with timeout_explained(self._options):
            while True:
                store, found = self._look(position.store)
                end, lost = read_positions.advance(
                    position,
                    map(kept_of, found),
                    self._options.topics,
                    limit,
                    fail=self._options.fail_on_data_loss,
                    target=self._target,
                )
                _warn(lost)
                self._follow(position, end, found)
                if end is not position:
                    return replace(end, store=store).to_json()
                if self._target is not None or not self._wait_for_news(found, until_s):
                    return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return how much a micro-batch may hold."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (Spark's name)
        """Return where the topics ended when they were last looked at."""
        return None if self._latest is None else self._latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix where the topics end now: this run of the query goes no further."""
        with timeout_explained(self._options):
            self._look()
            self._target = self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into partitions."""
        low, high = StreamPosition.from_json(start), StreamPosition.from_json(end)
        return _partitions(self._options, high.store, read_positions.ranges_between(low, high))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return iter(()) if partition.value is None else read_slice(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the cursor follows earlier."""

    def stop(self) -> None:
        """Let go of the connection."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    @property
    def _admin(self) -> Admin:
        if self._asked is None:
            self._asked = Admin(self._options.url, timeout_s=self._options.timeout_s)
        return self._asked

    def _look(self, seen: Store | None = None, *, named: bool = False) -> tuple[Store, list[TopicDescription]]:
        """Ask for the topics, and whether the store is still the one that was seen; with `named`, those that are named
        must be there."""
        before = store_of(self._admin.hello(None if seen is None else seen_of(seen)))
        read_positions.check_store(seen or before, before, self._options.url)
        found = find_topics(self._admin, self._options.topics, missing_ok=not named)
        store = store_of(self._admin.hello())  # the offsets are of no later commit than this one
        read_positions.check_store(before, store, self._options.url)
        self._latest = read_positions.end_of(store, map(kept_of, found))
        return store, found

    def _follow(
        self, start: StreamPosition, end: StreamPosition, found: Sequence[TopicDescription], *, let_go: bool = True
    ) -> None:
        if self._options.cursor is not None:
            follow_with(self._admin, self._options.cursor, read_positions.kept_from(start, end), found, let_go=let_go)

    def _wait_for_news(self, found: Sequence[TopicDescription], until_s: float) -> bool:
        """Return whether to look again, after waiting for that; False once the time is over."""
        while time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
            try:
                if any(self._admin.read(told.topic, told.next_offset, 1) for told in found):
                    return True
            except (MessagesGone, NoTopic, InvalidRequest):  # a look will tell what became of it
                return True
        return False


def _warn(lost: Sequence[str]) -> None:
    for text in lost:
        log.warning("%s", text)
