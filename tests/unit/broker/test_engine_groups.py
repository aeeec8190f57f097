"""Groups of changes: one under way, one open, and what becomes of both when a commit fails or the process dies."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import Asker, body_of, code_of, payloads_of

from clarion.store.port import UNTIL_READ
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


@pytest.fixture
def asker() -> Asker:
    asker = Asker(memory_bytes=0)  # so that every read comes from the store
    asker.register()
    asker.subscribe(NEWS)
    return asker


def test_what_comes_while_a_commit_runs_goes_into_the_next(asker: Asker) -> None:
    first = asker.send_put(NEWS, asker.batch(1, 1, b"0"))
    group = asker.take_group()
    second = asker.send_put(NEWS, asker.batch(1, 2, b"1"))
    assert asker.engine.take_group() is None, "one commit at a time"
    asker.commit(group)
    assert first in asker.replies
    assert second not in asker.replies
    asker.settle()
    assert body_of(asker.replies[second], bodies.PutDone).first_offset == 1


def test_what_changes_nothing_is_answered_at_once_when_all_is_on_disk_and_else_after_it(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    key = asker.send(Kind.ATTACH, bodies.Attach(NEWS, b"reader", b"consumer nonce"))
    assert key in asker.replies
    asker.send_put(NEWS, asker.batch(1, 1, b"0"))
    group = asker.take_group()
    key = asker.send(Kind.ATTACH, bodies.Attach(NEWS, b"reader", b"consumer nonce"))
    assert key not in asker.replies
    asker.commit(group)
    asker.settle()
    assert body_of(asker.replies[key], bodies.Attached).token == token


def test_what_is_in_the_store_is_not_delivered_before_the_engine_was_told(asker: Asker) -> None:
    """Otherwise its reader acks, and asks on, beyond what the engine takes for the end."""
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0")
    asker.send_put(NEWS, asker.batch(1, 2, b"1"))
    group = asker.take_group()
    asker.store.commit(group.changes)
    key = asker.send(Kind.GET, bodies.Get(NEWS, b"reader", token, 0, 100, 1 << 20, 0))
    assert payloads_of(asker.replies[key]) == [b"0"]
    asker.engine.committed(group, asker.now)
    asker.hear()
    assert payloads_of(asker.get(NEWS, token)) == [b"0", b"1"]


def test_a_failed_commit_is_told_to_everybody_and_keeps_nothing(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0")
    packed = asker.batch(1, 2, b"1")
    keys = [
        asker.send_put(NEWS, packed),
        asker.send(Kind.ACK, bodies.Ack(NEWS, b"reader", token, ((0, 1),))),
        asker.send(Kind.REGISTER, bodies.Register(b"a new nonce")),
    ]
    group = asker.take_group()
    keys += [
        asker.send_put(NEWS, packed),
        asker.send_put(NEWS, asker.batch(1, 3, b"2")),
        asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"other", b"reader")),
    ]
    waiting = asker.send_wait(NEWS, token, position=1)
    asker.fail(group)
    assert {code_of(asker.replies[key]) for key in keys} == {(Kind.REFUSED, Code.DISK_FULL)}
    assert all(body_of(asker.replies[key], bodies.Refused).retry_after_s > 0 for key in keys)
    assert asker.replies[waiting].kind == Kind.NO_MESSAGES
    assert asker.engine.stats()["waiting_gets"] == 0
    assert asker.engine.take_group() is None
    assert asker.attach(NEWS).cursor == 0
    asker.tick(2)
    assert body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset == 1


def test_two_groups_fail_and_their_batches_are_taken_again_in_order(asker: Asker) -> None:
    batches = [asker.batch(1, number, b"%d" % number) for number in (1, 2)]
    asker.send_put(NEWS, batches[0])
    group = asker.take_group()
    asker.send_put(NEWS, batches[1])
    asker.fail(group)
    asker.tick(2)
    refused = asker.put(NEWS, batches[1])
    assert (code_of(refused), body_of(refused, bodies.Refused).expected) == ((Kind.REFUSED, Code.GAP), 1)
    assert [body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset for packed in batches] == [0, 1]


def test_acks_get_through_to_a_disk_that_says_it_has_room_and_has_none(asker: Asker) -> None:
    """Puts that fail every commit they are in must not take the acks down with them for ever."""
    asker.put_many(NEWS, 1, 1, b"0", b"1")
    ack = bodies.Ack(NEWS, b"reader", asker.attach(NEWS).token, ((0, 1),))
    packed = asker.batch(1, 3, b"2")
    refused = [asker.send_put(NEWS, packed), asker.send(Kind.ACK, ack)]
    asker.fail(asker.take_group())
    refused.append(asker.send_put(NEWS, packed))
    again = asker.send(Kind.ACK, ack)
    assert {code_of(asker.replies[key]) for key in refused} == {(Kind.REFUSED, Code.DISK_FULL)}
    group = asker.take_group()
    assert not group.changes.batches
    asker.commit(group)
    assert asker.replies[again].body == bodies.Done()


def test_a_crash_after_the_commit_and_before_the_answer_stores_once(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"0")
    key = asker.send_put(NEWS, packed)
    asker.store.commit(asker.take_group().changes)
    asker.crash()
    assert key not in asker.replies
    assert body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset == 0
    assert payloads_of(asker.get(NEWS, asker.attach(NEWS).token)) == [b"0"]


def test_a_crash_before_the_commit_stores_nothing(asker: Asker) -> None:
    packed = asker.batch(1, 1, b"0")
    asker.send_put(NEWS, packed)
    asker.take_group()
    asker.crash()
    assert asker.get(NEWS, asker.attach(NEWS).token).kind == Kind.NO_MESSAGES
    assert body_of(asker.put(NEWS, packed), bodies.PutDone).first_offset == 0


def read_and_trim(asker: Asker, token: int, stop: int) -> None:
    """Ack up to `stop` and let housekeeping put the trim into the open group."""
    asker.send(Kind.ACK, bodies.Ack(NEWS, b"reader", token, ((0, stop),)))
    asker.tick(2)
    assert asker.state.open.changes.trims


def oldest(asker: Asker) -> int:
    row = asker.store.topic(NEWS)
    assert row is not None
    return row.first_offset


@pytest.mark.parametrize("start", ["earliest", "time"])
def test_nobody_is_promised_what_a_trim_under_way_takes(asker: Asker, start: str) -> None:
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    read_and_trim(asker, token, 2)
    cursor = body_of(asker.subscribe(NEWS, b"late", start), bodies.Subscribed).cursor
    assert cursor == oldest(asker) == 2


def test_nobody_is_promised_what_the_next_trim_takes_when_the_one_before_is_on_disk(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    read_and_trim(asker, token, 1)
    group = asker.take_group()
    read_and_trim(asker, token, 3)
    asker.commit(group)
    cursor = body_of(asker.subscribe(NEWS, b"late", "earliest"), bodies.Subscribed).cursor
    assert cursor == oldest(asker) == 3


def test_a_trim_takes_nothing_that_somebody_has_not_acked(asker: Asker) -> None:
    asker.subscribe(NEWS, b"slow")
    slow = asker.attach(NEWS, b"slow").token
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    asker.ack(NEWS, slow, (0, 1), (2, 3), name=b"slow")
    read_and_trim(asker, token, 4)
    asker.settle()
    assert oldest(asker) == 1
    assert payloads_of(asker.get(NEWS, slow, name=b"slow")) == [b"1", b"2", b"3"]


def test_a_trim_is_not_forgotten_by_a_failed_commit_or_a_crash(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    asker.ack(NEWS, token, (0, 2))
    asker.tick(2)
    asker.fail(asker.take_group())
    asker.tick(2)
    asker.settle()
    assert oldest(asker) == 2, "nobody had to come for it: a full disk needs it"
    asker.ack(NEWS, token, (2, 3))
    asker.crash()
    asker.attach(NEWS)
    asker.tick(2)
    asker.settle()
    assert oldest(asker) == 3


def test_what_a_topic_keeps_is_never_trimmed_and_becomes_so_when_it_is_told_to_let_go(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "keep"))
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, 1, 1, b"0", b"1")
    asker.ack(NEWS, token, (0, 2))
    asker.tick(2)
    asker.settle()
    assert oldest(asker) == 0
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, UNTIL_READ))
    asker.tick(2)
    asker.settle()
    assert oldest(asker) == 2


def test_offsets_go_on_after_everything_was_trimmed_and_the_process_died(asker: Asker) -> None:
    asker.put_many(NEWS, 1, 1, b"0", b"1")
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"reader"))
    asker.tick(2)
    asker.settle()
    assert asker.store.used_bytes() == 0
    asker.crash()
    assert body_of(asker.subscribe(NEWS), bodies.Subscribed).cursor == 2
    assert body_of(asker.put(NEWS, asker.batch(1, 3, b"2")), bodies.PutDone).first_offset == 2
