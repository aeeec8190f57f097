"""What the engine notes of batches, besides the promise that nothing is missing; and stamps that are off its clock."""

from __future__ import annotations

from tests.unit.broker.asker import Asker, body_of
from tests.unit.broker.lease_askers import NAME, SharedAsker

from clarion.broker.engine import Engine
from clarion.model.ids import STAMPS_PER_S, MessageId, stamp_from_unix_s
from clarion.tracking.tracker import Claim, HistoryName, Tracker
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Kind

_WHO = 1 << 32 | 1


def _tracked(**limits: float) -> tuple[Asker, Tracker]:
    asker, tracker = Asker(**limits), Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    asker.register()
    asker.subscribe(b"news")
    return asker, tracker


def _histories(tracker: Tracker, stamp: int) -> set[str]:
    return {claim.history.kind for claim in tracker.seen((_WHO, stamp)) if not claim.parts}


def test_a_batch_is_received_when_its_last_message_is_acked() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 2))
    assert _histories(tracker, 1) == {"publisher", "topic"}
    asker.ack(b"news", token, (2, 3))
    assert _histories(tracker, 1) == {"publisher", "topic", "subscriber"}


def test_what_a_subscriber_has_of_a_batch_when_it_leaves_is_kept_exactly() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c", b"d"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 1), (2, 3))
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"news", b"reader"))
    (claim,) = [claim for claim in tracker.seen((_WHO, 1)) if claim.history.kind == "subscriber"]
    assert claim.history == HistoryName("subscriber", 1, 0, b"reader")
    assert claim.parts == ((0, 1), (2, 3))


def test_what_is_passed_over_is_not_received() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.attach(b"news")
    asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", "new"))
    assert _histories(tracker, 1) == {"publisher", "topic"}


def test_links_are_no_subscribers() -> None:
    asker, tracker = _tracked()
    asker.subscribe(b"news", b"$link/00000002")
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news", b"$link/00000002").token
    asker.ack(b"news", token, (0, 1), name=b"$link/00000002")
    assert _histories(tracker, 1) == {"publisher", "topic"}


def test_a_topic_that_was_read_stays_until_that_is_saved() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 1))
    for _ in range(3):
        asker.tick(2.0)
        asker.settle()
    number = asker.state.topics[b"news"].number
    assert asker.store.batches(number, 0, 10, 1000)
    assert asker.engine.tracks.take() is not None
    asker.engine.tracks.saved()
    for _ in range(3):
        asker.tick(2.0)
        asker.settle()
    assert not asker.store.batches(number, 0, 10, 1000)
    assert len(tracker) == 0


def test_when_nothing_can_be_saved_topics_let_go_again() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 1))
    asker.engine.tracks.give_up()
    for _ in range(3):
        asker.tick(2.0)
        asker.settle()
    assert not asker.store.batches(asker.state.topics[b"news"].number, 0, 10, 1000)


def _put_stamped(asker: Asker, number: int, stamp: int) -> tuple[int, int] | None:
    packed = encode_batch([b"a"], broker=1, publisher=1, stamp=stamp, number=number)
    return body_of(asker.put(b"news", bytes(packed)), bodies.PutDone).skew


def test_a_publisher_is_told_by_how_much_its_clock_is_off() -> None:
    asker, _ = _tracked(tracking_skew_s=0.2)
    right = stamp_from_unix_s(asker.now.unix_us / 1e6)
    assert _put_stamped(asker, 1, right + STAMPS_PER_S // 10) is None
    stamp = right - 3 * STAMPS_PER_S
    told = _put_stamped(asker, 2, stamp)
    assert told is not None
    assert told[0] == stamp
    assert abs(told[1] - 3 * STAMPS_PER_S) < STAMPS_PER_S / 10
    assert _put_stamped(asker, 2, stamp) is None, "it was put before: its stamp says nothing of now"


def test_without_tracking_nobody_looks_at_clocks() -> None:
    asker, _ = _tracked()
    assert _put_stamped(asker, 1, 5) is None


def _claims(tracker: Tracker, kind: str, stamp: int = 1) -> list[Claim]:
    return [claim for claim in tracker.seen((_WHO, stamp)) if claim.history.kind == kind]


def _shared(most: int = 3) -> tuple[SharedAsker, Tracker, int]:
    asker, tracker = SharedAsker({"lease_s": 10.0, "max_attempts": 2}), Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    asker.put_jobs(b"a", b"b", b"c")
    token = asker.join()
    assert len(asker.borrow(token, most)) == most
    return asker, tracker, token


def _bury(asker: SharedAsker, token: int, offset: int) -> None:
    asker.nack(token, (offset, offset + 1, 1))
    assert [lent[0] for lent in asker.borrow(token)] == [offset]
    asker.nack(token, (offset, offset + 1, 2))


def test_dead_letters_are_gone_past_and_the_rest_of_their_batch_is_received() -> None:
    asker, tracker, token = _shared()
    asker.done(token, (0, 1), (2, 3))
    assert not _claims(tracker, "subscriber")
    _bury(asker, token, 1)
    (whole,), (past,) = _claims(tracker, "subscriber"), _claims(tracker, "skipped")
    assert (whole.parts, past.parts, past.history.name) == ((), ((1, 2),), NAME)


def test_a_dead_letter_before_the_others_is_not_received_with_them() -> None:
    asker, tracker, token = _shared(most=1)
    _bury(asker, token, 0)
    asker.borrow(token)
    asker.done(token, (1, 3))
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [()]
    assert [claim.parts for claim in _claims(tracker, "skipped")] == [((0, 1),)]


def test_a_purge_leaves_what_was_read_of_a_batch_received_and_the_rest_gone_past() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.put(b"news", asker.batch(1, 2, b"d"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 2))
    asker.ask(Kind.PURGE, bodies.Purge(b"news"))
    assert [claim.parts for claim in _claims(tracker, "subscriber", 1)] == [()]
    assert [claim.parts for claim in _claims(tracker, "skipped", 1)] == [((2, 3),)]
    assert not _claims(tracker, "subscriber", 2)


def test_what_came_before_a_subscription_in_a_batch_is_not_received() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.subscribe(b"news", b"late", "offset", 1)
    asker.ack(b"news", asker.attach(b"news", b"late").token, (1, 3), name=b"late")
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [()]
    assert [claim.parts for claim in _claims(tracker, "skipped")] == [((0, 1),)]


def test_half_a_batch_that_was_read_before_a_seek_is_received() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 2))
    asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", "new"))
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [((0, 2),)]


def test_what_expires_unread_is_not_received_and_what_was_read_before_is() -> None:
    asker, tracker = _tracked()
    assert asker.ask(Kind.CONFIGURE, bodies.Configure(b"news", "keep", {"ttl_s": 5.0})).kind == Kind.ACK
    asker.put(b"news", asker.batch(1, 1, b"a", b"b"))
    asker.put(b"news", asker.batch(1, 2, b"c"))
    token = asker.attach(b"news").token
    asker.get(b"news", token, most=1)
    asker.now_s += 6.0
    assert body_of(asker.get(b"news", token, position=1), bodies.Delivery).skip == ((1, 3),)
    asker.ack(b"news", token, (0, 1))
    assert [claim.parts for claim in _claims(tracker, "subscriber", 1)] == [()]
    assert [claim.parts for claim in _claims(tracker, "skipped", 1)] == [((1, 2),)]
    assert [claim.parts for claim in _claims(tracker, "skipped", 2)] == [((0, 1),)]


def test_it_is_told_where_a_message_is_and_who_is_still_to_get_it() -> None:
    asker, tracker = _tracked()
    asker.last_stamp = stamp_from_unix_s(asker.now.unix_us / 1e6)
    asker.subscribe(b"news", b"quick")
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.put(b"news", asker.batch(1, 2, b"d", b"e"))
    asker.ack(b"news", asker.attach(b"news", b"quick").token, (0, 2), (4, 5), name=b"quick")
    key = (_WHO, asker.last_stamp)
    tracks = asker.engine.tracks
    (held,) = tracks.held(MessageId(1, 1, asker.last_stamp, 1), tracker.seen(key), asker.now)
    assert (held.topic, held.offset) == (b"news", 4)
    assert (held.waiting, held.waiting_count, held.received) == (((b"reader", 4),), 1, (b"quick",))
    (held,) = tracks.held(MessageId(1, 1, asker.last_stamp, 0), tracker.seen(key), asker.now)
    assert held.waiting == ((b"reader", 3), (b"quick", 1))
    assert not tracks.held(MessageId(1, 1, asker.last_stamp, 2), tracker.seen(key), asker.now)  # it had two
    asker.ask(Kind.PURGE, bodies.Purge(b"news"))
    assert not tracks.held(MessageId(1, 1, asker.last_stamp, 0), tracker.seen(key), asker.now)


def test_subscriptions_from_before_tracking_are_known() -> None:
    asker = Asker()
    asker.register()
    asker.subscribe(b"news")
    asker.put(b"news", asker.batch(1, 1, b"a"))
    tracker = Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    asker.engine.tracks.begin({}, 0, asker.now)
    assert tracker.subscribers_of(b"news") == {b"reader"}
