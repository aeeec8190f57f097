"""Reading one topic: what is fetched when, handed out in order, skipped, and acked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from clarion.model.errors import DiskFull, LimitReached, MessagesGone, NotSubscribed, StoredDataCorrupt, TakenOver
from clarion.session.exchange import OnReply, Reply
from clarion.subscriber import reading as reading_module
from clarion.subscriber.messages import MessageBatch
from clarion.subscriber.reading import Reading, start_fields
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Kind
from clarion.wire.refusals import Code

Ranges = tuple[tuple[int, int], ...]


class Asked(NamedTuple):
    kind: Kind
    body: Any
    on_reply: OnReply

    def answer(self, kind: Kind, body: bodies.Body, *blobs: bytes) -> None:
        self.on_reply(Reply(kind, msgspec.msgpack.encode(body), blobs))

    def refuse(self, code: int, retry_after_s: float = 0.0, kind: Kind = Kind.REFUSED) -> None:
        self.answer(kind, bodies.Refused(code, "because", retry_after_s))


class Talk:
    """A reading whose requests are kept, to be answered by the test."""

    def __init__(self, *, prefetch: bool = True, attached: bool = True, acked: Ranges = ()) -> None:
        self.now_s = 100.0
        self.asked: list[Asked] = []
        self.reading = Reading(
            b"news",
            b"reader",
            b"consumer nonce",
            self._ask,
            lambda: self.now_s,
            lambda: None,
            self._ack,
            fetch_bytes=1000,
            prefetch=prefetch,
        )
        if attached:
            self.reading.want(0.0, 5)
            self.attach(acked=acked)

    def _ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: tuple[bytes, ...] = (), wait_s: float = 0.0
    ) -> None:
        assert blobs == ()
        self.asked.append(Asked(kind, body, on_reply))

    def _ack(self, start: int, stop: int) -> None:
        self.reading.ack(start, stop)

    def take_asked(self) -> list[Asked]:
        asked, self.asked = self.asked, []
        return asked

    def attach(self, acked: Ranges = ()) -> None:
        (asked,) = self.take_asked()
        assert asked.kind == Kind.ATTACH
        asked.answer(Kind.ACK, bodies.Attached(7, 0, acked))

    def get(self) -> Asked:
        (asked,) = self.take_asked()
        assert asked.kind == Kind.GET
        return asked


def packed(*payloads: bytes) -> bytes:
    return bytes(encode_batch(payloads, broker=1, publisher=2, stamp=3, number=1))


def deliver(asked: Asked, first: int, *payloads: bytes, end: int | None = None) -> None:
    """Answer with one batch that begins at `first`."""
    end = first + len(payloads) if end is None else end
    asked.answer(Kind.MESSAGES, bodies.Delivery(((first, 5),), end), packed(*payloads))


def payloads_of(parts: list[MessageBatch]) -> list[bytes]:
    return [payload for part in parts for payload in part.payloads()]


def test_it_attaches_once_and_then_gets_what_was_wanted() -> None:
    talk = Talk(attached=False)
    talk.reading.want(1.5, 5)
    talk.reading.want(2.5, 5)
    talk.attach()
    body = talk.get().body
    assert (body.token, body.position, body.wait_ms) == (7, 0, 2500)


def test_what_comes_is_handed_out_in_order_and_once() -> None:
    talk = Talk()
    deliver(talk.get(), 0, b"0", b"1", b"2")
    assert talk.reading.buffered == 3
    assert payloads_of(talk.reading.take(2)) == [b"0", b"1"]
    assert payloads_of(talk.reading.take(2)) == [b"2"]
    assert talk.reading.take(2) == []
    assert talk.reading.buffered == 0


def test_the_same_messages_twice_are_taken_once() -> None:
    talk = Talk()
    first = talk.get()
    talk.reading._get(0.0, 5)
    second = talk.get()
    deliver(first, 0, b"0", b"1")
    deliver(second, 0, b"0", b"1", b"2")
    assert payloads_of(talk.reading.take(9)) == [b"0", b"1", b"2"]


def test_a_batch_that_begins_before_the_position_is_cut() -> None:
    talk = Talk()
    deliver(talk.get(), 0, b"0")
    talk.reading.want(0.0, 5)
    deliver(talk.get(), 0, b"0", b"1", b"2")
    parts = talk.reading.take(9)
    assert payloads_of(parts) == [b"0", b"1", b"2"]
    assert [list(part.offsets) for part in parts] == [[0], [1, 2]]


def test_what_was_acked_before_it_came_is_skipped() -> None:
    talk = Talk(acked=((1, 2), (3, 5), (6, 8)))
    deliver(talk.get(), 0, *(b"%d" % place for place in range(7)), end=9)
    talk.reading.want(0.0, 5)
    deliver(talk.get(), 7, b"7", b"8")
    assert payloads_of(talk.reading.take(99)) == [b"0", b"2", b"5", b"8"]


def test_a_gap_in_what_comes_is_an_error_that_names_it() -> None:
    talk = Talk()
    deliver(talk.get(), 3, b"3")
    assert isinstance(talk.reading.error, MessagesGone)
    assert "offsets 0 to 2" in str(talk.reading.error)
    assert talk.reading.buffered == 0


def test_a_gap_that_was_acked_before_is_none() -> None:
    talk = Talk(acked=((1, 3),))
    get = talk.get()
    blobs = (packed(b"0"), packed(b"3"))
    get.answer(Kind.MESSAGES, bodies.Delivery(((0, 5), (3, 5)), 4), *blobs)
    assert talk.reading.error is None
    assert payloads_of(talk.reading.take(9)) == [b"0", b"3"]


def test_more_is_fetched_ahead_only_where_more_is_known_to_be() -> None:
    talk = Talk()
    deliver(talk.get(), 0, b"0", b"1", end=2)
    talk.reading.take(1)
    talk.reading.take(1)
    assert talk.asked == []
    talk.reading.want(0.0, 5)
    deliver(talk.get(), 2, b"2", b"3", end=9)
    talk.reading.take(1)
    assert talk.get().body.position == 4
    talk.reading.take(1)
    assert talk.asked == [], "one is under way"


def test_nothing_is_fetched_ahead_while_enough_is_buffered() -> None:
    talk = Talk()
    get = talk.get()
    batches = bodies.Delivery(((0, 5), (1, 5), (2, 5)), 9)
    get.answer(Kind.MESSAGES, batches, packed(bytes(900)), packed(bytes(900)), packed(b"2"))
    talk.reading.take(1)
    assert talk.asked == []
    talk.reading.take(1)
    assert talk.get().body.position == 3


def test_without_prefetch_only_what_is_wanted_is_asked_for() -> None:
    talk = Talk(prefetch=False)
    get = talk.get()
    assert get.body.max_messages == 5
    deliver(get, 0, b"0", end=9)
    talk.reading.take(1)
    assert talk.asked == []


def test_who_does_not_want_to_wait_is_not_kept_waiting_by_one_who_does() -> None:
    talk = Talk()
    talk.get().answer(Kind.NO_MESSAGES, bodies.NoMessages(0))
    talk.reading.want(5.0, 5)
    assert talk.get().body.wait_ms == 5000
    talk.reading.want(5.0, 5)
    assert talk.asked == []
    talk.reading.want(0.0, 5)
    assert talk.get().body.wait_ms == 0
    talk.reading.want(0.0, 5)
    assert talk.asked == []


def test_an_empty_answer_is_noted_with_the_get_it_belongs_to() -> None:
    talk = Talk()
    assert (talk.reading.gets_sent, talk.reading.empty_get) == (1, 0)
    talk.get().answer(Kind.NO_MESSAGES, bodies.NoMessages(4))
    assert talk.reading.empty_get == 1


def test_what_is_put_back_comes_out_first_again() -> None:
    talk = Talk()
    deliver(talk.get(), 0, *(b"%d" % place for place in range(6)))
    talk.reading.take(1)
    parts = talk.reading.take(3)
    talk.reading.put_back([part.cut(part.start + 1, part.stop) for part in parts])
    assert talk.reading.buffered == 4
    assert payloads_of(talk.reading.take(99)) == [b"2", b"3", b"4", b"5"]
    assert talk.reading._buffered_bytes == 0


def test_single_messages_and_batches_come_from_the_same_buffer() -> None:
    talk = Talk()
    deliver(talk.get(), 0, *(b"%d" % place for place in range(6)))
    message = talk.reading.next_message()
    assert message is not None
    assert message.payload == b"0"
    assert payloads_of(talk.reading.take(2)) == [b"1", b"2"]
    rest = [message.payload for message in iter(talk.reading.next_message, None)]
    assert rest == [b"3", b"4", b"5"]
    assert (talk.reading.buffered, talk.reading._buffered_bytes) == (0, 0)


def test_a_damaged_batch_is_never_handed_out() -> None:
    talk = Talk()
    talk.get().answer(Kind.MESSAGES, bodies.Delivery(((0, 5),), 1), packed(b"0")[:-1] + b"?")
    assert isinstance(talk.reading.error, StoredDataCorrupt)
    assert talk.reading.take(9) == []


@pytest.mark.parametrize(
    ("code", "kind", "error"),
    [(Code.TAKEN_OVER, Kind.REFUSED, TakenOver), (Code.NOT_SUBSCRIBED, Kind.NOT_SUBSCRIBED, NotSubscribed)],
)
def test_a_refused_get_or_attach_fails_the_reading_for_good(code: Code, kind: Kind, error: type[Exception]) -> None:
    got = Talk()
    got.get().refuse(code, kind=kind)
    attaching = Talk(attached=False)
    attaching.reading.want(0.0, 5)
    attaching.take_asked()[0].refuse(code, kind=kind)
    for talk in (got, attaching):
        assert isinstance(talk.reading.error, error)
        talk.reading.want(0.0, 5)
        assert talk.asked == []


def acking(talk: Talk) -> Ranges:
    (asked,) = [asked for asked in talk.asked if asked.kind == Kind.ACK]
    acked: Ranges = asked.body.acked
    return acked


def test_one_ack_is_under_way_and_the_others_join_meanwhile() -> None:
    talk = Talk()
    talk.take_asked()
    talk.reading.ack(0, 1)
    assert acking(talk) == ((0, 1),)
    for offset in (2, 1, 9, 3, 5, 4):
        talk.reading.ack(offset, offset + 1)
    (first,) = talk.take_asked()
    assert not talk.reading.acks_done()
    first.answer(Kind.ACK, bodies.Done())
    assert acking(talk) == ((1, 6), (9, 10)), "in as few ranges as they need, oldest first"
    talk.take_asked()[0].answer(Kind.ACK, bodies.Done())
    assert talk.reading.acks_done()


def test_what_was_handed_out_is_acked_when_told_to() -> None:
    talk = Talk()
    talk.take_asked()
    talk.reading.ack_handed()
    assert talk.asked == []
    talk.reading.handed = [(0, 2), (2, 3)]
    talk.reading.ack_handed()
    assert acking(talk) == ((0, 3),)
    assert talk.reading.handed == []


def test_acks_wait_for_the_attach() -> None:
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    talk.reading.ack(0, 1)
    talk.attach()
    assert acking(talk) == ((0, 1),)


def test_acks_refused_by_a_full_disk_are_sent_again_with_those_made_since() -> None:
    talk = Talk()
    talk.take_asked()
    talk.reading.ack(0, 1)
    talk.take_asked()[0].refuse(Code.DISK_FULL, retry_after_s=0.2)
    talk.reading.ack(1, 2)
    assert talk.asked == []
    assert talk.reading.pump(talk.now_s) == talk.now_s + 0.2
    assert not talk.reading.acks_done()
    talk.now_s += 0.2
    assert talk.reading.pump(talk.now_s) is None
    assert acking(talk) == ((0, 2),)
    assert talk.reading.error is None


def test_acks_refused_for_good_fail_the_reading() -> None:
    talk = Talk()
    talk.take_asked()
    talk.reading.ack(0, 1)
    talk.take_asked()[0].refuse(Code.LIMIT)
    assert isinstance(talk.reading.error, LimitReached)


def test_a_request_carries_a_bounded_number_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "_ACK_RANGES_AT_ONCE", 2)
    talk = Talk()
    talk.take_asked()
    talk.reading.ack(20, 21)
    for offset in (6, 4, 2, 0):
        talk.reading.ack(offset, offset + 1)
    talk.take_asked()[0].answer(Kind.ACK, bodies.Done())
    assert acking(talk) == ((0, 1), (2, 3))
    talk.take_asked()[0].answer(Kind.ACK, bodies.Done())
    assert acking(talk) == ((4, 5), (6, 7))


def test_an_attach_refused_by_a_full_disk_is_a_retryable_error() -> None:
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    talk.take_asked()[0].refuse(Code.DISK_FULL)
    assert isinstance(talk.reading.error, DiskFull)


def test_a_start_is_new_earliest_an_offset_or_a_time() -> None:
    assert start_fields("new") == ("new", 0)
    assert start_fields("earliest") == ("earliest", 0)
    assert start_fields(5) == ("offset", 5)
    assert start_fields(datetime(2020, 1, 1, tzinfo=UTC)) == ("time", 1_577_836_800_000_000)
    for wrong in ("latest", None, 1.5):
        with pytest.raises(ValueError, match="start is"):
            start_fields(wrong)
