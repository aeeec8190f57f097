"""What the source asks a broker: which store it has, which topics, where they begin and end, and their messages.

Messages are read in a task: a page is asked for while the one before it becomes record batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from clarion.admin import Admin
from clarion.admin.admin import SubscriptionDescription, TopicDescription, read_description, read_page
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, NotSubscribed, TimedOut, Unreachable
from clarion.model.names import is_pattern, to_text
from clarion.pipeline.format_options import SourceOptions
from clarion.pipeline.read_positions import (
    Range,
    Slice,
    Store,
    TopicNow,
    check_number,
    check_store,
    is_wanted,
    without_lost,
)
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


def now_of(told: TopicDescription) -> TopicNow:
    """Return what counts here of a topic's description; its end is that of what may be read."""
    return TopicNow(told.topic, told.number, told.first_offset, told.next_offset)


def matching_topics(admin: Admin, wanted: Sequence[bytes]) -> list[bytes]:
    """Return the topics that are named, there or not, and those that a pattern matches now, by name."""
    names = {name for name in wanted if not is_pattern(name)}
    if any(map(is_pattern, wanted)):
        names |= {row.topic for row in admin.topics() if is_wanted(row.topic, wanted)}
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
                page = read_page(ahead.reply(), wanted.topic, position, end - position)
            except MessagesGone as gone:
                left, lost = without_lost(
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

    def _ask(self, topic: bytes, position: int, end: int) -> _PendingRead:
        most = min(end - position, _MOST_MESSAGES)
        return _PendingRead(
            self._session, bodies.Read(topic, position, most, self._page_bytes), self._options.timeout_s
        )

    def _check_store(self) -> None:
        greeting = hello("clarion pipeline", seen_of(self._what.store))
        welcome = self._call(Kind.HELLO, greeting).read(bodies.Welcome)
        self._page_bytes = welcome.max_get_bytes
        check_store(self._what.store, store_of(welcome), self._options.url)

    def _check_topic(self, wanted: Range, *, was_read: bool = False) -> bool:
        """Return whether it is still the same topic; if not, that is an error, unless losses are allowed. Where another
        one may have been read in its place, it is one in any case: that one's rows are read later, from its start."""
        try:
            reply = self._call(Kind.DESCRIBE, bodies.Describe(wanted.topic))
            number = read_description(reply.read(bodies.Description).values).number
        except NoTopic:
            number = None
        lost = check_number(wanted, number, fail=self._options.fail_on_data_loss)
        if lost and was_read and number is not None:
            raise MessagesGone(f"{lost}, while they were read. Nothing of that counts: read again")
        if lost:
            log.warning("%s", lost)
        return lost is None

    def _call(self, kind: Kind, body: bodies.Body) -> Reply:
        return self._session.call(kind, body, timeout_s=self._options.timeout_s, retry=True)


class _PendingRead:
    """A read that is asked for before its answer is needed."""

    def __init__(self, session: ThreadSession, body: bodies.Read, timeout_s: float) -> None:
        self._session = session
        self._request = Request(Kind.READ, body, timeout_s, retry=True)
        session.begin(self._request)

    def reply(self) -> Reply:
        """Wait for the answer; where it did not come while nobody waited for it, ask once more."""
        self._session.wait(self._request)
        if self._request.error is not None:
            return self._session.call(Kind.READ, self._request.body, timeout_s=self._request.timeout_s, retry=True)
        reply: Reply = self._request.outcome()
        return reply
