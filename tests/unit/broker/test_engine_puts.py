"""What the engine promises publishers."""

from __future__ import annotations

import struct

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, Asker, body_of, code_of, news_asker
from xxhash import xxh3_64_intdigest

from clarion.model.ids import RECEIPTS_KEPT
from clarion.wire import bodies
from clarion.wire.batch import HEADER_BYTES
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


@pytest.fixture
def asker() -> Asker:
    return news_asker()


def test_a_put_is_answered_with_its_offset_once_it_is_on_disk(asker: Asker) -> None:
    key = asker.send_put(NEWS, asker.batch(1, 1, b"one", b"two"))
    assert key not in asker.replies
    group = asker.take_group()
    asker.store.commit(group.changes)
    asker.hear()
    assert key not in asker.replies, "the engine was not told yet"
    asker.engine.committed(group, asker.now)
    asker.hear()
    done = body_of(asker.replies[key], bodies.PutDone)
    assert (done.number, done.first_offset) == (1, 0)
    assert body_of(asker.put(NEWS, asker.batch(1, 2, b"three")), bodies.PutDone).first_offset == 2


def test_a_retry_gets_the_first_receipt(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    first = asker.put(NEWS, packed)
    asker.put(NEWS, asker.batch(1, 2, b"two"))
    again = body_of(asker.put(NEWS, packed), bodies.PutDone)
    assert (again.number, again.first_offset, again.committed_at_us) == (
        1,
        0,
        body_of(first, bodies.PutDone).committed_at_us,
    )
    topic = asker.store.topic(NEWS)
    assert topic is not None
    assert topic.next_offset == 2


def test_a_retry_gets_the_first_receipt_after_a_crash_and_after_an_unload(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    first = body_of(asker.put(NEWS, packed), bodies.PutDone)
    asker.crash()
    again = body_of(asker.put(NEWS, packed), bodies.PutDone)
    assert (again.first_offset, again.committed_at_us) == (first.first_offset, first.committed_at_us)
    asker.state.drop_topic(asker.state.topics[NEWS])
    assert body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset == first.first_offset


def test_a_retry_while_the_first_is_under_way_is_answered_with_it(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    keys = [asker.send_put(NEWS, packed)]
    group = asker.take_group()
    keys.append(asker.send_put(NEWS, packed))
    assert not asker.replies.keys() & set(keys)
    asker.commit(group)
    assert [body_of(asker.replies[key], bodies.PutDone).first_offset for key in keys] == [0, 0]


def test_a_retry_of_any_batch_that_may_be_in_flight_is_known(asker: Asker) -> None:
    batches = [asker.batch(1, number, b"%d" % number) for number in range(1, RECEIPTS_KEPT + 2)]
    for packed in batches:
        asker.put(NEWS, packed)
    asker.crash()
    assert [body_of(asker.put(NEWS, packed), bodies.PutDone).number for packed in batches[1:]] == list(
        range(2, RECEIPTS_KEPT + 2)
    )
    assert code_of(asker.put(NEWS, batches[0])) == (Kind.INVALID, Code.MALFORMED)


def test_a_gap_is_answered_with_what_is_expected(asker: Asker) -> None:
    refused = asker.put(NEWS, asker.batch(1, 3, b"three"))
    assert code_of(refused) == (Kind.REFUSED, Code.GAP)
    assert body_of(refused, bodies.Refused).expected == 1


def test_the_same_number_with_other_contents_is_invalid(asker: Asker) -> None:
    asker.put(NEWS, asker.batch(1, 1, b"one"))
    assert code_of(asker.put(NEWS, asker.batch(1, 1, b"other"))) == (Kind.INVALID, Code.CHECKSUM_DIFFERS)
    asker.crash()
    assert code_of(asker.put(NEWS, asker.batch(1, 1, b"other"))) == (Kind.INVALID, Code.CHECKSUM_DIFFERS)


def test_a_refusal_for_want_of_subscribers_uses_its_number_and_stays(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"quiet", "until-read"))
    assert code_of(asker.put(b"quiet", packed)) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)
    asker.subscribe(b"quiet")
    asker.crash()
    assert code_of(asker.put(b"quiet", packed)) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)
    assert body_of(asker.put(b"quiet", asker.batch(1, 2, b"two")), bodies.PutDone).first_offset == 0


def test_a_refusal_for_want_of_subscribers_says_what_to_do(asker: Asker) -> None:
    refused = body_of(asker.put(b"quiet", asker.batch(1, 1, b"one")), bodies.Refused)
    assert refused.text.endswith("let somebody subscribe first, or set its retention to keep")


def test_a_topic_that_keeps_needs_no_subscriber(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"kept", "keep"))
    assert asker.put(b"kept", asker.batch(1, 1, b"one")).kind == Kind.ACK


def test_a_batch_that_is_too_large_uses_its_number_and_stays_refused() -> None:
    asker = news_asker(max_batch_bytes=200)
    packed = asker.batch(1, 1, bytes(300))
    assert code_of(asker.put(NEWS, packed)) == (Kind.REFUSED, Code.TOO_LARGE)
    asker.crash()
    assert code_of(asker.put(NEWS, packed)) == (Kind.REFUSED, Code.TOO_LARGE)
    assert asker.put(NEWS, asker.batch(1, 2, b"two")).kind == Kind.ACK


def test_a_full_topic_refuses_until_its_readers_caught_up() -> None:
    asker = news_asker(topic_max_bytes=300)
    token = asker.attach(NEWS).token
    packed = asker.batch(1, 2, bytes(100))
    asker.put(NEWS, asker.batch(1, 1, bytes(100)))
    assert code_of(asker.put(NEWS, packed)) == (Kind.REFUSED, Code.TOPIC_FULL)
    asker.ack(NEWS, token, (0, 1))
    asker.tick(2)
    asker.settle()
    assert asker.put(NEWS, packed).kind == Kind.ACK


def test_an_empty_topic_takes_a_batch_that_is_larger_than_the_topic_may_be() -> None:
    asker = news_asker(topic_max_bytes=100)
    assert asker.put(NEWS, asker.batch(1, 1, bytes(500))).kind == Kind.ACK
    assert code_of(asker.put(NEWS, asker.batch(1, 2, b"x"))) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_the_reserve_of_the_disk_is_not_for_puts() -> None:
    asker = news_asker(disk_reserve_bytes=1000)
    token = asker.attach(NEWS).token
    packed = asker.batch(1, 1, b"one")
    asker.put(NEWS, packed)
    asker.store.capacity_bytes = asker.store.used_bytes() + 1050
    asker.tick(2)
    assert code_of(asker.put(NEWS, asker.batch(1, 2, bytes(100)))) == (Kind.REFUSED, Code.DISK_FULL)
    assert asker.ack(NEWS, token, (0, 1)).kind == Kind.ACK, "acks go on"
    assert asker.put(NEWS, packed).kind == Kind.ACK, "a retry of what is stored needs no room"


def test_the_same_nonce_gives_the_same_publisher(asker: Asker) -> None:
    key = asker.send(Kind.REGISTER, bodies.Register(b"a new nonce"))
    group = asker.take_group()
    second = asker.send(Kind.REGISTER, bodies.Register(b"a new nonce"))
    asker.commit(group)
    asker.settle()
    asker.crash()
    third = asker.register(b"a new nonce")
    assert asker.replies[key].body == asker.replies[second].body == bodies.Registered(1, third)
    assert asker.register(b"another nonce") > third


def test_a_publisher_id_is_never_given_out_again(asker: Asker) -> None:
    publisher = asker.register(b"short lived")
    asker.ask(Kind.FORGET, bodies.Forget(publisher))
    asker.crash()
    assert asker.register(b"short lived") > publisher


def test_a_forgotten_publisher_must_register_again(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    asker.put(NEWS, packed)
    asker.send(Kind.FORGET, bodies.Forget(1))
    for _ in range(2):
        key = asker.send_put(NEWS, packed)
        assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.PUBLISHER_EXPIRED)
        asker.settle()
    asker.crash()
    assert code_of(asker.put(NEWS, packed)) == (Kind.REFUSED, Code.PUBLISHER_EXPIRED)


@pytest.mark.parametrize("publisher", [0, -1, 99, 1 << 32, (1 << 64) - 1])
def test_forgetting_a_publisher_that_never_was_changes_nothing(asker: Asker, publisher: int) -> None:
    key = asker.send(Kind.FORGET, bodies.Forget(publisher))
    assert asker.replies[key].body == bodies.Done()
    assert asker.engine.take_group() is None


def test_a_batch_made_for_another_broker_is_invalid(asker: Asker) -> None:
    packed = bytearray(asker.batch(1, 1, b"one"))
    struct.pack_into("<I", packed, 20, 2)
    assert code_of(asker.put(NEWS, _seal(packed))) == (Kind.INVALID, Code.MALFORMED)


def test_a_batch_whose_offsets_go_back_is_invalid(asker: Asker) -> None:
    packed = bytearray(asker.batch(1, 1, b"abcd", b"efgh"))
    struct.pack_into("<i", packed, HEADER_BYTES + 4, 100)
    assert code_of(asker.put(NEWS, _seal(packed))) == (Kind.INVALID, Code.MALFORMED)


def test_a_damaged_batch_is_invalid_and_uses_no_number(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    assert code_of(asker.put(NEWS, packed[:-1] + b"?")) == (Kind.INVALID, Code.MALFORMED)
    assert asker.put(NEWS, packed).kind == Kind.ACK


def test_commit_time_never_goes_back_within_a_topic(asker: Asker) -> None:
    first = body_of(asker.put(NEWS, asker.batch(1, 1, b"one")), bodies.PutDone)
    asker.now_s -= 50
    second = body_of(asker.put(NEWS, asker.batch(1, 2, b"two")), bodies.PutDone)
    assert second.committed_at_us == first.committed_at_us


def test_credit_is_shared_among_publishers_and_never_runs_out() -> None:
    asker = Asker(topic_max_bytes=2000, credit_max_messages=1000)
    asker.subscribe(NEWS)
    one, two = asker.register(b"publisher one"), asker.register(b"publisher two")
    alone = body_of(asker.put(NEWS, asker.batch(one, 1, b"x" * 20)), bodies.PutDone).credit
    shared = body_of(asker.put(NEWS, asker.batch(two, 1, b"x" * 20)), bodies.PutDone).credit
    assert 1 < shared < alone <= 1000
    number = 2
    while (reply := asker.put(NEWS, asker.batch(one, number, b"x" * 20))).kind == Kind.ACK:
        assert body_of(reply, bodies.PutDone).credit >= number + 1
        number += 1
    assert code_of(reply) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_topics_are_bounded() -> None:
    asker = news_asker(max_topics=1)
    assert code_of(asker.put(b"second", asker.batch(1, 1, b"x"))) == (Kind.REFUSED, Code.LIMIT)
    assert code_of(asker.subscribe(b"second")) == (Kind.REFUSED, Code.LIMIT)
    assert code_of(asker.ask(Kind.CONFIGURE, bodies.Configure(b"second", "keep"))) == (Kind.REFUSED, Code.LIMIT)


@pytest.mark.parametrize("name", [b"news/*", b"#", b"*/news", b"a/#/b"])
def test_a_pattern_takes_no_messages(asker: Asker, name: bytes) -> None:
    assert code_of(asker.put(name, asker.batch(1, 1, b"x"))) == (Kind.INVALID, Code.MALFORMED)
    assert asker.store.topic(name) is None


def test_stars_inside_a_part_are_just_letters(asker: Asker) -> None:
    asker.subscribe(b"5*/a#")
    assert asker.put(b"5*/a#", asker.batch(1, 1, b"x")).kind == Kind.ACK


def test_a_topic_may_have_a_bound_of_its_own_for_batches(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"max_batch_bytes": 100}))
    refused = asker.put(NEWS, asker.batch(1, 1, bytes(100)))
    assert code_of(refused) == (Kind.REFUSED, Code.TOO_LARGE)
    assert "at most 100 bytes" in body_of(refused, bodies.Refused).text
    assert asker.put(NEWS, asker.batch(1, 2, b"x")).kind == Kind.ACK


def test_a_topic_may_have_a_bound_of_its_own_for_unread_bytes(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"max_bytes": 300}))
    alone = body_of(asker.put(NEWS, asker.batch(1, 1, bytes(100))), bodies.PutDone)
    assert alone.credit == 2, "slowed before it is refused"
    assert code_of(asker.put(NEWS, asker.batch(1, 2, bytes(100)))) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_messages_expire_after_their_own_time_to_live_or_the_topics(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"ttl_s": 10.0}))
    put = body_of(asker.put(NEWS, asker.batch(1, 1, b"topic's")), bodies.PutDone)
    own = body_of(asker.ask(Kind.PUT, bodies.Put(NEWS, 2500), asker.batch(1, 2, b"own")), bodies.PutDone)
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"ttl_s": 0.0}))
    asker.put(NEWS, asker.batch(1, 3, b"never"))
    expiries = [batch.expires_at_us for batch in asker.store.batches(FIRST_TOPIC, 0, 9, 9999)]
    assert expiries == [put.committed_at_us + 10_000_000, own.committed_at_us + 2_500_000, 0]


def test_a_time_to_live_below_zero_is_invalid(asker: Asker) -> None:
    refused = asker.ask(Kind.PUT, bodies.Put(NEWS, -1), asker.batch(1, 1, b"x"))
    assert code_of(refused) == (Kind.INVALID, Code.MALFORMED)


def test_a_put_on_a_topic_that_is_being_deleted_is_to_be_tried_again(asker: Asker) -> None:
    asker.put(NEWS, asker.batch(1, 1, b"old"))
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    packed = asker.batch(1, 1, b"new")
    for _ in range(2):
        key = asker.send_put(NEWS, packed)
        assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.BUSY)
        assert body_of(asker.replies[key], bodies.Refused).retry_after_s > 0
    asker.settle()
    asker.subscribe(NEWS)
    assert body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset == 0


def _seal(packed: bytearray) -> bytes:
    packed[8:16] = struct.pack("<Q", xxh3_64_intdigest(bytes(packed[16:]), seed=int.from_bytes(packed[:8], "little")))
    return bytes(packed)


def opened(asker: Asker, *topics: bytes) -> tuple[tuple[int, int, str], ...]:
    return body_of(asker.ask(Kind.OPEN, bodies.Open(topics)), bodies.Opened).topics


def test_opening_tells_a_topics_number_and_makes_none_that_nobody_would_read(asker: Asker) -> None:
    (news, nobodys, pattern) = opened(asker, NEWS, b"nobody's", b"a/*")
    assert news == (FIRST_TOPIC, 0, "")
    assert nobodys[:2] == (0, Code.NO_SUBSCRIBER)
    assert pattern[:2] == (0, Code.MALFORMED)
    assert asker.store.topic(b"nobody's") is None


def test_opening_makes_a_topic_that_is_kept_or_awaited_and_tells_its_number_once_it_is_on_disk() -> None:
    for asker in (Asker(default_retention="keep"), Asker()):
        asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(b"alerts/#", b"reader"))
        asker.tick()
        asker.settle()
        key = asker.send(Kind.OPEN, bodies.Open((b"alerts/new",)))
        assert key not in asker.replies, "after a crash its number might be another's"
        asker.settle()
        ((number, code, _),) = body_of(asker.replies[key], bodies.Opened).topics
        row = asker.store.topic(b"alerts/new")
        assert row is not None
        assert (number, code) == (row.number, 0)
        assert opened(asker, b"alerts/new") == ((number, 0, ""),)


def test_opening_too_many_topics_at_once_or_beyond_the_brokers_bound_is_refused() -> None:
    asker = Asker(default_retention="keep", max_topics=1)
    assert code_of(asker.ask(Kind.OPEN, bodies.Open((b"x",) * 1001))) == (Kind.INVALID, Code.TOO_LARGE)
    assert [code for _, code, _ in opened(asker, b"one", b"two")] == [0, Code.LIMIT]


def test_a_put_that_names_a_topic_is_never_taken_for_one_made_under_its_name_later(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"one")
    put = bodies.Put(NEWS, topic_number=FIRST_TOPIC)
    assert asker.ask(Kind.PUT, put, packed).kind == Kind.ACK
    asker.ask(Kind.DELETE, bodies.Delete(NEWS, FIRST_TOPIC))
    assert code_of(asker.ask(Kind.PUT, put, packed)) == (Kind.REFUSED, Code.NO_TOPIC)
    asker.subscribe(NEWS)
    for _ in range(2):
        assert code_of(asker.ask(Kind.PUT, put, packed)) == (Kind.REFUSED, Code.NO_TOPIC)
        asker.crash()
    ((number, _, _),) = opened(asker, NEWS)
    assert number > 1
    assert asker.ask(Kind.PUT, bodies.Put(NEWS, topic_number=number), asker.batch(1, 1, b"new")).kind == Kind.ACK
    row = asker.store.topic(NEWS)
    assert row is not None
    assert row.next_offset == 1


def test_a_put_is_asked_to_wait_while_its_topic_is_being_deleted(asker: Asker) -> None:
    asker.send(Kind.DELETE, bodies.Delete(NEWS, FIRST_TOPIC))
    key = asker.send(Kind.PUT, bodies.Put(NEWS, topic_number=FIRST_TOPIC), asker.batch(1, 1, b"one"))
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.BUSY)
    assert [
        code for _, code, _ in body_of(asker.replies[asker.send(Kind.OPEN, bodies.Open((NEWS,)))], bodies.Opened).topics
    ] == [Code.BUSY]
