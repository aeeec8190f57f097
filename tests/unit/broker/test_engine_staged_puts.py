"""Staged puts: stored at once, seen at the commit of their epoch, all of it once, or none."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, Asker, body_of, code_of, news_asker, payloads_of

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"
SINK = b"sink"


@pytest.fixture
def asker() -> Asker:
    return news_asker()


def stage_body(epoch: int, part: bytes = b"0", place: int = 0, topic: bytes = NEWS) -> bodies.Stage:
    return bodies.Stage(topic, SINK, epoch, part, place)


def stage(asker: Asker, epoch: int, part: bytes, place: int, *payloads: bytes, topic: bytes = NEWS) -> Reply:
    return asker.ask(Kind.STAGE, stage_body(epoch, part, place, topic), asker.batch(1, 0, *payloads))


def commit(asker: Asker, epoch: int, parts: tuple[bytes, ...] | None = None) -> bodies.StagedCommitted:
    return body_of(asker.ask(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, epoch, parts)), bodies.StagedCommitted)


def drop(asker: Asker, epoch: int) -> bodies.StagedCommitted:
    body = bodies.CommitStaged(SINK, epoch, None, drop=True)
    return body_of(asker.ask(Kind.COMMIT_STAGED, body), bodies.StagedCommitted)


def read(asker: Asker, topic: bytes = NEWS) -> list[bytes]:
    reply = asker.get(topic, asker.attach(topic).token)
    return payloads_of(reply) if reply.kind == Kind.MESSAGES else []


def test_staged_batches_are_seen_by_nobody_until_their_epoch_is_committed(asker: Asker) -> None:
    assert stage(asker, 1, b"b", 0, b"2", b"3").body == bodies.Staged(already=False)
    stage(asker, 1, b"a", 1, b"1")
    stage(asker, 1, b"a", 0, b"0")
    asker.put(NEWS, asker.batch(1, 1, b"plain"))
    assert read(asker) == [b"plain"]
    assert commit(asker, 1) == bodies.StagedCommitted(1, 4, already=False)
    assert read(asker) == [b"plain", b"0", b"1", b"2", b"3"], "by part and place"


def test_a_commit_wakes_who_waits(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"0")
    key = asker.send_wait(NEWS, asker.attach(NEWS).token)
    commit(asker, 1)
    assert payloads_of(asker.replies[key]) == [b"0"]


def test_an_epoch_may_have_batches_for_several_topics(asker: Asker) -> None:
    asker.subscribe(b"other")
    stage(asker, 1, b"a", 0, b"0")
    stage(asker, 1, b"a", 1, b"1", topic=b"other")
    stage(asker, 1, b"a", 2, b"2")
    assert commit(asker, 1).messages == 3
    assert (read(asker), read(asker, b"other")) == ([b"0", b"2"], [b"1"])


def test_staging_the_same_place_again_stores_it_once(asker: Asker) -> None:
    packed = asker.batch(1, 0, b"0")
    first = asker.send(Kind.STAGE, stage_body(1), packed)
    group = asker.take_group()
    second = asker.send(Kind.STAGE, stage_body(1), packed)
    assert first not in asker.replies, "answered when it is on disk"
    asker.commit(group)
    asker.settle()
    asker.crash()
    third = asker.send(Kind.STAGE, stage_body(1), packed)
    assert [asker.replies[key].body for key in (first, second, third)] == 3 * [bodies.Staged(already=False)]
    assert commit(asker, 1).messages == 1
    assert read(asker) == [b"0"]


def test_the_same_place_with_other_contents_is_invalid(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"0")
    for topic in (NEWS, b"other"):
        assert code_of(stage(asker, 1, b"a", 0, b"other", topic=topic)) == (Kind.INVALID, Code.CHECKSUM_DIFFERS)


def test_only_the_parts_named_are_shown_and_the_rest_is_dropped(asker: Asker) -> None:
    for part in (b"a", b"a-retried", b"b"):
        stage(asker, 1, part, 0, b"of " + part)
    assert commit(asker, 1, (b"a-retried", b"b")).messages == 2
    assert read(asker) == [b"of a-retried", b"of b"]
    assert asker.store.staged(SINK, 1) == []


def test_a_commit_again_is_answered_already_and_shows_nothing_more(asker: Asker) -> None:
    stage(asker, 3, b"a", 0, b"0")
    first = asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 3))
    group = asker.take_group()
    second = asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 3))
    asker.commit(group)
    asker.settle()
    asker.crash()
    assert asker.replies[first].body == bodies.StagedCommitted(3, 1, already=False)
    assert asker.replies[second].body == commit(asker, 3) == bodies.StagedCommitted(3, 1, already=True)
    assert commit(asker, 2) == bodies.StagedCommitted(2, 0, already=True)
    assert read(asker) == [b"0"]


def test_staging_for_an_epoch_that_is_committed_stores_nothing(asker: Asker) -> None:
    stage(asker, 3, b"a", 0, b"0")
    asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 3))
    key = asker.send(Kind.STAGE, stage_body(3, b"b"), asker.batch(1, 0, b"late"))
    asker.settle()
    assert asker.replies[key].body == bodies.Staged(already=True)
    assert stage(asker, 2, b"b", 0, b"later").body == bodies.Staged(already=True)
    assert asker.store.staged_totals(FIRST_TOPIC) == (0, 0)
    assert read(asker) == [b"0"]


def test_an_empty_epoch_is_committed_and_moves_on(asker: Asker) -> None:
    assert commit(asker, 0) == bodies.StagedCommitted(0, 0, already=False)
    assert commit(asker, 0) == bodies.StagedCommitted(0, 0, already=True)
    assert stage(asker, 0, b"a", 0, b"0").body == bodies.Staged(already=True)


def test_what_is_staged_and_not_on_disk_yet_counts_for_the_commit(asker: Asker) -> None:
    keys = [asker.send(Kind.STAGE, stage_body(1, b"a"), asker.batch(1, 0, b"0"))]
    group = asker.take_group()
    keys.append(asker.send(Kind.STAGE, stage_body(1, b"b"), asker.batch(1, 0, b"1")))
    keys.append(asker.send(Kind.STAGE, stage_body(1, b"c"), asker.batch(1, 0, b"2")))
    done = asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 1, (b"a", b"b")))
    asker.commit(group)
    asker.settle()
    assert all(asker.replies[key].body == bodies.Staged(already=False) for key in keys)
    assert asker.replies[done].body == bodies.StagedCommitted(1, 2, already=False)
    assert read(asker) == [b"0", b"1"]
    assert asker.store.staged_totals(FIRST_TOPIC) == (0, 0)


def test_dropping_an_epoch_lets_it_be_staged_anew(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"old")
    asker.send(Kind.STAGE, stage_body(1, b"b"), asker.batch(1, 0, b"older"))
    assert drop(asker, 1) == bodies.StagedCommitted(1, 2, already=False)
    assert asker.store.used_bytes() == 0
    assert stage(asker, 1, b"a", 0, b"new").body == bodies.Staged(already=False)
    assert commit(asker, 1).messages == 1
    assert drop(asker, 1) == bodies.StagedCommitted(1, 1, already=True), "what is committed stays"
    assert read(asker) == [b"new"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_in_the_commit_of_an_epoch_shows_all_of_it_or_nothing(asker: Asker, committed: bool) -> None:
    stage(asker, 1, b"a", 0, b"0")
    stage(asker, 1, b"b", 0, b"1")
    asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 1, (b"b",)))
    group = asker.take_group()
    if committed:
        asker.store.commit(group.changes)
    asker.crash()
    assert read(asker) == ([b"1"] if committed else [])
    assert commit(asker, 1, (b"b",)) == bodies.StagedCommitted(1, 1, already=committed)
    assert read(asker) == [b"1"]


def test_a_failed_commit_of_an_epoch_is_told_and_can_be_repeated(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"0")
    late = asker.batch(1, 0, b"1")
    keys = [asker.send(Kind.STAGE, stage_body(1, b"b"), late)]
    keys.append(asker.send(Kind.COMMIT_STAGED, bodies.CommitStaged(SINK, 1)))
    asker.fail(asker.take_group())
    assert {code_of(asker.replies[key]) for key in keys} == {(Kind.REFUSED, Code.DISK_FULL)}
    asker.tick(2)
    assert asker.ask(Kind.STAGE, stage_body(1, b"b"), late).body == bodies.Staged(already=False)
    assert commit(asker, 1) == bodies.StagedCommitted(1, 2, already=False)
    assert read(asker) == [b"0", b"1"]


def test_staging_needs_no_subscriber_and_what_nobody_reads_goes(asker: Asker) -> None:
    assert stage(asker, 1, b"a", 0, b"0", topic=b"quiet").kind == Kind.ACK
    assert commit(asker, 1).messages == 1
    asker.tick(2)
    asker.settle()
    assert asker.store.used_bytes() == 0


def test_what_was_staged_for_a_deleted_topic_is_not_shown_on_its_successor(asker: Asker) -> None:
    packed = asker.batch(1, 0, b"0")
    asker.ask(Kind.STAGE, stage_body(1), packed)
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    refused = asker.send(Kind.STAGE, stage_body(1, b"b"), packed)
    assert code_of(asker.replies[refused]) == (Kind.REFUSED, Code.BUSY)
    asker.settle()
    asker.subscribe(NEWS)
    assert commit(asker, 1).messages == 0
    assert read(asker) == []


def test_a_commit_while_the_topic_is_being_deleted_shows_nothing(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"0")
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    assert commit(asker, 1).messages == 0
    assert asker.store.used_bytes() == 0


def test_staged_batches_take_nothing_of_the_reserve() -> None:
    asker = Asker(disk_reserve_bytes=1000)
    asker.register()
    stage(asker, 1, b"a", 0, b"0")
    asker.store.capacity_bytes = asker.store.used_bytes() + 1010
    asker.tick(2)
    assert code_of(stage(asker, 1, b"b", 0, b"1")) == (Kind.REFUSED, Code.DISK_FULL)
    assert commit(asker, 1).messages == 1, "a commit moves what is there"


def test_an_epoch_may_be_larger_than_its_topic_but_waits_while_that_is_full() -> None:
    asker = news_asker(topic_max_bytes=300)
    for place in range(5):
        assert stage(asker, 1, b"a", place, bytes(100)).kind == Kind.ACK
    assert commit(asker, 1).messages == 5
    assert code_of(stage(asker, 2, b"a", 0, bytes(100))) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_what_nobody_commits_expires_by_epoch() -> None:
    asker = Asker(staged_expiry_s=1000)
    asker.register()
    stage(asker, 1, b"a", 0, b"0")
    stage(asker, 2, b"a", 0, b"1")
    asker.now_s += 900
    stage(asker, 2, b"a", 1, b"2")
    asker.tick(200)
    asker.settle()
    assert asker.store.staged(SINK, 1) == []
    assert commit(asker, 1).messages == 0
    assert commit(asker, 2).messages == 2, "an epoch that is still being written stays whole"


def test_a_writer_is_never_forgotten_and_there_may_be_so_many() -> None:
    asker = Asker(max_writers=2)
    asker.register()
    commit(asker, 7)
    asker.ask(Kind.COMMIT_STAGED, bodies.CommitStaged(b"another", 3))
    body = bodies.CommitStaged(b"one too many", 1)
    for _ in range(2):
        assert code_of(asker.ask(Kind.COMMIT_STAGED, body)) == (Kind.REFUSED, Code.LIMIT)
        asker.tick(100 * 365 * 86_400)
        asker.settle()
        assert commit(asker, 7).already
        asker.crash()
    assert not commit(asker, 8).already


@pytest.mark.parametrize(
    "body",
    [
        bodies.Stage(NEWS, b"", 0, b"", 0),
        bodies.Stage(NEWS, b"w" * 1025, 0, b"", 0),
        bodies.Stage(NEWS, b"w", -1, b"", 0),
        bodies.Stage(NEWS, b"w", 1 << 63, b"", 0),
        bodies.Stage(NEWS, b"w", 0, b"p" * 1025, 0),
        bodies.Stage(NEWS, b"w", 0, b"", -1),
        bodies.Stage(b"news/*", b"w", 0, b"", 0),
    ],
)
def test_what_cannot_be_staged_is_invalid(asker: Asker, body: bodies.Stage) -> None:
    assert code_of(asker.ask(Kind.STAGE, body, asker.batch(1, 0, b"x"))) == (Kind.INVALID, Code.MALFORMED)


def test_a_batch_that_is_damaged_too_large_or_of_nobody_is_not_staged() -> None:
    asker = Asker(max_batch_bytes=200)
    asker.register()
    packed = asker.batch(1, 0, b"x")
    damaged = asker.ask(Kind.STAGE, stage_body(1), packed[:-1] + b"?")
    assert code_of(damaged) == (Kind.INVALID, Code.MALFORMED)
    assert code_of(stage(asker, 1, b"a", 0, bytes(300))) == (Kind.REFUSED, Code.TOO_LARGE)
    unknown = asker.ask(Kind.STAGE, stage_body(1), asker.batch(9, 0, b"x"))
    assert code_of(unknown) == (Kind.REFUSED, Code.PUBLISHER_EXPIRED)
    assert asker.engine.take_group() is None


@pytest.mark.parametrize("body", [bodies.CommitStaged(b"", 0), bodies.CommitStaged(SINK, -1)])
def test_what_cannot_be_committed_is_invalid(asker: Asker, body: bodies.CommitStaged) -> None:
    assert code_of(asker.ask(Kind.COMMIT_STAGED, body)) == (Kind.INVALID, Code.MALFORMED)


def test_a_commit_that_says_how_many_there_must_be_is_told_of_what_expired(asker: Asker) -> None:
    stage(asker, 1, b"a", 0, b"0", b"1")
    stage(asker, 1, b"b", 0, b"other")
    missing = bodies.CommitStaged(SINK, 1, (b"a",), messages=3)
    assert code_of(asker.ask(Kind.COMMIT_STAGED, missing)) == (Kind.REFUSED, Code.GONE)
    assert read(asker) == []
    whole = bodies.CommitStaged(SINK, 1, (b"a",), messages=2)
    assert asker.ask(Kind.COMMIT_STAGED, whole).body == bodies.StagedCommitted(1, 2, already=False)
    assert asker.ask(Kind.COMMIT_STAGED, whole).body == bodies.StagedCommitted(1, 2, already=True)


def test_what_expired_is_not_staged_again_by_a_copy_that_comes_late() -> None:
    asker = news_asker(staged_expiry_s=1000)
    body, packed = stage_body(1), asker.batch(1, 0, b"0")
    body.as_of = asker.state.count
    assert asker.ask(Kind.STAGE, body, packed).kind == Kind.ACK
    asker.tick(2000)
    asker.settle()
    asker.crash()
    assert code_of(asker.ask(Kind.STAGE, body, packed)) == (Kind.REFUSED, Code.STALE)


def test_what_was_shown_takes_no_more_than_its_own_room() -> None:
    asker = news_asker(topic_max_bytes=300)
    stage(asker, 1, b"a", 0, bytes(100))
    assert commit(asker, 1).messages == 1
    assert asker.ack(NEWS, asker.attach(NEWS).token, (0, 1)).kind == Kind.ACK
    asker.tick(2)
    asker.settle()
    assert asker.put(NEWS, asker.batch(1, 1, bytes(100))).kind == Kind.ACK
