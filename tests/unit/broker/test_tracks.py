"""What the engine notes of batches, besides the promise that nothing is missing; and stamps that are off its clock."""

from __future__ import annotations

from tests.unit.broker.asker import Asker, body_of

from clarion.broker.engine import Engine
from clarion.model.ids import STAMPS_PER_S, stamp_from_unix_s
from clarion.tracking.tracker import HistoryName, Tracker
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
    assert _histories(tracker, 1) == {"publisher"}
    asker.ack(b"news", token, (2, 3))
    assert _histories(tracker, 1) == {"publisher", "subscriber"}


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
    assert _histories(tracker, 1) == {"publisher"}


def test_links_are_no_subscribers() -> None:
    asker, tracker = _tracked()
    asker.subscribe(b"news", b"$link/00000002")
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news", b"$link/00000002").token
    asker.ack(b"news", token, (0, 1), name=b"$link/00000002")
    assert _histories(tracker, 1) == {"publisher"}


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
