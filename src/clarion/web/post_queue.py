"""The posts that a gateway accepted, followed to their end and answered again to who repeats an idempotency key, and
the GatewayPublisher that puts their messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from clarion.broker.logs import NEVER_LEFT_OUT
from clarion.model.errors import BufferFull, ClarionError, Closed, TimedOut
from clarion.model.names import to_text
from clarion.publisher import AsyncPublisher, AsyncReceipts
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.web.gateway_buffer import STALLED_S, Buffer, DrainRate, IdempotencyKeys, Reservation, retry_after_s
from clarion.web.gateway_settings import GatewaySettings
from clarion.web.post_requests import PostOptions, Refusal, fingerprint, is_certain, refusal_of, split_lines, too_large
from clarion.wire.batch_builder import HEADER_BYTES, packed_bytes

log = logging.getLogger("clarion.web")
_UNTOLD_MAX = 100  # topics and reasons that one look logs a line for each; of others it counts the messages


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _come_again(wait_s: int, why: str) -> Refusal:
    message = f"{why}; nothing was queued, send it again in {wait_s} s"
    return Refusal(429, "BufferFull", message, retry_after_s=wait_s)


class Outcome(NamedTuple):
    """What became of messages that were put together: how many are stored, and where; why the others are not."""

    stored: int
    offsets: list[tuple[int, int]]  # first and last, in order; none for those that appear later
    id: str | None  # of the first
    error: ClarionError | None


class GatewayPublisher(AsyncPublisher):
    """Puts messages, tells how large one may be, and when they have ended. How much may wait is the post queue's
    business, which takes whole requests or nothing of them."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._followed: dict[OutgoingBatch, tuple[asyncio.Task[None], list[Callable[[], None]]]] = {}

    def _has_room(self) -> bool:
        return True

    @property
    def largest_bytes(self) -> int:
        """What a message may take with its key, headers and overhead, as far as the broker has said by now."""
        return self._core.max_batch_bytes - HEADER_BYTES

    @property
    def broken(self) -> ClarionError | None:
        """Why nothing can be put any more, if that is so."""
        return self._core.broken

    def refused(self, topic: bytes) -> ClarionError | None:
        """Why the broker does not take messages of this topic just now, if it said so."""
        return self._core.refused(topic)

    def kept_bytes(self, size: int) -> int:
        """What the outbox would hold with so much more; 0 without one."""
        outbox = self._works.outbox
        return 0 if outbox is None else outbox.held_bytes + size

    def when_done(self, receipts: AsyncReceipts, tell: Callable[[], None]) -> None:
        """Call `tell` once all of it is stored or refused; at once, if it is already. It must not raise.

        Whoever asks keeps the receipts until then: an outbox lets go of what nobody holds. A request that was accepted
        is followed to its end even where its client has gone; one task follows a batch, for all who are in it.
        """
        waiting = {batch for batch, _, _ in receipts._parts if not batch.done}
        left = len(waiting)
        if not left:
            tell()

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                tell()

        for batch in waiting:
            if batch not in self._followed:
                task = asyncio.get_running_loop().create_task(self._follow(batch))
                self._followed[batch] = (task, [])
            self._followed[batch][1].append(one_ended)

    async def _follow(self, batch: OutgoingBatch) -> None:
        with contextlib.suppress(Closed):  # before anybody knows
            await self._session.wait(batch)
        _, told = self._followed.pop(batch)
        if batch.done:
            for tell in told:
                tell()

    async def close(self, timeout_s: float | None = 30.0) -> None:
        """Send everything that was accepted, and let go of the connection; all that has ended is told."""
        try:
            await super().close(timeout_s)
        finally:
            await asyncio.gather(*(task for task, _ in self._followed.values()))

    def outcome(self, receipts: AsyncReceipts) -> Outcome:
        """Return what became of messages that have ended."""
        assert receipts.done()
        stored, error = 0, None
        offsets: list[tuple[int, int]] = []
        for batch, start, stop in receipts._parts:
            if batch.error is not None:
                batch.observed = True  # the answer tells; a close has nothing to raise
                error = error or batch.error
                continue
            stored += stop - start
            found = batch.offsets(start, stop)
            if found is not None and offsets and offsets[-1][1] + 1 == found.start:
                offsets[-1] = (offsets[-1][0], found.stop - 1)
            elif found is not None:
                offsets.append((found.start, found.stop - 1))
        batch, start, _ = receipts._parts[0]
        return Outcome(stored, offsets, str(batch.message_id(start)) if batch.error is None else None, error)


class AcceptedPost:
    """Messages of one request, from when they are queued until it is known what became of them."""

    __slots__ = ("count", "ended", "many", "outcome", "receipts", "refusal", "reservation", "size", "topic", "waiting")

    def __init__(self, topic: bytes, count: int, many: bool, reservation: Reservation) -> None:
        self.topic = topic
        self.count = count
        self.reservation = reservation
        self.size = reservation.size
        self.many = many
        self.ended = False
        self.outcome: Outcome | None = None
        self.refusal: Refusal | None = None
        self.receipts: AsyncReceipts | None = None  # while it is under way
        self.waiting: set[asyncio.Future[None]] = set()  # of those who wait for the answer

    def end(self) -> None:
        """Tell who waits that it is known what became of it."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Have nobody wait any longer."""
        for future in self.waiting:
            _wake(future)


class TakenPost(NamedTuple):
    """What a request was taken as: new, or the same as one before."""

    accepted: AcceptedPost
    repeated: bool


class PostQueue:
    """Accepts messages for a publisher, or says why not. Accepted = stored + failed + waiting, always."""

    def __init__(self, settings: GatewaySettings, publisher: GatewayPublisher) -> None:
        self._settings = settings
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self.buffer = Buffer(settings.messages_max, settings.buffer_bytes)
        self._drain = DrainRate(self._loop.time())
        self._keys: IdempotencyKeys[AcceptedPost] = IdempotencyKeys()
        self.waiting = 0
        self.accepted = 0
        self.stored = 0
        self.failed = 0
        self.repeated = 0
        self.last_failure: str | None = None
        self._under_way: set[AcceptedPost] = set()  # whose receipts have to be held
        self._abandoned = False
        self._untold: dict[tuple[bytes, str], int] = {}  # failed messages that no answer and no log has told of
        self._untold_more = 0

    def knows(self, key: str | None) -> bool:
        """Whether a request with this key was accepted before."""
        return key is not None and self._keys.find(key) is not None

    async def take(self, topic: bytes, options: PostOptions, body: bytes, reservation: Reservation) -> TakenPost:
        """Queue all messages of a request, or none and raise a Refusal. `reservation` holds the room of its body; it is
        given back when the messages have ended, or here, if there are none to wait for."""
        key = options.idempotency_key
        known = None if key is None else self._keys.find(key)
        mark = b"" if key is None else fingerprint(topic, options, body)
        if known is not None:
            reservation.leave()
            if known.fingerprint != mark:
                raise Refusal(
                    422,
                    "KeyReused",
                    "this Idempotency-Key came with another request before; use a new key for each. Nothing was queued",
                )
            self.repeated += 1
            return TakenPost(known.first, True)
        try:
            payloads = split_lines(body, self.buffer.messages_max) if options.by_lines else [body]
            self._reserve(payloads, options, reservation)
            accepted = AcceptedPost(topic, len(payloads), options.by_lines, reservation)
            if key is not None:
                self._keys.begin(key, mark, accepted)
            await self._queue(accepted, payloads, options)
        except BaseException:
            reservation.leave()
            raise
        return TakenPost(accepted, False)

    async def wait(self, accepted: AcceptedPost) -> bool:
        """Wait until it is known what became of messages; False if it is not in time."""
        if not accepted.ended:
            known = self._loop.create_future()
            accepted.waiting.add(known)
            timer = self._loop.call_later(self._settings.timeout_s, _wake, known)
            try:
                if not self._abandoned:
                    await known
            finally:
                timer.cancel()
                accepted.waiting.discard(known)
        return accepted.ended

    def abandon(self) -> None:
        """Let nobody wait any longer: the process is about to end."""
        self._abandoned = True
        for accepted in self._under_way:
            accepted.wake()

    def _reserve(self, payloads: list[bytes], options: PostOptions, reservation: Reservation) -> None:
        """Reserve room so that putting cannot fail half way: everything fits, each into a batch and all into the
        buffer. Raise a Refusal, and reserve nothing more, where it does not."""
        key, headers = options.key, options.headers
        beside_bytes = packed_bytes([b""], None if key is None else [key], None if headers is None else [headers])
        largest_bytes = self._publisher.largest_bytes
        size = sum(map(len, payloads)) + beside_bytes * len(payloads)
        if max(map(len, payloads)) + beside_bytes > largest_bytes:
            raise too_large(f"the broker takes messages of about {largest_bytes} bytes at most; nothing was queued")
        most_bytes = self.buffer.bytes_max
        if self._settings.outbox is not None:
            most_bytes = min(most_bytes, self._settings.outbox_bytes - 1)
        if size > most_bytes:
            raise too_large(
                f"with keys and headers this takes {size} bytes, more than this gateway ever holds ({most_bytes});"
                " send less at once. Nothing was queued"
            )
        if self._publisher.kept_bytes(size) >= self._settings.outbox_bytes:
            raise self._outbox_full(size)
        if not reservation.grow_to(len(payloads), size):
            raise self.full(len(payloads), size - reservation.size)

    async def _queue(self, accepted: AcceptedPost, payloads: list[bytes], options: PostOptions) -> None:
        topic, key, headers, ttl_s, deliver_at = accepted.topic, *options[:4]
        try:
            if accepted.many:
                count = accepted.count
                keys = None if key is None else [key] * count
                all_headers = None if headers is None else [headers] * count
                receipts: AsyncReceipts = await self._publisher.put_many(
                    topic, payloads, keys, all_headers, ttl_s, deliver_at, wait=False
                )
            else:
                receipts = await self._publisher.put(topic, payloads[0], key, headers, ttl_s, deliver_at, wait=False)
        except ClarionError as error:
            refusal = self.full(1, 0) if isinstance(error, BufferFull) else refusal_of(error, topic)
            self._never_queued(accepted, options, refusal)
            raise refusal from error
        except BaseException:
            self._never_queued(accepted, options, Refusal(500, "InternalError", "it was not queued"))
            raise
        self.accepted += accepted.count
        self.waiting += accepted.count
        accepted.receipts = receipts
        self._under_way.add(accepted)
        self._publisher.when_done(receipts, lambda: self._settle(accepted, self._publisher.outcome(receipts), options))

    def _never_queued(self, accepted: AcceptedPost, options: PostOptions, refusal: Refusal) -> None:
        accepted.refusal = refusal
        accepted.end()
        if options.idempotency_key is not None:
            self._keys.forget(options.idempotency_key)

    def _settle(self, accepted: AcceptedPost, outcome: Outcome, options: PostOptions) -> None:
        failed = accepted.count - outcome.stored
        self.waiting -= accepted.count
        accepted.receipts = None
        self._under_way.discard(accepted)
        self.stored += outcome.stored
        self.failed += failed
        self._drain.note(accepted.count, accepted.size, self._loop.time())
        accepted.reservation.leave()
        accepted.outcome = outcome
        certain = False
        if outcome.error is not None:
            accepted.refusal = refusal_of(outcome.error, accepted.topic, stored=outcome.stored, count=accepted.count)
            certain = not outcome.stored and is_certain(outcome.error)
            self.last_failure = f"{to_text(accepted.topic)}: {outcome.error}"
            if not accepted.waiting:
                self._note_untold((accepted.topic, str(outcome.error)), failed)
        if options.idempotency_key is not None and certain:
            self._keys.forget(options.idempotency_key)
        elif options.idempotency_key is not None:
            self._keys.end(options.idempotency_key)
        accepted.end()

    def log_failures(self) -> None:
        """Log what failed since the last time without an answer that told of it: of which topic, and why."""
        untold, self._untold = self._untold, {}
        for (topic, why), messages in untold.items():
            facts = {"topic": to_text(topic), "messages": messages}
            log.warning(
                "messages for %s that were accepted were not stored: %s",
                facts["topic"], why, extra={**facts, NEVER_LEFT_OUT: True},
            )  # fmt: skip
        if self._untold_more:
            facts = {"messages": self._untold_more}
            log.warning(
                "messages for still other topics that were accepted were not stored",
                extra={**facts, NEVER_LEFT_OUT: True},
            )
            self._untold_more = 0

    def _note_untold(self, reason: tuple[bytes, str], messages: int) -> None:
        if reason in self._untold or len(self._untold) < _UNTOLD_MAX:
            self._untold[reason] = self._untold.get(reason, 0) + messages
        else:
            self._untold_more += messages

    def full(self, messages: int, size: int) -> Refusal:
        """Return the refusal of what does not fit now, with the time after which it should."""
        held = self.buffer
        wait_s = max(map(retry_after_s, held.lacks(messages, size), self._drain.per_s(self._loop.time())))
        why = "" if self._publisher.stats["connected"] else f", and no broker answers at {self._settings.url}"
        return _come_again(
            wait_s,
            f"this gateway's buffer is full ({held.messages} of {held.messages_max} messages,"
            f" {held.bytes} of {held.bytes_max} bytes){why}",
        )

    def _outbox_full(self, size: int) -> Refusal:
        lacking = self._publisher.kept_bytes(size) - self._settings.outbox_bytes + 1
        wait_s = retry_after_s(lacking, self._drain.per_s(self._loop.time())[1])
        return _come_again(wait_s, f"the outbox {self._settings.outbox} holds its {self._settings.outbox_bytes} bytes")

    async def save(self, accepted: AcceptedPost) -> None:
        """Wait until messages are on this machine's disk, where there is an outbox; raise a Refusal if not in time.
        From then on the outbox bounds their bytes."""
        if self._settings.outbox is None or accepted.receipts is None:
            return
        try:
            await accepted.receipts.saved(self._settings.timeout_s)
        except TimedOut as error:
            raise Refusal(503, "TimedOut", str(error), retry_after_s=STALLED_S) from error
        except ClarionError as error:
            raise refusal_of(error, accepted.topic) from error
        if not accepted.ended:
            accepted.reservation.grow_to(accepted.count, 0)

    def late(self, topic: bytes, options: PostOptions) -> Refusal:
        """Return the answer to who waited for as long as a post waits."""
        if not self._publisher.stats["connected"]:
            why = f"no broker answers at {self._settings.url}"
        elif (refusal := self._publisher.refused(topic)) is not None:
            why = f"the broker says: {refusal}"
        else:
            why = f"the broker at {self._settings.url} did not confirm it within {self._settings.timeout_s:g} s"
        if self._abandoned:
            outbox = self._settings.outbox
            kept = f"it is kept in {outbox}, and sent when that is opened again"
            fate = "whether the message is stored is not known" if outbox is None else kept
            return Refusal(503, "Stopping", f"{why}, and this gateway is stopping: {fate}")
        if options.idempotency_key is None:
            then = "sending it again makes a second one. An Idempotency-Key header lets you ask again safely"
        else:
            then = "send it again with the same Idempotency-Key to hear what became of it"
        wait_s = max(1, retry_after_s(self.waiting, self._drain.per_s(self._loop.time())[0]))
        return Refusal(503, "TimedOut", f"{why}; it is still queued and will be sent: {then}", retry_after_s=wait_s)

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of it."""
        messages_per_s, bytes_per_s = self._drain.per_s(self._loop.time())
        return {
            "accepted": self.accepted,
            "stored": self.stored,
            "failed": self.failed,
            "waiting": self.waiting,
            "drops": self.accepted - self.stored - self.failed - self.waiting,
            "repeated": self.repeated,
            "last_failure": self.last_failure,
            "buffer": {
                "messages": self.buffer.messages,
                "messages_max": self.buffer.messages_max,
                "bytes": self.buffer.bytes,
                "bytes_max": self.buffer.bytes_max,
            },
            "drained_messages_per_s": round(messages_per_s, 1),
            "drained_bytes_per_s": round(bytes_per_s, 1),
            "idempotency_keys": len(self._keys),
        }
