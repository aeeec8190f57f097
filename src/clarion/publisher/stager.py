"""Staged puts: stored at once, seen when (writer, epoch) is committed; and the commit itself, from any connection."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple

from clarion.model.arguments import (
    all_bytes,
    all_headers,
    all_keys,
    as_headers,
    as_list,
    check_lengths,
    optional_seconds,
    seconds,
    whole,
)
from clarion.model.errors import ClarionError, Closed, TimedOut
from clarion.model.names import to_bytes, to_text
from clarion.publisher.outgoing_batch import check_settings
from clarion.publisher.publisher_works import FORGET_S
from clarion.publisher.stager_core import StagerCore
from clarion.publisher.waiting import Until
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch
from clarion.session.exchange import Reply, hello
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch import PackedColumn
from clarion.wire.batch_builder import ColumnBatchBuilder, chunk_end, part_of
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.publisher")
_GATHERED_BATCHES = 4  # worth of bytes that gather, over all topics, before they leave without being full


class Stager:
    """Stages messages at the broker at `url`, as a `part` of what `writer` writes in `epoch`. Close it, or use `with`.

    What is staged is durable after `flush`, and seen when somebody calls `commit_staged(url, writer, epoch, parts)`.
    Epochs of a writer only grow: for one that was committed before, nothing is stored, and `already` counts it.
    A part that is tried again takes another name (as a task attempt's id), and the commit names those that count.
    What nobody closes flushes when the program ends, or nobody holds it any more, as a Publisher sends.
    `timeout_s` is how long a call waits for the broker before it raises TimedOut. Safe from many threads.
    """

    def __init__(
        self,
        url: str | None = None,
        writer: bytes | str = b"",
        epoch: int = 0,
        part: bytes | str = b"",
        *,
        timeout_s: float = 30.0,
        in_flight: int = 4,
        batch_bytes: int = 2**20,
        compression: Literal["zstd"] | None = None,
    ) -> None:
        check_settings(in_flight, batch_bytes, batch_bytes, compression)
        self.writer, self.epoch, self.part = _writer(writer), whole(epoch, "epoch"), to_bytes(part, "part")
        self._works = _Works(
            url,
            seconds(timeout_s, "timeout_s"),
            writer=self.writer,
            epoch=self.epoch,
            part=self.part,
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compression is not None,
        )
        self._session = self._works.session
        self._core = self._works.core
        watch(self, self._works, self._session.url)

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> None:
        """Stage one message; where enough is under way, wait for room. Raises what befell those before it."""
        name, payload = to_bytes(topic, "topic"), to_bytes(payload, "payload")
        key, packed_headers = None if key is None else to_bytes(key, "key"), as_headers(headers)
        self._works.take(lambda: self._core.add(name, payload, key, packed_headers))

    def put_many(
        self,
        topic: bytes | str,
        payloads: Iterable[bytes | str],
        keys: Iterable[bytes | str | None] | None = None,
        headers: Iterable[Mapping[str, bytes | str] | None] | None = None,
    ) -> None:
        """Stage many messages, in order; as `put` otherwise. What gives them is gone through before any is staged."""
        name, payloads = to_bytes(topic, "topic"), all_bytes(payloads)
        keys, packed_headers = all_keys(keys, len(payloads)), all_headers(headers, len(payloads))
        check_lengths(payloads, keys=keys, headers=packed_headers)
        self._session.check_usable()
        start = 0
        while start < len(payloads):
            stop = chunk_end(payloads, keys, packed_headers, start, self._core.batch_bytes)
            some_keys, some_headers = part_of(keys, start, stop), part_of(packed_headers, start, stop)
            self._works.take(partial(self._core.add_many, name, payloads[start:stop], some_keys, some_headers))
            start = stop

    def put_columns(
        self,
        topic: bytes | str,
        count: int,
        payloads: PackedColumn,
        keys: PackedColumn | None = None,
        headers: PackedColumn | None = None,
    ) -> None:
        """Stage `count` messages as one batch, whose columns are packed as Arrow packs them; as `put` otherwise.

        Headers are packed msgpack, a map of text to bytes each. TooLarge where the batch is: see `batch_bytes`.
        """
        builder = ColumnBatchBuilder(to_bytes(topic, "topic"), count, payloads, keys, headers)
        self._works.take(lambda: self._core.add_packed(builder))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is on disk; raise the typed error if it cannot be, TimedOut if that is not
        known in time."""
        self._works.flush(optional_seconds(timeout_s, "timeout_s"))

    def close(self) -> None:
        """Flush, and let go of the connection. What was staged stays until it is committed, dropped or expires."""
        self._works.close()

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._works.close(flush=False)  # what gathered is not worth waiting for: the part failed

    @property
    def batch_bytes(self) -> int:
        """How many bytes a batch has, about: as was asked for, or as many as the broker takes."""
        return self._core.batch_bytes

    @property
    def already(self) -> int:
        """How many batches were not stored, because their epoch was committed before."""
        return self._core.already

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered, under way and staged."""
        self._session.check_process()
        core = self._core
        with self._session.lock:
            return {
                "buffered_bytes": core.buffered_bytes,
                "in_flight": core.under_way,
                "messages_staged": core.messages,
                "batches_staged": core.batches,
                "batches_already": core.already,
                "connected": self._session.connected,
            }


class _Works(Works):
    """What works behind a stager. It does not hold the stager (see `endings`)."""

    def __init__(self, url: str | None, timeout_s: float, *, in_flight: int, **settings: Any) -> None:
        self._timeout_s = timeout_s
        self._closing = threading.Lock()  # held by who closes it
        self._ending = False  # nothing more is accepted
        self._closed = False
        self.core = StagerCore(broker_url(url), os.urandom(16), in_flight=in_flight, **settings)
        self.session = ThreadSession(url, self.core)
        try:
            welcome = self._call(Kind.HELLO, hello("clarion stager")).read(bodies.Welcome)
            self._identity = self._call(Kind.REGISTER, bodies.Register(os.urandom(16))).read(bodies.Registered)
        except BaseException:
            self.session.close()
            raise
        with self.session.lock:
            self.core.open(self._identity, welcome)
        self._bound_bytes = (in_flight + _GATHERED_BATCHES) * self.core.batch_bytes

    def _call(self, kind: Kind, body: bodies.Body) -> Reply:
        return self.session.call(kind, body, timeout_s=self._timeout_s, retry=True)

    def _check_usable(self) -> None:
        self.session.check_usable()
        if self.core.error is not None:
            raise self.core.error.again()

    def _has_room(self) -> bool:
        return self.core.buffered_bytes < self._bound_bytes

    def take(self, add: Callable[[], None]) -> None:
        """Add messages to the core as soon as there is room for them."""
        taken = False

        def add_now(_now_s: float) -> None:
            nonlocal taken
            self._check_usable()
            if self._ending:
                raise Closed("this client is closed")
            if self.core.gathered_bytes >= _GATHERED_BATCHES * self.core.batch_bytes:
                self.core.place_all()
            if self._has_room():
                add()
                taken = True

        self.session.do(add_now)
        while not taken:  # who waited may find that others were faster
            self._wait_until(self._has_room, self._timeout_s)
            self.session.do(add_now)

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        call = Until(lambda: holds() or self.core.error is not None)
        with self.session.lock:
            self.core.watch(call)
        try:
            done = self.session.wait(call, timeout_s)
        finally:
            with self.session.lock:
                self.core.unwatch(call)
        self._check_usable()
        if not done:
            raise TimedOut(
                f"{self.core.buffered_bytes} bytes were not staged by {self.session.url} within {timeout_s:.3g} s;"
                " they are still queued, and sent while the stager is open"
            )

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything put so far is on disk."""
        places = 0

        def place_all(_now_s: float) -> None:
            nonlocal places
            self._check_usable()
            self.core.place_all()
            places = self.core.places

        self.session.do(place_all)
        self._wait_until(lambda: self.core.stored_below(places), self._timeout_s if timeout_s is None else timeout_s)

    def close(self, timeout_s: float | None = None, *, flush: bool = True) -> None:
        """Flush, if that is wanted, and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        with self._closing:
            if self._closed:
                return
            answered = True
            with self.session.lock:
                self._ending = True
            try:
                if flush:
                    self.flush(timeout_s)
            except TimedOut:
                answered = False
                raise TimedOut(
                    f"{self.core.buffered_bytes} bytes were not staged by {self.session.url} in time, and are given up:"
                    " what is staged of this part is not all of it; stage it again as another part, or epoch"
                ) from None
            finally:
                self._let_go(tell=answered)

    def end(self, timeout_s: float) -> None:
        """Flush and let go, as nobody closed it."""
        self.close(timeout_s)

    def _let_go(self, *, tell: bool) -> None:
        self._closed = True
        closed(self)
        try:
            if tell:
                self.session.call(Kind.FORGET, bodies.Forget(self._identity.publisher), timeout_s=FORGET_S)
        except ClarionError as error:
            log.info("the broker was not told that this stager is gone; it forgets it in time: %s", error)
        finally:
            self.session.close()  # whoever still waits hears that it is closed


class StagedOutcome(NamedTuple):
    """What a commit or drop found: how many messages, and whether the epoch had been committed before."""

    messages: int
    already: bool


def commit_staged(
    broker: str | ThreadSession | None,
    writer: bytes | str,
    epoch: int,
    parts: Iterable[bytes | str] | None = None,
    *,
    messages: int | None = None,
    timeout_s: float = 30.0,
) -> StagedOutcome:
    """Show what `writer` staged in `epoch` as these `parts`, in the order of their names, and drop what other parts
    staged; None shows all of it. The same again changes nothing, and says `already`. `broker` is a URL, None for that
    of the environment or the usual one, or a session.

    Where `messages` says how many there must be and some have expired, MessagesGone is raised and none is shown."""
    named = None if parts is None else tuple(to_bytes(part, "each of parts") for part in as_list(parts, "parts"))
    expected = -1 if messages is None else whole(messages, "messages")
    body = bodies.CommitStaged(_writer(writer), whole(epoch, "epoch"), named, False, expected)
    return _end_staged(broker, body, timeout_s)


def drop_staged(
    broker: str | ThreadSession | None, writer: bytes | str, epoch: int, *, timeout_s: float = 30.0
) -> StagedOutcome:
    """Forget what `writer` staged in `epoch`; what was committed stays, and is told as `already`."""
    return _end_staged(broker, bodies.CommitStaged(_writer(writer), whole(epoch, "epoch"), drop=True), timeout_s)


def _end_staged(broker: str | ThreadSession | None, body: bodies.CommitStaged, timeout_s: float) -> StagedOutcome:
    if broker is None or isinstance(broker, str):
        session = ThreadSession(broker)
        try:
            return _end_staged(session, body, timeout_s)
        finally:
            session.close()
    if not hasattr(broker, "call"):
        raise TypeError(f"the broker is told by its URL, not by {type(broker).__name__}")
    timeout_s = seconds(timeout_s, "timeout_s")
    reply = broker.call(Kind.COMMIT_STAGED, body, timeout_s=timeout_s, retry=True)
    done = reply.read(bodies.StagedCommitted)
    log.debug("epoch %d of %s: %d messages", body.epoch, to_text(body.writer), done.messages)
    return StagedOutcome(done.messages, done.already)


def _writer(writer: bytes | str) -> bytes:
    name = to_bytes(writer, "writer")
    if not name:
        raise ValueError("a writer needs a name")
    return name
