"""Reading ranges of offsets, in a task: a page is asked for while the one before it becomes record batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pyarrow as pa

from clarion.admin.browsing import read_page
from clarion.admin.descriptions import read_description
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic
from clarion.model.names import to_text
from clarion.pipeline.columns import to_record_batches
from clarion.pipeline.source.broker import seen_of, store_of, told_away
from clarion.pipeline.source.options import SourceOptions
from clarion.pipeline.source.positions import Range, Slice, check_number, check_store, without_lost
from clarion.session.changes import no_answer
from clarion.session.exchange import Reply, hello
from clarion.session.thread import ThreadSession
from clarion.subscriber.messages import MessageBatch, unreadable
from clarion.wire import bodies
from clarion.wire.batch import BadBatch
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.pipeline")
_MOST_MESSAGES = 2**31  # the broker gives as many as it may


def read_slice(options: SourceOptions, what: Slice) -> Iterator[pa.RecordBatch]:
    """Give all that is kept of the ranges, exactly up to their ends, in order."""
    session = ThreadSession(options.url)
    try:
        with told_away(options.url, options.timeout_s):
            yield from to_record_batches(_Reading(session, options, what).parts(), options.columns)
    finally:
        session.close()


class _Reading:
    """One slice, read once."""

    def __init__(self, session: ThreadSession, options: SourceOptions, what: Slice) -> None:
        self._session = session
        self._options = options
        self._what = what
        self._page_bytes = 0

    def parts(self) -> Iterator[MessageBatch]:
        """Give the stored batches, or what lies in the ranges of them."""
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
                position = left.start
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
                position = page.position
                if position < end:
                    ahead = self._ask(wanted.topic, position, end)
                yield from filter(self._is_readable, page.parts)
                continue
            if position < end:
                ahead = self._ask(wanted.topic, position, end)

    def _is_readable(self, part: MessageBatch) -> bool:
        """Tell whether a batch can be opened; if not, that is an error, unless losses are allowed."""
        try:
            part.batch.open()
        except BadBatch as error:
            told = unreadable(part, error)
            if self._options.fail_on_data_loss:
                raise type(told)(f"{told}. The option failOnDataLoss=false leaves them out") from error
            log.warning("%s; they are left out", told)
            return False
        return True

    def _ask(self, topic: bytes, position: int, end: int) -> _Ahead:
        most = min(end - position, _MOST_MESSAGES)
        return _Ahead(self._session, bodies.Read(topic, position, most, self._page_bytes), self._options.timeout_s)

    def _check_store(self) -> None:
        greeting = hello("clarion pipeline", seen_of(self._what.store))
        welcome = self._call(Kind.HELLO, greeting).read(bodies.Welcome)
        self._page_bytes = welcome.max_get_bytes
        check_store(self._what.store, store_of(welcome), self._options.url)

    def _check_topic(self, wanted: Range, *, was_read: bool = False) -> bool:
        """Tell whether it is still the same topic; if not, that is an error, unless losses are allowed. Where another
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


class _Ahead:
    """A READ that is under way."""

    def __init__(self, session: ThreadSession, body: bodies.Read, timeout_s: float) -> None:
        self._session = session
        self._body = body
        self._timeout_s = timeout_s
        self._answered = threading.Event()
        self._replies: list[Reply] = []
        session.ask(Kind.READ, body, self._take)

    def _take(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._answered.set()

    def reply(self) -> Reply:
        """Wait for the answer; one that says "not now" is asked for again while there is time."""
        if not self._answered.wait(self._timeout_s):
            self._session.check_usable()
            raise no_answer(self._session.url, Kind.READ, self._timeout_s)
        if self._replies[0].again_after_s() is None:
            return self._replies[0]
        return self._session.call(Kind.READ, self._body, timeout_s=self._timeout_s, retry=True)
