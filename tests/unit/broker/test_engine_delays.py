"""Delayed messages: kept when put, on their topic when due, once, whatever happens in between."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, START_US, Asker, body_of, code_of, news_asker, payloads_of

from clarion.broker.engine import Reply
from clarion.model.errors import StoreUnavailable
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


@pytest.fixture
def asker() -> Asker:
    return made()


def made(**limits: Any) -> Asker:
    asker = news_asker(**limits)
    asker.tick()
    return asker


def due(*at_s: float) -> bytes:
    """Return times on the asker's clock as they are sent."""
    return struct.pack(f"<{len(at_s)}Q", *(START_US + int(each * 1e6) for each in at_s))


def put(asker: Asker, number: int, *payloads_at: tuple[bytes, float], ttl_ms: int = 0) -> Reply:
    packed = asker.batch(1, number, *(payload for payload, _ in payloads_at))
    body = bodies.Put(NEWS, ttl_ms, due(*(at_s for _, at_s in payloads_at)))
    return asker.ask(Kind.PUT, body, packed)


def run_to(asker: Asker, now_s: float) -> None:
    """Let time pass up to just after a moment, and everything reach the disk that falls due meanwhile."""
    now_s += 0.001
    while (deadline_s := asker.engine.next_deadline_s()) <= now_s:
        asker.now_s = max(asker.now_s, deadline_s)
        asker.tick()
        asker.settle()
    asker.now_s = now_s


def read(asker: Asker) -> list[bytes]:
    reply = asker.get(NEWS, asker.attach(NEWS).token)
    return payloads_of(reply) if reply.kind == Kind.MESSAGES else []


def test_a_delayed_put_is_acked_without_an_offset_and_appears_when_it_is_due(asker: Asker) -> None:
    done = body_of(put(asker, 1, (b"later", 200)), bodies.PutDone)
    assert (done.number, done.first_offset) == (1, -1)
    asker.put(NEWS, asker.batch(1, 2, b"now"))
    run_to(asker, 199.9)
    assert read(asker) == [b"now"]
    run_to(asker, 200.0)
    assert read(asker) == [b"now", b"later"]


def test_a_waiting_get_is_woken_when_a_message_is_due(asker: Asker) -> None:
    put(asker, 1, (b"later", 130))
    key = asker.send_wait(NEWS, asker.attach(NEWS).token, wait_ms=60_000)
    asker.now_s = 130.0
    asker.tick()
    assert key not in asker.replies, "not before the commit"
    asker.settle()
    assert payloads_of(asker.replies[key]) == [b"later"]


def test_the_next_deadline_is_when_the_next_message_is_due(asker: Asker) -> None:
    asker = made(topic_unload_interval_s=1000, stale_msg_interval_s=1000)
    put(asker, 1, (b"later", asker.now_s + 0.4))
    asker.tick()
    assert asker.engine.next_deadline_s() == pytest.approx(asker.now_s + 0.4, abs=0.01)


def test_messages_of_one_batch_appear_one_after_the_other_and_keep_their_ids(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"a", b"b", b"c")
    asker.ask(Kind.PUT, bodies.Put(NEWS, 0, due(110, 120, 130)), packed)
    ids = [Batch.parse(packed).message_id(place) for place in range(3)]
    for now_s, expected in ((109.0, []), (110.0, [b"a"]), (125.0, [b"a", b"b"]), (130.0, [b"a", b"b", b"c"])):
        run_to(asker, now_s)
        assert read(asker) == expected
    blobs = asker.get(NEWS, asker.attach(NEWS).token).blobs
    assert [Batch.parse(bytes(blob)).message_id(0) for blob in blobs] == ids
    assert asker.store.first_due_us() is None
    assert asker.store.staged_totals(FIRST_TOPIC) == (0, 0)


def test_a_batch_that_is_due_at_once_moves_without_being_written_again(asker: Asker) -> None:
    put(asker, 1, (b"a", 110), (b"b", 111))
    asker.now_s = 112.0
    asker.tick()
    group = asker.take_group()
    assert [release.staged for release in group.changes.releases] == [1]
    assert not group.changes.batches
    asker.commit(group)
    assert read(asker) == [b"a", b"b"]


def test_a_compressed_batch_is_cut_where_it_has_to_be(asker: Asker) -> None:
    payloads = [b"x" * 500, b"y" * 500]
    packed = bytes(encode_batch(payloads, broker=1, publisher=1, stamp=9, number=1, compressed=True))
    assert Batch.parse(packed).is_compressed
    asker.ask(Kind.PUT, bodies.Put(NEWS, 0, due(110, 120)), packed)
    run_to(asker, 110)
    assert read(asker) == payloads[:1]
    run_to(asker, 120)
    assert read(asker) == payloads


def test_what_is_due_already_is_a_plain_put(asker: Asker) -> None:
    assert body_of(put(asker, 1, (b"a", 50), (b"b", 60)), bodies.PutDone).first_offset == 0
    assert read(asker) == [b"a", b"b"]


def test_what_is_due_in_part_appears_in_part(asker: Asker) -> None:
    assert body_of(put(asker, 1, (b"a", 0), (b"b", 150)), bodies.PutDone).first_offset == -1
    run_to(asker, asker.now_s)
    assert read(asker) == [b"a"]


@pytest.mark.parametrize("times", [due(200), due(200, 201, 202), due(201, 200), struct.pack("<QQ", 1, 1 << 62)])
def test_times_that_cannot_be_are_invalid_and_use_no_number(asker: Asker, times: bytes) -> None:
    packed = asker.batch(1, 1, b"a", b"b")
    refused = asker.ask(Kind.PUT, bodies.Put(NEWS, 0, times), packed)
    assert code_of(refused) == (Kind.INVALID, Code.MALFORMED)
    assert asker.put(NEWS, packed).kind == Kind.ACK


def test_a_delayed_put_needs_a_subscriber_as_any_other(asker: Asker) -> None:
    refused = asker.ask(Kind.PUT, bodies.Put(b"quiet", 0, due(200)), asker.batch(1, 1, b"a"))
    assert code_of(refused) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)


def test_a_retry_of_a_delayed_put_is_answered_as_the_first_and_stores_nothing(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"a")
    body = bodies.Put(NEWS, 0, due(200))
    keys = [asker.send(Kind.PUT, body, packed), asker.send(Kind.PUT, body, packed)]
    asker.settle()
    asker.crash()
    keys.append(asker.send(Kind.PUT, body, packed))
    assert [body_of(asker.replies[key], bodies.PutDone).first_offset for key in keys] == [-1, -1, -1]
    run_to(asker, 200)
    assert read(asker) == [b"a"]


def test_a_batch_is_not_released_twice_while_the_first_release_is_on_its_way(asker: Asker) -> None:
    put(asker, 1, (b"a", 110), (b"b", 120))
    asker.now_s = 111.0
    asker.tick()
    first = asker.take_group()
    asker.tick(10)
    assert not asker.state.open.shown
    asker.commit(first)
    run_to(asker, asker.now_s)
    assert read(asker) == [b"a", b"b"]


def test_what_is_staged_while_a_release_is_under_way_is_found_when_it_is_on_disk(asker: Asker) -> None:
    put(asker, 1, (b"a", 110))
    asker.now_s = 110.5
    asker.tick()
    group = asker.take_group()
    asker.send(Kind.PUT, bodies.Put(NEWS, 0, due(112)), asker.batch(1, 2, b"b"))
    asker.now_s = 113.0
    asker.tick()
    asker.commit(group)
    asker.settle()
    run_to(asker, 113.0)
    assert read(asker) == [b"a", b"b"]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("now_s", [115.0, 125.0])
def test_a_crash_while_messages_appear_neither_loses_nor_repeats_any(committed: bool, now_s: float) -> None:
    asker = made()
    put(asker, 1, (b"a", 110), (b"b", 120))
    put(asker, 2, (b"c", 110))
    asker.now_s = now_s
    asker.tick()
    group = asker.take_group()
    if committed:
        asker.store.commit(group.changes)
    asker.crash()
    run_to(asker, 125.0)
    assert sorted(read(asker)) == [b"a", b"b", b"c"]
    assert asker.store.staged_totals(FIRST_TOPIC) == (0, 0)


def test_a_failed_commit_while_messages_appear_is_made_up_for(asker: Asker) -> None:
    put(asker, 1, (b"a", 110), (b"b", 120))
    asker.now_s = 111.0
    asker.tick()
    group = asker.take_group()
    asker.send(Kind.PUT, bodies.Put(NEWS, 0, due(112)), asker.batch(1, 2, b"c"))
    asker.fail(group)
    run_to(asker, 130.0)
    assert read(asker) == [b"a", b"b"]


def test_delayed_messages_of_a_deleted_topic_are_gone_with_it(asker: Asker) -> None:
    put(asker, 1, (b"a", 110))
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.now_s = 111.0
    asker.tick()
    asker.settle()
    assert asker.store.first_due_us() is None
    asker.subscribe(NEWS)
    run_to(asker, 120.0)
    assert read(asker) == []


def test_a_topic_that_nobody_subscribes_to_any_more_lets_go_of_what_appears(asker: Asker) -> None:
    put(asker, 1, (b"a", 110))
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"reader"))
    run_to(asker, 115.0)
    assert asker.store.used_bytes() == 0
    assert asker.state.topics[NEWS].next_offset == 1


def test_the_time_to_live_of_a_delayed_message_begins_when_it_appears(asker: Asker) -> None:
    put(asker, 1, (b"a", 110), (b"b", 120), ttl_ms=5000)
    run_to(asker, 112.0)
    assert read(asker) == [b"a"]
    run_to(asker, 121.0)
    assert read(asker) == [b"b"]
    run_to(asker, 126.0)
    assert read(asker) == []


def test_what_is_delayed_counts_against_the_bound_of_its_topic() -> None:
    asker = made(topic_max_bytes=400)
    assert put(asker, 1, (bytes(100), 200)).kind == Kind.ACK
    assert put(asker, 2, (bytes(100), 200)).kind == Kind.ACK
    assert code_of(put(asker, 3, (bytes(100), 200))) == (Kind.REFUSED, Code.TOPIC_FULL)
    assert code_of(asker.put(NEWS, asker.batch(1, 3, bytes(100)))) == (Kind.REFUSED, Code.TOPIC_FULL)
    asker.crash()
    assert code_of(asker.put(NEWS, asker.batch(1, 3, bytes(100)))) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_a_full_disk_refuses_delayed_puts_and_keeps_parts_waiting_that_would_have_to_be_written() -> None:
    asker = made(disk_reserve_bytes=1000)
    put(asker, 1, (b"a", 110), (b"b", 120))
    put(asker, 2, (b"c", 110))
    asker.store.capacity_bytes = asker.store.used_bytes() + 1010
    run_to(asker, 105.0)
    assert code_of(put(asker, 3, (b"d", 200))) == (Kind.REFUSED, Code.DISK_FULL)
    run_to(asker, 111.0)
    assert read(asker) == [b"c"], "moving takes no room, cutting does"
    asker.store.capacity_bytes = 1 << 40
    run_to(asker, 115.0)
    assert read(asker) == [b"c", b"a"]


def test_many_batches_that_are_due_at_once_appear_in_rounds_and_in_order(asker: Asker) -> None:
    for number in range(1, 1101):
        asker.send(Kind.PUT, bodies.Put(NEWS, 0, due(200 + number / 1000)), asker.batch(1, number, b"%d" % number))
    asker.settle()
    asker.now_s = 300.0
    asker.tick()
    group = asker.take_group()
    assert 0 < len(group.changes.releases) < 1100
    asker.commit(group)
    run_to(asker, 301.0)
    token = asker.attach(NEWS).token
    assert payloads_of(asker.get(NEWS, token, most=2000)) == [b"%d" % number for number in range(1, 1101)]


def test_a_delayed_batch_that_could_not_be_read_just_now_appears_when_it_can(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(asker, 1, (b"first", 200), (b"second", 300))
    with monkeypatch.context() as patch:
        patch.setattr(asker.store, "staged_batch", _unavailable)
        run_to(asker, 250)
    assert read(asker) == []
    stats = asker.engine.stats()
    assert stats["unavailable_reads"] > 0
    assert "corrupt_reads" not in stats
    run_to(asker, 260)
    assert read(asker) == [b"first"]


def _unavailable(*_: object) -> NoReturn:
    raise StoreUnavailable("too many open files")
