"""Puts of many topics in one request: each is taken once or refused by itself, whatever becomes of the others."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import body_of, code_of
from tests.unit.broker.many_askers import A, B, C, ManyAsker, codes_of

from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


@pytest.fixture
def asker() -> ManyAsker:
    return ManyAsker(A, B, C)


def payloads(asker: ManyAsker, number: int) -> list[bytes]:
    return [payload for data in asker.stored(number) for payload in Batch.parse(data).payloads()]


def test_batches_of_many_topics_are_answered_together_once_all_are_on_disk(asker: ManyAsker) -> None:
    a, b, c = asker.numbers
    key = asker.send_puts(asker.part(a, b"1", b"2"), asker.part(b, b"3"), asker.part(a, b"4"))
    group = asker.take_group()
    asker.store.commit(group.changes)
    assert key not in asker.replies
    asker.engine.committed(group, asker.now)
    asker.hear()
    done = body_of(asker.replies[key], bodies.PutsDone)
    assert (done.offsets, done.refused) == ((0, 0, 2), ())
    assert all(done.credits)
    assert all(done.times_us)
    assert [payloads(asker, each) for each in (a, b, c)] == [[b"1", b"2", b"4"], [b"3"], []]


def test_credit_counts_on_from_what_the_publisher_has_put_on_a_topic(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    first = asker.put_parts(asker.part(a, b"1", b"2", b"3"), asker.part(b, b"4"))
    second = asker.put_parts(asker.part(a, b"5"), asker.part(b, b"6"))
    assert [now - before for now, before in zip(second.credits, first.credits, strict=True)] == [1, 1]
    assert first.credits[0] - first.credits[1] == 2


def test_two_publishers_may_be_in_one_request(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    other = asker.register(b"another publisher")
    done = asker.put_parts(
        asker.part(a, b"1"), asker.part(a, b"2", publisher=other), asker.part(b, b"3"), asker.part(a, b"4"),
        asker.part(a, b"5", publisher=other),
    )  # fmt: skip
    assert (done.offsets, done.refused) == ((0, 1, 0, 2, 3), ())


def test_a_gap_is_refused_and_what_follows_it_too_but_not_other_topics(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    first, second, third = (asker.part(a, b"%d" % each) for each in range(3))
    done = asker.put_parts(second, asker.part(b, b"other"), third)
    assert codes_of(done) == {0: Code.GAP, 2: Code.GAP}
    assert done.offsets == (-1, 0, -1)
    assert {expected for *_, expected in done.refused} == {1}
    done = asker.put_parts(first, second, third)
    assert (done.offsets, done.refused) == ((0, 1, 2), ())


def test_a_topic_that_is_not_there_is_refused_and_others_are_taken(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    for number in (0, -1, 1, 99, 1 << 62, (1 << 64) - 1):
        done = asker.put_parts((number, asker.batch(asker.publisher, 1, b"lost")), asker.part(a, b"kept"))
        assert codes_of(done) == {0: Code.NO_TOPIC}, number
        assert done.offsets[1] >= 0


def test_no_number_out_of_all_proportion_reaches_the_store(asker: ManyAsker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database may take no number of more than 63 bits."""
    keep = asker.store.topic_name

    def topic_name(number: int) -> bytes | None:
        assert -(1 << 63) <= number < 1 << 63
        return keep(number)

    monkeypatch.setattr(asker.store, "topic_name", topic_name)
    asker.crash()
    part = (1 << 63, asker.batch(asker.publisher, 1, b"lost"))
    assert codes_of(asker.put_parts(part)) == {0: Code.NO_TOPIC}
    acked = asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", ((1 << 63, 1, 0, 1),), True))
    assert body_of(acked, bodies.AcksDone).refused[0][1] == Code.NOT_SUBSCRIBED


def test_a_topic_that_is_deleted_in_the_middle_keeps_no_other_from_being_taken(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    first = asker.send_puts(asker.part(a, b"1"), asker.part(b, b"1"))
    asker.send(Kind.DELETE, bodies.Delete(A))
    late_a, late_b = asker.part(a, b"2"), asker.part(b, b"2")
    second = asker.send_puts(late_a, late_b)
    asker.settle()
    assert not body_of(asker.replies[first], bodies.PutsDone).refused
    assert codes_of(body_of(asker.replies[second], bodies.PutsDone)) == {0: Code.BUSY}
    asker.open(A)
    done = asker.put_parts(late_a, late_b)
    assert codes_of(done) == {0: Code.NO_TOPIC}, "what was for the topic that is gone is for no other"
    assert done.offsets == (-1, 1)
    assert payloads(asker, b) == [b"1", b"2"]


def test_a_full_topic_refuses_its_batch_and_those_after_it(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    asker.ask(Kind.CONFIGURE, bodies.Configure(A, "", {"max_bytes": 300, "at_bound": "refuse"}))
    asker.put_on(a, payload=b"x" * 300)
    late = [asker.part(a, b"2"), asker.part(b, b"2"), asker.part(a, b"3")]
    done = asker.put_parts(*late)
    assert codes_of(done) == {0: Code.TOPIC_FULL, 2: Code.GAP}
    assert done.refused[0][3] > 0, "it says when to try again"
    asker.ask(Kind.CONFIGURE, bodies.Configure(A, "", {"max_bytes": 10_000}))
    assert asker.put_parts(*late).offsets == (1, 0, 2)


def test_a_batch_that_nobody_will_read_is_refused_for_good_and_its_number_used_up() -> None:
    asker = ManyAsker(A, B, default_retention="until-read")
    a, b = asker.numbers
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"feeds/#", b"reader"))
    asker.subscribe(B)
    parts = [asker.part(a, b"1"), asker.part(b, b"1"), asker.part(a, b"2")]
    done = asker.put_parts(*parts)
    assert codes_of(done) == {0: Code.NO_SUBSCRIBER, 2: Code.NO_SUBSCRIBER}
    asker.subscribe(A)
    assert codes_of(asker.put_parts(*parts)) == {0: Code.NO_SUBSCRIBER, 2: Code.NO_SUBSCRIBER}
    assert asker.put_parts(asker.part(a, b"3")).offsets == (0,)


def test_a_refusal_for_good_that_is_not_on_disk_yet_is_told_when_it_is() -> None:
    asker = ManyAsker(A, B, default_retention="until-read")
    a, b = asker.numbers
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"feeds/#", b"reader"))
    asker.subscribe(B)
    parts = [asker.part(a, b"1"), asker.part(b, b"1")]
    keys = [asker.send_puts(*parts)]
    group = asker.take_group()
    keys.append(asker.send_puts(*parts))
    assert not [key for key in keys if key in asker.replies]
    asker.commit(group)
    asker.settle()
    for key in keys:
        done = body_of(asker.replies[key], bodies.PutsDone)
        assert (codes_of(done), done.offsets) == ({0: Code.NO_SUBSCRIBER}, (-1, 0))


def test_a_batch_that_is_too_large_for_its_topic_is_refused_alone(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    asker.ask(Kind.CONFIGURE, bodies.Configure(A, "", {"max_batch_bytes": 200}))
    done = asker.put_parts(asker.part(a, b"x" * 500), asker.part(b, b"x" * 500), asker.part(a, b"small"))
    assert codes_of(done) == {0: Code.TOO_LARGE}
    assert done.offsets == (-1, 0, 0)


@pytest.mark.parametrize("publisher", [0, 7])
def test_a_publisher_that_is_not_known_is_refused_wherever_its_batches_lie(asker: ManyAsker, publisher: int) -> None:
    a, b, _ = asker.numbers
    strange = encode_batch([b"strange"], broker=1, publisher=publisher, stamp=1, number=1)
    for parts in ([(a, bytes(strange)), asker.part(b, b"1")], [asker.part(b, b"2"), (a, bytes(strange))]):
        done = asker.put_parts(*parts)
        assert set(codes_of(done).values()) == {Code.PUBLISHER_EXPIRED}
        assert len(done.refused) == 1
    assert payloads(asker, a) == []


def test_a_publisher_that_was_forgotten_between_two_copies_is_not_taken_for_new(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    other = asker.register(b"another publisher")
    parts = [asker.part(a, b"1"), asker.part(a, b"2", publisher=other)]
    assert not asker.put_parts(*parts).refused
    asker.ask(Kind.FORGET, bodies.Forget(other))
    assert codes_of(asker.put_parts(*parts)) == {1: Code.PUBLISHER_EXPIRED}
    assert payloads(asker, a) == [b"1", b"2"]


def test_a_batch_whose_checksum_is_wrong_is_refused_alone(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    number, packed = asker.part(a, b"1")
    broken = bytearray(packed)
    broken[-1] ^= 1
    done = asker.put_parts((number, bytes(broken)), asker.part(b, b"1"), (number, b""), (number, packed))
    assert codes_of(done) == {0: Code.MALFORMED, 2: Code.MALFORMED}
    assert done.offsets == (-1, 0, -1, 0)


def test_another_batch_with_the_number_of_one_that_came_is_refused_alone(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    asker.put_on(a)
    done = asker.put_parts((a, asker.batch(asker.publisher, 1, b"another")), asker.part(b, b"1"))
    assert codes_of(done) == {0: Code.CHECKSUM_DIFFERS}


def test_a_batch_for_another_broker_is_refused_alone(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    strange = encode_batch([b"strange"], broker=9, publisher=asker.publisher, stamp=1, number=1)
    assert codes_of(asker.put_parts((a, bytes(strange)), asker.part(b, b"1"))) == {0: Code.MALFORMED}


def test_a_time_to_live_that_is_none_is_refused(asker: ManyAsker) -> None:
    part = asker.part(asker.numbers[0], b"1")
    assert codes_of(asker.put_parts(part, ttl_ms=-5)) == {0: Code.MALFORMED}
    assert asker.put_parts(part, ttl_ms=5).offsets == (0,)


@pytest.mark.parametrize("sizes", [(10,), (-1, 11), (5, 6), (1 << 70,)])
def test_sizes_that_do_not_add_up_refuse_the_whole(asker: ManyAsker, sizes: tuple[int, ...]) -> None:
    number, packed = asker.part(asker.numbers[0], b"1")
    body = bodies.PutMany(((number, len(packed), 0), *((number, size, 0) for size in sizes)))
    refused = asker.ask(Kind.PUT_MANY, body, packed)
    assert code_of(refused) == (Kind.INVALID, Code.MALFORMED)
    assert asker.stored(number) == []
    assert asker.put_parts((number, packed)).offsets == (0,)


@pytest.mark.parametrize("count", [0, 1001])
def test_a_request_has_one_to_a_thousand_batches(asker: ManyAsker, count: int) -> None:
    body = bodies.PutMany(tuple((asker.numbers[0], 0, 0) for _ in range(count)))
    assert code_of(asker.ask(Kind.PUT_MANY, body, b"")) == (Kind.INVALID, Code.TOO_LARGE)


def test_a_thousand_batches_of_a_thousand_topics_are_one_commit() -> None:
    asker = ManyAsker(*[b"feeds/%d" % each for each in range(1000)])
    commits = asker.engine.stats()["commits"]
    asker.put_on(*asker.numbers)
    assert asker.engine.stats()["commits"] == commits + 1
    assert all(len(asker.stored(number)) == 1 for number in asker.numbers)


# The same request again.


def test_the_same_request_is_answered_again_and_stores_nothing_twice(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    parts = [asker.part(a, b"1"), asker.part(b, b"1"), asker.part(a, b"2")]
    keys = [asker.send_puts(*parts)]  # into the open group
    keys.append(asker.send_puts(*parts))  # while it is there
    group = asker.take_group()
    keys.append(asker.send_puts(*parts))  # while it is in flight
    asker.store.commit(group.changes)
    keys.append(asker.send_puts(*parts))  # on disk, but nobody knows
    assert not [key for key in keys if key in asker.replies]
    asker.engine.committed(group, asker.now)
    asker.hear()
    keys.append(asker.send_puts(*parts))
    asker.crash()
    keys.append(asker.send_puts(*parts))
    asker.settle()
    answers = [body_of(asker.replies[key], bodies.PutsDone) for key in keys]
    assert {(each.offsets, each.times_us, each.refused) for each in answers} == {
        (answers[0].offsets, answers[0].times_us, ())
    }
    assert (payloads(asker, a), payloads(asker, b)) == ([b"1", b"2"], [b"1"])


def test_a_request_half_of_which_is_in_flight_is_answered_when_all_is_on_disk(asker: ManyAsker) -> None:
    a, b, c = asker.numbers
    asker.put_on(c)
    old = (c, asker.stored(c)[0])
    flying, waiting = asker.part(a, b"1"), asker.part(b, b"1")
    keys = [asker.send_puts(flying)]
    group = asker.take_group()
    keys += [asker.send_puts(waiting), asker.send_puts(old, flying, waiting, asker.part(a, b"2"))]
    asker.commit(group)
    assert [key in asker.replies for key in keys] == [True, False, False]
    asker.settle()
    assert body_of(asker.replies[keys[2]], bodies.PutsDone).offsets == (0, 0, 0, 1)


def test_the_same_batch_twice_in_one_request_is_stored_once(asker: ManyAsker) -> None:
    part = asker.part(asker.numbers[0], b"1")
    assert asker.put_parts(part, part).offsets == (0, 0)
    assert len(asker.stored(part[0])) == 1


def test_a_batch_that_was_put_alone_is_known_among_many_and_the_other_way_round(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    alone, together = asker.part(a, b"1"), asker.part(b, b"1")
    first = asker.send(Kind.PUT, bodies.Put(A, topic_number=a), alone[1])
    second = asker.send_puts(alone, together)
    group = asker.take_group()
    third = asker.send(Kind.PUT, bodies.Put(B, topic_number=b), together[1])
    asker.commit(group)
    asker.settle()
    assert body_of(asker.replies[first], bodies.PutDone).first_offset == 0
    assert body_of(asker.replies[second], bodies.PutsDone).offsets == (0, 0)
    assert body_of(asker.replies[third], bodies.PutDone).first_offset == 0
    assert (len(asker.stored(a)), len(asker.stored(b))) == (1, 1)


def test_nothing_of_a_failed_commit_is_answered_as_done_and_each_is_told_once(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    flying, waiting = asker.part(a, b"1"), asker.part(b, b"1")
    keys = [asker.send_puts(flying)]
    group = asker.take_group()
    keys += [asker.send_puts(flying, waiting), asker.send_puts((99, waiting[1]), flying)]
    asker.fail(group)
    assert [code_of(asker.replies[key])[1] for key in keys] == [Code.DISK_FULL] * 3
    asker.tick(2.0)
    asker.state.free_bytes = asker.store.free_bytes()
    assert asker.put_parts(flying, waiting).offsets == (0, 0)
    assert (len(asker.stored(a)), len(asker.stored(b))) == (1, 1)


def test_a_commit_that_fails_after_half_of_a_request_is_on_disk_refuses_it_and_the_repeat_completes_it(
    asker: ManyAsker,
) -> None:
    a, b, _ = asker.numbers
    flying, waiting = asker.part(a, b"1"), asker.part(b, b"1")
    asker.send_puts(flying)
    group = asker.take_group()
    key = asker.send_puts(flying, waiting)
    asker.commit(group)
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key])[1] == Code.DISK_FULL
    asker.tick(2.0)
    asker.state.free_bytes = asker.store.free_bytes()
    assert asker.put_parts(flying, waiting).offsets == (0, 0)
    assert (len(asker.stored(a)), len(asker.stored(b))) == (1, 1)


def test_what_is_put_after_a_full_disk_is_refused_part_by_part(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    parts = [asker.part(a, b"1"), asker.part(b, b"x" * 1000)]
    asker.state.free_bytes = asker.limits.disk_reserve_bytes + 600
    done = asker.put_parts(*parts)
    assert (codes_of(done), done.offsets) == ({1: Code.DISK_FULL}, (0, -1))


def test_topics_that_are_not_in_memory_are_loaded() -> None:
    asker = ManyAsker(A, B, C, max_topics_in_memory=1, topic_unload_interval_s=0.01)
    parts = [asker.part(number, b"1") for number in asker.numbers]
    asker.put_parts(*parts)
    for _ in range(3):
        asker.tick(1.0)
        asker.settle()
    assert asker.engine.stats()["topics_in_memory"] == 1
    done = asker.put_parts(*parts, *[asker.part(number, b"2") for number in asker.numbers])
    assert (done.offsets, done.refused) == ((0, 0, 0, 1, 1, 1), ())
