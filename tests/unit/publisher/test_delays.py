"""Messages that live for a time, and messages that appear later."""

from __future__ import annotations

import struct

import pytest
from tests.unit.publisher.talking import TOPIC, Asked, Talk, payloads

from clarion.model import MessageId
from clarion.model.errors import NoSubscriber, TimedOut, TooLarge
from clarion.publisher import Publisher
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.receipts import Receipt, Receipts
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind
from clarion.wire.timestamps import all_due


def due_of(asked: Asked) -> list[int]:
    return [moment for (moment,) in struct.iter_unpack("<q", asked.body.due)]


def test_messages_of_one_batch_live_for_one_time_and_order_stays() -> None:
    talk = Talk(in_flight=64)
    for payload, ttl_ms in ((b"a", 0), (b"b", 0), (b"c", 50), (b"d", 50), (b"e", 70), (b"f", 0)):
        talk.put(TOPIC, payload, None, None, ttl_ms=ttl_ms)
    asked = talk.pump()
    assert payloads(asked) == [[b"a", b"b"], [b"c", b"d"], [b"e"], [b"f"]]
    assert [item.body.ttl_ms for item in asked] == [0, 50, 70, 0]
    assert all(item.body.due == b"" for item in asked)


def test_a_message_without_a_time_never_joins_those_that_have_one() -> None:
    talk = Talk()
    outgoing, _, _ = talk.put(TOPIC, b"a", None, None, ttl_ms=50)
    assert not outgoing.builder.plain
    assert OutgoingBatch(TOPIC).builder.plain


def test_puts_take_each_the_batch_of_their_kind_on_the_short_way_too() -> None:
    publisher = Publisher("tcp://127.0.0.1:1")
    plain = [publisher.put("topic", b"a")]
    brief = [publisher.put("topic", b"b", ttl_s=2.5), publisher.put("topic", b"c", ttl_s=2.5)]
    again = [publisher.put("topic", b"d"), publisher.put("topic", b"e")]
    later = [publisher.put("topic", b"f", deliver_at=5.0), publisher.put("topic", b"g", deliver_at=4)]
    again += [publisher.put("topic", b"h")]
    many = publisher.put_many("topic", ["i", b"j"], headers=[None, {"h": "v"}], deliver_at=[7.0, 6.0])
    found = [[receipt._batch for receipt in receipts] for receipts in (plain, brief, again, later)]
    assert [len(set(batches)) for batches in found] == [1, 1, 1, 1]
    assert [batches[0].builder.payloads for batches in found] == [
        [b"a"],
        [b"b", b"c"],
        [b"d", b"e", b"h"],
        [b"f", b"g", b"i", b"j"],
    ]
    assert [batches[0].ttl_ms for batches in found] == [0, 2500, 0, 0]
    assert [batches[0].builder.due for batches in found] == [
        None,
        None,
        None,
        [5_000_000, 4_000_000, 7_000_000, 6_000_000],
    ]
    assert len(many) == 2
    with pytest.raises(ValueError, match="2 payloads and 1 deliver_at"):
        publisher.put_many("topic", [b"k", b"l"], deliver_at=[7.0])
    with pytest.raises(TimedOut):
        publisher.close(timeout_s=0.0)


def test_what_is_refused_for_now_is_sent_again_with_its_times() -> None:
    talk = Talk()
    talk.put(TOPIC, b"a", None, None, ttl_ms=50, due_us=9)
    (asked,) = talk.pump()
    asked.refuse(Code.DISK_FULL, retry_after_s=1.0)
    talk.now_s += 1.0
    (again,) = talk.pump()
    assert (again.body, again.blobs) == (asked.body, asked.blobs)


def test_delayed_messages_gather_beside_the_others_and_leave_in_the_order_they_are_due() -> None:
    talk = Talk(in_flight=1)
    (held,) = talk.add_and_pump(b"held")
    for place in range(6):
        talk.put(TOPIC, b"now %d" % place, None, None)
        talk.put(TOPIC, b"later %d" % place, None, None, due_us=(30, 10, 20)[place % 3])
    talk.store(held)
    (now,) = talk.pump()
    talk.store(now)
    (later,) = talk.pump()
    assert payloads([now]) == [[b"now %d" % place for place in range(6)]]
    assert payloads([later]) == [[b"later %d" % place for place in (1, 4, 2, 5, 0, 3)]], "stable among equals"
    assert due_of(later) == [10, 10, 20, 20, 30, 30]
    assert later.batch.number == now.batch.number + 1


def test_neither_kind_keeps_the_other_waiting() -> None:
    talk = Talk(in_flight=1)
    (under_way,) = talk.add_and_pump(b"first")
    for _ in range(3):
        talk.put(TOPIC, b"later", None, None, due_us=5)
        talk.add(b"now")
        talk.store(under_way)
        (under_way,) = talk.pump()
        talk.add(b"now")
        talk.store(under_way)
        (other,) = talk.pump()
        assert {under_way.body.due == b"", other.body.due == b""} == {True, False}
        under_way = other


def test_keys_and_headers_follow_their_messages_through_the_sort_and_so_do_ids() -> None:
    outgoing = OutgoingBatch(TOPIC, delayed=True)
    outgoing.builder.add(b"late", b"key", None, 1, 30)
    outgoing.builder.extend([b"soon", b"middle"], None, 2, headers=[{"h": b"v"}, None], due=[10, 20])
    batch = Batch.parse(bytes(outgoing.seal(broker=1, publisher=2, stamp=3, number=4)))
    assert batch.payloads() == [b"soon", b"middle", b"late"]
    assert [batch.key(place) for place in range(3)] == [None, None, b"key"]
    assert [batch.headers(place) for place in range(3)] == [{"h": b"v"}, None, None]
    assert [outgoing.message_id(place) for place in range(3)] == [MessageId(1, 2, 3, place) for place in (2, 0, 1)]


def test_delayed_messages_are_not_compressed_and_others_are() -> None:
    talk = Talk(in_flight=64, compressed=True)
    for due_us in (None, 5):
        talk.put(TOPIC, b"same" * 1000, None, None, due_us=due_us)
    now, later = talk.pump()
    assert (now.batch.is_compressed, later.batch.is_compressed) == (True, False)


def test_the_receipt_of_a_delayed_message_has_its_id_and_no_offset() -> None:
    talk = Talk()
    first, _, _ = talk.put(TOPIC, b"late", None, None, due_us=20)
    second, place, _ = talk.put(TOPIC, b"soon", None, None, due_us=10)
    assert first is second
    (asked,) = talk.pump()
    talk.store(asked, first_offset=-1)
    late, soon = (Receipt(None, first, which) for which in (0, place))  # type: ignore[arg-type]
    assert late.done()
    assert (late.offset, soon.offset) == (None, None)
    assert (late.id, soon.id) == (asked.batch.message_id(1), asked.batch.message_id(0))
    assert Receipts(None, [(first, 0, 2)]).offsets == []  # type: ignore[arg-type]


def test_the_receipt_of_other_messages_has_its_offset() -> None:
    talk = Talk()
    outgoing, start, stop = talk.put_all(TOPIC, [b"a", b"b"])
    talk.store(talk.pump()[0], first_offset=7)
    assert Receipt(None, outgoing, 1).offset == 8  # type: ignore[arg-type]
    assert Receipts(None, [(outgoing, start, stop)]).offsets == [range(7, 9)]  # type: ignore[arg-type]


def test_a_receipt_is_printed_as_what_became_of_its_messages() -> None:
    talk = Talk()
    outgoing, start, stop = talk.put_all(TOPIC, [b"a", b"b"])
    one, both = Receipt(None, outgoing, 1), Receipts(None, [(outgoing, start, stop)])  # type: ignore[arg-type]
    assert repr(one) == f"Receipt(1 message for {TOPIC.decode()}, not stored yet)"
    talk.store(talk.pump()[0], first_offset=7)
    assert repr(one) == f"Receipt(1 message for {TOPIC.decode()}, stored at offset 8)"
    assert repr(both) == f"Receipts(2 messages for {TOPIC.decode()}, stored at offset 7)"
    refused = OutgoingBatch(TOPIC)
    refused.builder.add(b"", None, None, 1)
    refused.end(error=NoSubscriber("nobody"))
    assert repr(Receipt(None, refused, 0)).endswith("refused, NoSubscriber)")  # type: ignore[arg-type]
    assert repr(Receipts(None, [])) == "Receipts(0 messages, stored)"  # type: ignore[arg-type]


def test_one_moment_is_for_all_and_a_sequence_for_each() -> None:
    assert all_due(None, 3) is None
    assert all_due(2.0, 3) == [2_000_000] * 3
    assert all_due([1.0, 2.0], 2) == [1_000_000, 2_000_000]
    assert all_due([1.0], 2) == [1_000_000], "which is found to be too short by who checks lengths"


def test_who_waits_for_everything_waits_for_both_kinds() -> None:
    talk = Talk()
    now, _, _ = talk.put(TOPIC, b"now", None, None)
    later, _, _ = talk.put(TOPIC, b"later", None, None, due_us=5)
    assert set(talk.core.unfinished()) == {now, later}
    for asked in talk.pump() + talk.pump():
        talk.store(asked, first_offset=-1)
    assert talk.core.unfinished() == []
    assert talk.core.buffered_bytes == 0


def test_what_waits_fails_in_both_kinds() -> None:
    talk = Talk(registered=False)
    talk.greet()
    (hello,) = talk.take()
    batches = [talk.put(TOPIC, bytes(5000), None, None, due_us=due)[0] for due in (None, 5, None, 5)]
    hello.answer(Kind.ACK, bodies.Welcome(1, 1, bytes(16), 1, 4000, 64, 1 << 20))
    assert [type(outgoing.error) for outgoing in batches] == [TooLarge] * 4
    assert talk.core.buffered_bytes == 0
    batches = [talk.put(TOPIC, b"x", None, None, due_us=due)[0] for due in (None, 5)]
    talk.give_up(NoSubscriber("gone"))
    assert [type(outgoing.error) for outgoing in batches] == [NoSubscriber] * 2
    assert talk.core.buffered_bytes == 0


@pytest.mark.parametrize("count", [1, 7])
def test_batches_with_headers_stay_within_what_the_broker_takes(count: int) -> None:
    talk = Talk(in_flight=64, batch_bytes=2000)
    messages = [b"payload"] * 100
    headers = [{f"name {place}": bytes(20) for place in range(count)}] * 100
    start = 0
    while start < len(messages):
        stop = talk.core.chunk_end(TOPIC, messages, None, start, headers)
        talk.put_all(TOPIC, messages[start:stop], None, headers[start:stop])
        start = stop
    asked = talk.pump()
    assert len(asked) > 1
    assert all(len(item.blobs[0]) <= 2000 for item in asked)
    assert sum(item.batch.count for item in asked) == 100
    assert all(item.batch.headers(place) == headers[0] for item in asked for place in range(item.batch.count))
