"""What the engine notes of batches, besides the promise that nothing is missing; and stamps that are off its clock."""

from __future__ import annotations

import struct

import pytest
from tests.unit.broker.asker import Asker, body_of
from tests.unit.broker.lease_askers import JOBS, NAME, SharedAsker

from clarion.broker.engine import Engine
from clarion.broker.engine import tracks as tracks_module
from clarion.broker.engine.foreign_puts import ForeignPut, Took
from clarion.broker.engine.topic_log import read_batches
from clarion.model.ids import STAMPS_PER_S, MessageId, stamp_from_unix_s
from clarion.tracking.paths import NOT_FOUND
from clarion.tracking.tracker import MOVED, Claim, HistoryName, Tracker
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


def _let_go(asker: Asker) -> None:
    for _ in range(3):
        asker.tick(2.0)
        asker.settle()


def _offsets(asker: Asker) -> list[int]:
    row = asker.store.topic(b"news")
    assert row is not None
    return [batch.first_offset for batch in asker.store.batches(row.number, 0, 10, 1000)]


def test_what_is_acked_while_notes_are_saved_stays_until_the_next_are() -> None:
    asker, _ = _tracked()
    tracks = asker.engine.tracks
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.put(b"news", asker.batch(1, 2, b"b"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 1))
    assert tracks.take() is not None
    asker.ack(b"news", token, (1, 2))
    tracks.saved()
    _let_go(asker)
    assert _offsets(asker) == [1]
    assert tracks.take() is not None
    tracks.saved()
    _let_go(asker)
    assert _offsets(asker) == []


def test_topics_let_go_once_notes_are_saved_that_could_not_be_before() -> None:
    asker, _ = _tracked()
    tracks = asker.engine.tracks
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 1))
    assert tracks.take() is not None
    tracks.failed()
    _let_go(asker)
    assert _offsets(asker) == [0]
    assert tracks.take() is not None
    tracks.saved()
    _let_go(asker)
    assert _offsets(asker) == []


def test_a_commit_that_fails_lets_nothing_go_that_is_not_saved() -> None:
    asker, _ = _tracked()
    tracks = asker.engine.tracks
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 1))
    asker.send_put(b"news", asker.batch(1, 2, b"b"))
    asker.fail(asker.take_group())
    asker.attach(b"news", nonce=b"another one")  # reads the topic from the store again
    _let_go(asker)
    assert _offsets(asker) == [0]
    assert tracks.take() is not None
    tracks.saved()
    _let_go(asker)
    assert _offsets(asker) == []


def test_topics_with_notes_that_are_not_saved_stay_in_memory() -> None:
    asker, _ = _tracked(max_topics_in_memory=1, topic_unload_interval_s=1.0)
    tracks = asker.engine.tracks
    asker.subscribe(b"other")
    asker.put(b"news", asker.batch(1, 1, b"a"))
    _let_go(asker)
    assert set(asker.state.topics) == {b"news"}
    asker.subscribe(b"third")
    _let_go(asker)
    assert b"news" in asker.state.topics
    assert tracks.take() is not None
    tracks.saved()
    asker.subscribe(b"fourth")
    _let_go(asker)
    assert b"news" not in asker.state.topics


def test_batches_of_a_topic_that_was_committed_a_little_out_of_order_are_noted_again() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    for late_s, noted in ((60, 1), (600, 0)):
        tracker = Tracker()
        asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
        saved_us = asker.now.unix_us + late_s * 1_000_000
        later = asker.now._replace(unix_us=saved_us)
        assert asker.engine.tracks.begin({}, saved_us, later).noted == noted


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
    (got,), (past,) = _claims(tracker, "subscriber"), _claims(tracker, "skipped")
    assert (got.parts, past.parts, past.history.name) == (((0, 1), (2, 3)), ((1, 2),), NAME)
    assert asker.engine.tracks._gone_past == {}, "what is over is not kept"


def test_a_dead_letter_before_the_others_is_not_received_with_them() -> None:
    asker, tracker, token = _shared(most=1)
    _bury(asker, token, 0)
    asker.borrow(token)
    asker.done(token, (1, 3))
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [((1, 3),)]
    assert [claim.parts for claim in _claims(tracker, "skipped")] == [((0, 1),)]


def test_a_purge_leaves_what_was_read_of_a_batch_received_and_the_rest_gone_past() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.put(b"news", asker.batch(1, 2, b"d"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 2))
    asker.ask(Kind.PURGE, bodies.Purge(b"news"))
    assert [claim.parts for claim in _claims(tracker, "subscriber", 1)] == [((0, 2),)]
    assert [claim.parts for claim in _claims(tracker, "skipped", 1)] == [((2, 3),)]
    assert not _claims(tracker, "subscriber", 2)


@pytest.mark.parametrize("end", ["purge", "part of it", "expiry"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_was_acked_behind_others_is_received_whatever_becomes_of_these(end: str, is_shared: bool) -> None:
    asker, tracker = SharedAsker(), Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    if not is_shared:
        asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(JOBS, NAME))
        asker.subscribe(JOBS, NAME)
    token = asker.join() if is_shared else asker.attach(JOBS, NAME).token
    if end == "expiry":
        asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "until-read", {"ttl_s": 5}))
    for _ in range(6):
        asker.put_jobs(b"x")
    if is_shared:
        asker.take(token)
    asker.done(token, (1, 3), (4, 5))
    assert [_whole(tracker, stamp) for stamp in range(1, 7)] == [False, True, True, False, True, False]
    if end == "expiry":
        asker.tick(10.0)
        asker.take(asker.join(b"consumer 2")) if is_shared else asker.get(JOBS, token, name=NAME)
        asker.settle()
    else:
        asker.ask(Kind.PURGE, bodies.Purge(JOBS, below=4 if end == "part of it" else -1))
    assert [_whole(tracker, stamp) for stamp in range(1, 7)] == [False, True, True, False, True, False]
    skipped = [any(c.history.kind == "skipped" for c in tracker.seen((_WHO, stamp))) for stamp in range(1, 7)]
    assert skipped == [True, False, False, True, False, end != "part of it"]


def test_what_came_before_a_subscription_in_a_batch_is_not_received() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.subscribe(b"news", b"late", "offset", 1)
    asker.ack(b"news", asker.attach(b"news", b"late").token, (1, 3), name=b"late")
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [((1, 3),)]
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
    assert [claim.parts for claim in _claims(tracker, "subscriber", 1)] == [((0, 1),)]
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


def test_what_is_noted_after_nothing_was_to_be_saved_is_not_saved() -> None:
    asker, _ = _tracked()
    tracks = asker.engine.tracks
    assert tracks.take() is not None
    tracks.saved()
    assert tracks.take() is None
    asker.put(b"news", asker.batch(1, 1, b"a"))
    assert not tracks.is_saved(tracks.round)
    assert tracks.take() is not None
    tracks.saved()
    assert not tracks.is_saved(tracks.round)
    assert tracks.take() is None  # an idle broker has nothing to save


def test_commits_after_which_the_log_would_not_tell_wait_for_what_is_noted() -> None:
    asker, _ = _tracked()
    changes = {
        "ack": False, "subscribe": True, "seek": True, "purge": True, "unsubscribe": True, "delete": True,
    }  # fmt: skip
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news").token
    found = {}
    take_group = asker.engine.take_group

    def taken() -> object:
        group = take_group()
        if group is not None:
            seen.append(group.notes_first)
        return group

    asker.engine.take_group = taken  # type: ignore[method-assign, assignment]
    for change in changes:
        seen: list[bool] = []
        if change == "ack":
            asker.ack(b"news", token, (0, 1))
        elif change == "subscribe":
            asker.subscribe(b"news", b"other")
        elif change == "seek":
            asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", "earliest"))
        elif change == "purge":
            asker.ask(Kind.PURGE, bodies.Purge(b"news"))
        elif change == "unsubscribe":
            asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"news", b"other"))
        else:
            asker.ask(Kind.DELETE, bodies.Delete(b"news"))
        found[change] = any(seen)
    assert found == changes


def test_who_seeks_past_messages_went_past_them() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b", b"c"))
    asker.put(b"news", asker.batch(1, 2, b"d", b"e"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 1))
    asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", "offset", 4))
    assert [claim.parts for claim in _claims(tracker, "subscriber")] == [((0, 1),)]
    assert [claim.parts for claim in _claims(tracker, "skipped")] == [((1, 3),)]
    assert [claim.parts for claim in _claims(tracker, "skipped", 2)] == [((0, 1),)]
    asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", "earliest"))
    assert [claim.parts for claim in _claims(tracker, "subscriber", 2)] == []


def test_a_batch_that_appears_later_was_put() -> None:
    asker, tracker = _tracked()
    raw = asker.batch(1, 1, b"a")
    due = struct.pack("<Q", asker.now.unix_us + 60_000_000)
    asker.ask(Kind.PUT, bodies.Put(b"news", due=due), raw)
    assert _histories(tracker, 1) == {"publisher", "topic"}
    told = asker.engine.tracks.held(MessageId(1, 1, 1, 0), tracker.seen((_WHO, 1)), asker.now)
    assert [held.offset for held in told] == [NOT_FOUND], "it may be there: it is not yet"


def test_acks_of_a_backlog_do_not_read_it_again() -> None:
    asker, tracker = _tracked()
    for number in range(1, 4):
        asker.put(b"news", asker.batch(1, number, b"a"))
    topic = asker.engine._state.topics[b"news"]
    topic.recent.clear()
    asker.engine._state.cached.pop(topic, None)
    asker.engine.tracks._keys_put.clear()
    token = asker.attach(b"news").token
    for offset in range(3):
        assert read_batches(asker.engine._state, topic, offset, 1, 1)
    before = asker.engine._state.counters["store_reads"]
    asker.ack(b"news", token, (0, 2))
    assert asker.engine._state.counters["store_reads"] == before
    assert [_histories(tracker, stamp) >= {"subscriber"} for stamp in (1, 2, 3)] == [True, True, False]


def test_acks_of_what_was_put_lately_look_at_no_batch_again() -> None:
    asker, tracker = _tracked()
    for number in range(1, 4):
        asker.put(b"news", asker.batch(1, number, b"a", b"b"))
    token = asker.attach(b"news").token
    asker.engine._state.topics[b"news"].recent.clear()
    before = asker.engine._state.counters["store_reads"]
    asker.ack(b"news", token, (0, 3))
    assert [_whole(tracker, stamp) for stamp in (1, 2, 3)] == [True, False, False]
    asker.ack(b"news", token, (3, 6))
    assert [_whole(tracker, stamp) for stamp in (1, 2, 3)] == [True, True, True]
    assert asker.engine._state.counters["store_reads"] == before


def test_keys_that_everybody_has_acked_and_those_that_are_too_many_are_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asker, tracker = _tracked()
    token = asker.attach(b"news").token
    tracks, number = asker.engine.tracks, asker.engine._state.topics[b"news"].number
    for stamp in range(1, 4):
        asker.put(b"news", asker.batch(1, stamp, b"a"))
    asker.ack(b"news", token, (0, 2))
    assert _whole(tracker, 1)
    assert _whole(tracker, 2)
    tracks.take()
    tracks.saved()
    assert len(tracks._keys_put[number]) == 1
    monkeypatch.setattr(tracks_module, "_KEYS_PUT", 0)
    asker.put(b"news", asker.batch(1, 4, b"a"))
    tracks.take()
    assert not tracks._keys_put
    tracks.saved()
    asker.ack(b"news", token, (2, 4))
    assert _whole(tracker, 3), "it is read from the log"
    assert _whole(tracker, 4), "it is read from the log"


def test_quiet_topics_let_go_of_their_keys_and_all_do_where_nothing_is_tracked_any_more() -> None:
    asker, _ = _tracked()
    asker.subscribe(b"other")
    tracks = asker.engine.tracks
    for topic in (b"news", b"other"):
        asker.put(topic, asker.batch(1, 1, b"a"))
        tracks.take()
        tracks.saved()
    assert list(tracks._keys_put) == [asker.state.topics[b"other"].number]
    tracks.give_up()
    assert not tracks._keys_put


def test_keys_of_one_topic_are_not_anothers() -> None:
    asker, tracker = _tracked()
    asker.subscribe(b"other")
    for number in range(1, 4):
        asker.put(b"other", asker.batch(1, number, b"b"))
    asker.engine.tracks._keys_put.pop(asker.state.topics[b"other"].number)  # it was quiet
    for number in range(1, 4):
        asker.put(b"news", asker.batch(1, number, b"a"))
    token = asker.attach(b"news").token
    asker.ack(b"news", token, (0, 3))
    asker.send_put(b"news", asker.batch(1, 4, b"a"))
    asker.send_put(b"other", asker.batch(1, 4, b"b"))
    asker.settle()
    asker.ack(b"news", token, (3, 4))
    assert [_whole(tracker, stamp) for stamp in range(1, 9)] == [False] * 3 + [True] * 4 + [False]


def test_of_several_origins_each_has_a_history_of_its_own() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    data = bytes(encode_batch([b"f"], broker=2, publisher=9, stamp=50, number=1))
    foreign = ForeignPut(2, bytes(16), 5, b"news", 0, 0, 1, 0, True, data)
    assert asker.engine.foreign_puts.take(foreign, asker.now) is Took.DONE
    asker.settle()
    asker.ack(b"news", asker.attach(b"news").token, (0, 2))
    assert _whole(tracker, 1)
    (claim,) = [claim for claim in tracker.seen((2 << 32 | 9, 50)) if claim.history.kind == "subscriber"]
    assert claim.history == HistoryName("subscriber", 2, 0, b"reader")


def test_staged_batches_are_among_the_keys() -> None:
    asker, _ = _tracked()
    asker.ask(Kind.STAGE, bodies.Stage(b"news", b"sink", 1, b"0", 0), asker.batch(1, 0, b"s"))
    asker.ask(Kind.COMMIT_STAGED, bodies.CommitStaged(b"sink", 1, None))
    assert len(asker.engine.tracks._keys_put[asker.state.topics[b"news"].number]) == 1


_TRIM = bodies.Configure(b"news", "keep", {"max_bytes": 300, "at_bound": "trim"})


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_a_topic_let_go_of_unread_is_not_received(beyond: int) -> None:
    asker, tracker = _tracked()
    asker.ask(Kind.CONFIGURE, _TRIM)
    token = asker.attach(b"news").token
    for stamp in range(1, 7):
        asker.put(b"news", asker.batch(1, stamp, b"x" * 100))
    start, stop = body_of(asker.get(b"news", token), bodies.Refused).gone or (-1, -1)
    assert (start, stop) == (0, 4)
    asker.ack(b"news", token, (start, stop + beyond))
    assert [_whole(tracker, stamp) for stamp in range(1, 6)] == [False] * 4 + [beyond == 1]
    assert not asker.engine.tracks._gone_past


@pytest.mark.parametrize(
    "acks", [[(0, 1), (1, 3), (3, 7), (7, 8)], [(0, 8)], [(0, 7), (7, 8)], [(3, 7), (0, 3), (7, 8)]]
)
def test_what_was_sent_before_a_topic_let_go_of_it_is_received(acks: list[tuple[int, int]]) -> None:
    asker, tracker = _tracked()
    asker.ask(Kind.CONFIGURE, _TRIM)
    token = asker.attach(b"news").token
    asker.put(b"news", asker.batch(1, 1, b"x" * 50, b"x" * 50))
    asker.put(b"news", asker.batch(1, 2, b"x" * 50, b"x" * 50))
    for stamp in range(3, 8):
        asker.put(b"news", asker.batch(1, stamp, b"x" * 100))
    assert body_of(asker.get(b"news", token, 3), bodies.Refused).gone == (3, 7), "three were sent"
    for ack in acks:
        asker.ack(b"news", token, ack)
    parts = {
        stamp: claim.parts
        for stamp in range(1, 8)
        for claim in tracker.seen((_WHO, stamp))
        if claim.history.kind == "subscriber"
    }
    assert parts == {1: (), 2: ((0, 1),), 6: ()}


def test_what_a_topic_let_go_of_is_received_by_nobody_who_shares() -> None:
    asker, tracker = SharedAsker(), Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "keep", {"max_bytes": 300, "at_bound": "trim"}))
    holder, other = asker.join(), asker.join()
    asker.put_jobs(b"x" * 100)
    asker.take(holder)
    for _ in range(5):
        asker.put_jobs(b"x" * 100)
    gone = body_of(asker.take(other), bodies.Refused).gone
    assert gone == (1, 4)
    asker.done(holder, (0, 1))
    asker.done(other, gone)
    assert [_whole(tracker, stamp) for stamp in range(1, 6)] == [True, False, False, False, False]


def _whole(tracker: Tracker, stamp: int) -> bool:
    return "subscriber" in _histories(tracker, stamp)


def test_what_was_gone_past_and_is_read_after_a_seek_back_is_received() -> None:
    asker, tracker = _tracked()
    for number in (1, 2):
        asker.put(b"news", asker.batch(1, number, b"a", b"b"))
    asker.attach(b"news")
    for to in ("new", "earliest"):
        asker.ask(Kind.SEEK, bodies.Seek(b"news", b"reader", to))
    asker.ack(b"news", asker.attach(b"news", nonce=b"another one").token, (0, 4))
    assert _whole(tracker, 1)
    assert _whole(tracker, 2)


def test_a_seek_that_was_refused_takes_nothing_from_what_is_received_later() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a", b"b"))
    asker.attach(b"news")
    asker.send(Kind.SEEK, bodies.Seek(b"news", b"reader", "new"))
    asker.fail(asker.take_group())
    asker.ack(b"news", asker.attach(b"news", nonce=b"another one").token, (0, 2))
    assert _whole(tracker, 1)


def _again(asker: Asker) -> Tracker:
    """A broker that begins anew, with notes of its own."""
    tracker = Tracker()
    asker.engine = Engine(asker.store, asker.limits, tracker=tracker)
    return tracker


def test_what_is_acked_after_an_end_that_was_refused_is_noted_again_after_a_crash() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.put(b"news", asker.batch(1, 2, b"b"))
    asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"news", b"reader"))
    asker.fail(asker.take_group())
    saved = tracker.take()
    assert saved is not None
    assert saved.received == {(b"reader", b"news"): 0}, "it goes on where it is"
    asker.ack(b"news", asker.attach(b"news", nonce=b"another one").token, (0, 1))
    tracker = _again(asker)
    assert not asker.engine.tracks.begin(saved.received, saved.published_us, asker.now).is_behind
    assert _whole(tracker, 1)
    assert not _whole(tracker, 2)


def test_a_position_that_is_noted_of_a_seek_that_never_came_to_be_is_put_right() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    tracker = _again(asker)
    assert asker.engine.tracks.begin({(b"reader", b"news"): 1 | MOVED}, 1, asker.now).is_behind
    saved = tracker.take()
    assert saved is not None
    assert saved.received[b"reader", b"news"] == 0


def test_acks_that_were_noted_and_lost_in_a_crash_are_no_gap() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    tracker = _again(asker)
    assert not asker.engine.tracks.begin({(b"reader", b"news"): 1}, 1, asker.now).is_behind
    asker.ack(b"news", asker.attach(b"news").token, (0, 1))
    assert _whole(tracker, 1)


def test_what_subscribers_did_while_nothing_was_tracked_is_not_made_up() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 1))
    asker.put(b"news", asker.batch(1, 2, b"b"))
    tracker = _again(asker)
    asker.engine.tracks.begin({(b"reader", b"news"): 0}, 1, asker.now, after_gap=True)
    assert not _whole(tracker, 1)
    saved = tracker.take()
    assert saved is not None
    assert saved.received[b"reader", b"news"] == 1


def test_notes_that_are_older_than_the_log_or_lack_a_subscriber_are_told_to_be_behind() -> None:
    asker, tracker = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    asker.ack(b"news", asker.attach(b"news").token, (0, 1))
    assert asker.engine.tracks.take() is not None
    asker.engine.tracks.saved()
    _let_go(asker)
    asker.put(b"news", asker.batch(1, 2, b"b"))
    for received, is_behind in (({(b"reader", b"news"): 1}, False), ({(b"reader", b"news"): 0}, True), ({}, True)):
        tracker = _again(asker)
        begun = asker.engine.tracks.begin(received, asker.now.unix_us, asker.now)
        assert begun.is_behind == is_behind
        assert tracker.take() is not None
    tracker = _again(asker)
    assert not asker.engine.tracks.begin({}, 0, asker.now).is_behind, "nothing was tracked before"


def test_what_expired_before_a_crash_is_not_made_up_to_be_received() -> None:
    asker, _ = _tracked()
    assert asker.ask(Kind.CONFIGURE, bodies.Configure(b"news", "keep", {"ttl_s": 5.0})).kind == Kind.ACK
    asker.put(b"news", asker.batch(1, 1, b"a"))
    token = asker.attach(b"news").token
    asker.now_s += 6.0
    assert body_of(asker.get(b"news", token), bodies.Delivery).skip == ((0, 1),)
    asker.put(b"news", asker.batch(1, 2, b"b"))
    asker.ack(b"news", token, (1, 2))
    tracker = _again(asker)
    assert asker.engine.tracks.begin({(b"reader", b"news"): 0}, asker.now.unix_us, asker.now).is_behind
    assert not _whole(tracker, 1)
    assert _whole(tracker, 2)


def test_a_clock_that_was_ahead_hides_nothing_that_comes_after_it_is_right() -> None:
    asker, _ = _tracked()
    asker.put(b"news", asker.batch(1, 1, b"a"))
    tracker = _again(asker)
    assert asker.engine.tracks.begin({}, asker.now.unix_us + 3_600_000_000, asker.now).noted == 1
    assert _histories(tracker, 1) == {"publisher", "topic"}


def test_an_end_is_noted_with_the_time_of_it() -> None:
    asker, _ = _tracked()
    tracker = _again(asker)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"news", b"reader"))
    saved = tracker.take()
    assert saved is not None
    assert [(each.begins, each.at_us) for each in saved.attachments] == [(False, asker.now.unix_us)]


def test_a_message_that_is_not_found_quickly_may_still_wait() -> None:
    asker, tracker = _tracked()
    asker.last_stamp = stamp_from_unix_s(asker.now.unix_us / 1e6)
    for number in range(1, 36):
        asker.put(b"news", asker.batch(1, number, bytes(1 << 20)))
    message = MessageId(1, 1, asker.last_stamp, 0)
    (held,) = asker.engine.tracks.held(message, tracker.seen((_WHO, message.stamp)), asker.now)
    assert held.offset == NOT_FOUND
    asker.ack(b"news", asker.attach(b"news").token, (0, 35))
    assert not asker.engine.tracks.held(message, tracker.seen((_WHO, message.stamp)), asker.now)


def test_who_waits_for_notes_that_cannot_be_saved_is_let_go_on() -> None:
    asker, _ = _tracked()
    tracks = asker.engine.tracks
    asker.put(b"news", asker.batch(1, 1, b"a"))
    noted = tracks.round
    assert tracks.take() is not None
    tracks.failed()
    assert not tracks.is_saved(noted)
    tracks.release()
    assert tracks.is_saved(noted)
    assert tracks.take() is not None, "it is saved when that is possible"
