"""What becomes of messages that nobody could work on."""

from __future__ import annotations

from tests.unit.broker.asker import body_of
from tests.unit.broker.lease_askers import JOBS, SharedAsker

from clarion.model.names import DEAD_READER, dead_letters_of
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

GRAVE = dead_letters_of(JOBS)


def dead(asker: SharedAsker) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    """Return payload, key and headers of the dead letters that are not replayed or dropped."""
    row = asker.store.topic(GRAVE)
    if row is None:
        return []
    reader = next(sub for sub in asker.store.subscriptions(row.number) if sub.name == DEAD_READER)
    found = []
    for stored in asker.store.batches(row.number, 0, 1000, 1 << 20):
        batch = Batch.parse(stored.data)
        for place in range(batch.count):
            if stored.first_offset + place >= reader.cursor:
                found.append((batch.payload(place), batch.key(place), dict(batch.headers(place) or {})))
    return found


def bury(max_attempts: int = 2) -> SharedAsker:
    """Return an asker whose first message is dead."""
    asker = SharedAsker({"lease_s": 10.0, "max_attempts": max_attempts})
    asker.put_jobs(b"poison", b"good", keys=(b"k", None))
    token = asker.join()
    for attempt in range(1, max_attempts + 1):
        assert (0, b"poison", attempt) in asker.borrow(token, 1)
        asker.nack(token, (0, 1, attempt), reason=f"no luck {attempt}")
    assert asker.borrow(token) == [(1, b"good", 1)]
    return asker


def test_after_its_last_attempt_a_message_is_a_dead_letter_that_tells_its_story() -> None:
    [(payload, key, headers)] = dead(bury())
    assert (payload, key) == (b"poison", b"k")
    del headers["clarion-dead-at"]
    assert len(headers.pop("clarion-dead-id")) == 32
    assert headers == {
        "clarion-dead-topic": JOBS,
        "clarion-dead-offset": b"0",
        "clarion-dead-subscription": b"workers",
        "clarion-dead-attempts": b"2",
        "clarion-dead-reason": b"no luck 2",
    }


def test_lapses_count_as_attempts_and_spare_the_innocent() -> None:
    asker = SharedAsker({"lease_s": 10.0, "max_attempts": 3})
    asker.put_jobs(b"poison", b"good", b"fine")
    for life in range(3):
        token = asker.join(b"consumer %d" % life)
        asker.borrow(token)
        asker.tick(11)
        asker.settle()
    assert [payload for payload, _, _ in dead(asker)] == [b"poison"]
    token = asker.join(b"consumer 9")
    assert asker.borrow(token) == [(1, b"good", 2)]
    asker.done(token, (1, 2))
    assert asker.borrow(token) == [(2, b"fine", 2)]


def test_a_replayed_dead_letter_goes_to_the_subscription_it_came_from_alone() -> None:
    asker = bury()
    asker.subscribe(JOBS, b"other")
    asker.put_jobs(b"later")
    done = body_of(asker.ask(Kind.DEAD, bodies.Dead(JOBS, "replay")), bodies.DeadDone)
    assert done == bodies.DeadDone(1, 0)
    assert dead(asker) == []
    token = asker.join()
    got = asker.borrow(token)
    assert got == [(2, b"later", 1), (3, b"poison", 1)]
    other = asker.attach(JOBS, b"other").token
    delivery = body_of(asker.get(JOBS, other, 2, name=b"other"), bodies.Delivery)
    assert delivery.skip == ((3, 4),)
    assert asker.ask(Kind.DEAD, bodies.Dead(JOBS, "replay")).body == bodies.DeadDone(0, 0), "again is nothing more"


def test_a_replayed_dead_letter_is_no_gap_for_others_when_it_is_done_and_gone() -> None:
    asker = bury()
    asker.subscribe(JOBS, b"other")
    asker.ask(Kind.DEAD, bodies.Dead(JOBS, "replay"))
    asker.put_jobs(b"later")
    token, other = asker.join(), asker.attach(JOBS, b"other").token
    assert [payload for _, payload, _ in asker.borrow(token)] == [b"poison", b"later"]
    asker.done(token, (2, 4))
    asker.tick(1)
    asker.settle()
    delivery = body_of(asker.get(JOBS, other, 2, name=b"other"), bodies.Delivery)
    assert ([first for first, _ in delivery.batches], delivery.skip) == ([3], ((2, 3),))


def test_dead_letters_can_be_dropped() -> None:
    asker = bury()
    assert asker.ask(Kind.DEAD, bodies.Dead(JOBS, "drop", ((0, 1),))).body == bodies.DeadDone(1, 0)
    assert dead(asker) == []
    assert asker.ask(Kind.DEAD, bodies.Dead(b"never", "drop")).body == bodies.DeadDone(0, 0)
    assert asker.ask(Kind.DEAD, bodies.Dead(JOBS, "bless")).kind == Kind.INVALID


def test_a_dead_letter_without_a_home_stays() -> None:
    asker = bury()
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(JOBS, b"workers"))
    assert asker.ask(Kind.DEAD, bodies.Dead(JOBS, "replay")).body == bodies.DeadDone(0, 1)
    assert len(dead(asker)) == 1


def test_burial_and_ack_are_one_change() -> None:
    asker = SharedAsker({"max_attempts": 1})
    asker.put_jobs(b"poison")
    token = asker.join()
    asker.borrow(token)
    asker.send(Kind.RETURN, bodies.Return(JOBS, b"workers", token, ((0, 1, 1),), True))
    asker.take_group()
    asker.crash()
    assert dead(asker) == [], "the group was lost"
    asker.renew(token, (0, 1))
    asker.nack(token, (0, 1, 1))
    assert len(dead(asker)) == 1
    assert asker.borrow(token) == []


def test_no_room_for_a_dead_letter_keeps_it_where_it_is() -> None:
    asker = SharedAsker({"max_attempts": 1})
    asker.put_jobs(b"poison")
    token = asker.join()
    asker.borrow(token)
    asker.state.free_bytes = 0
    asker.nack(token, (0, 1, 1))
    assert dead(asker) == []
    asker.state.free_bytes = 1 << 40
    asker.tick(1.1)
    assert asker.borrow(token) == [(0, b"poison", 2)]
    asker.nack(token, (0, 1, 2))
    assert [payload for payload, _, _ in dead(asker)] == [b"poison"]


def test_a_reader_that_is_sent_a_whole_batch_is_told_of_all_that_is_not_for_it() -> None:
    asker = SharedAsker({"max_attempts": 1})
    asker.put_jobs(b"poison", b"venom")
    asker.subscribe(JOBS, b"other")
    token = asker.join()
    for offset in (0, 1):
        asker.borrow(token, 1)
        asker.nack(token, (offset, offset + 1, 1))
    asker.put_jobs(b"good")
    asker.ask(Kind.DEAD, bodies.Dead(JOBS, "replay"))
    other = asker.attach(JOBS, b"other").token
    delivery = body_of(asker.get(JOBS, other, 3, most=1, name=b"other"), bodies.Delivery)
    assert delivery.skip == ((3, 5),)


def test_no_two_dead_letters_have_one_id_though_the_clock_went_back_over_a_restart() -> None:
    asker = bury()
    asker.crash()
    asker.now_s -= 50
    token = asker.join(b"consumer 2")
    for _ in range(2):  # until the one before is taken for gone
        asker.tick(6.0)
        asker.renew(token)
    for _ in range(2):
        for offset, _, attempt in asker.borrow(token):
            asker.nack(token, (offset, offset + 1, attempt))
    row = asker.store.topic(GRAVE)
    assert row is not None
    stamps = [Batch.parse(stored.data).stamp for stored in asker.store.batches(row.number, 0, 1000, 1 << 20)]
    assert len(stamps) == 2
    assert stamps[0] < stamps[1]
