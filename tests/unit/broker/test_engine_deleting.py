"""Deleting a topic: all that was its own goes in one commit, and its name is free when that is on disk."""

from __future__ import annotations

from typing import NoReturn

import pytest
from tests.unit.broker.asker import Asker, body_of, code_of, news_asker, payloads_of

from clarion.model.errors import StoredDataCorrupt
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"
WORKERS = b"workers"


@pytest.fixture
def asker() -> Asker:
    """A topic of four messages that one subscription has not read."""
    asker = news_asker()
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    return asker


def read(asker: Asker, token: int) -> list[bytes]:
    return payloads_of(asker.get(NEWS, token))


def test_a_deleted_topic_is_gone_with_all_that_was_its_own(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    waiting = asker.send_wait(NEWS, token, position=4)
    key = asker.send(Kind.DELETE, bodies.Delete(NEWS))
    assert code_of(asker.replies[waiting]) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
    assert key not in asker.replies
    asker.settle()
    assert asker.replies[key].body == bodies.Done()
    assert asker.store.topic(NEWS) is None
    assert asker.store.used_bytes() == 0
    assert asker.engine.stats()["topics"] == 0
    assert code_of(asker.get(NEWS, token)) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)


def test_the_name_of_a_topic_is_busy_until_its_deletion_is_on_disk_and_free_then(asker: Asker) -> None:
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    group = asker.take_group()
    busy = [
        asker.send(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, b"reader")),
        asker.send(Kind.CONFIGURE, bodies.Configure(NEWS, "keep")),
    ]
    again = asker.send(Kind.DELETE, bodies.Delete(NEWS))
    assert {code_of(asker.replies[key]) for key in busy} == {(Kind.REFUSED, Code.BUSY)}
    asker.commit(group)
    asker.settle()
    assert asker.replies[again].body == bodies.Done()
    asker.subscribe(NEWS)
    assert body_of(asker.put(NEWS, asker.batch(1, 1, b"new")), bodies.PutDone).first_offset == 0
    assert read(asker, asker.attach(NEWS).token) == [b"new"]


def test_puts_taken_before_the_deletion_are_answered_and_gone(asker: Asker) -> None:
    put = asker.send_put(NEWS, asker.batch(1, 5, b"4"))
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.settle()
    assert asker.replies[put].kind == Kind.ACK
    assert asker.store.used_bytes() == 0


def test_consumers_who_share_a_subscription_are_told_of_the_deletion(asker: Asker) -> None:
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, WORKERS, "earliest", 0, SubscriptionOptions(shared=True)))
    token = asker.attach(NEWS, WORKERS).token
    asker.ask(Kind.TAKE, bodies.Take(NEWS, WORKERS, token, 1, 100, 1 << 20, 0))
    waiting = asker.send(Kind.TAKE, bodies.Take(NEWS, WORKERS, token, 2, 1, 1, 60_000))
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    assert code_of(asker.replies[waiting]) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
    asker.settle()
    asker.tick(100)
    asker.settle()
    assert asker.engine.stats()["topics_in_memory"] == 0


def test_a_deletion_that_does_not_reach_the_disk_did_not_happen(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    key = asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.DISK_FULL)
    assert read(asker, token) == [b"0", b"1", b"2", b"3"]
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.take_group()
    asker.crash()
    assert read(asker, token) == [b"0", b"1", b"2", b"3"]


def test_a_crash_after_the_deletion_is_on_disk_leaves_no_trace(asker: Asker) -> None:
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.store.commit(asker.take_group().changes)
    asker.crash()
    assert asker.engine.stats()["topics"] == 0
    assert code_of(asker.ask(Kind.DELETE, bodies.Delete(NEWS))) == (Kind.REFUSED, Code.NO_TOPIC)


def test_a_topic_made_and_deleted_in_one_group_was_never_there() -> None:
    asker = Asker()
    asker.register()
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, b"reader"))
    asker.send_put(NEWS, asker.batch(1, 1, b"x"))
    asker.send(Kind.DELETE, bodies.Delete(NEWS))
    asker.settle()
    assert asker.store.topic(NEWS) is None
    assert (asker.store.used_bytes(), asker.engine.stats()["topics"]) == (0, 0)
    asker.subscribe(NEWS)
    assert asker.put(NEWS, asker.batch(1, 1, b"y")).kind == Kind.ACK


def number_of(asker: Asker, topic: bytes = NEWS) -> int:
    number = body_of(asker.ask(Kind.DESCRIBE, bodies.Describe(topic)), bodies.Description).values["number"]
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("crash", [False, True])
def test_a_deletion_asked_for_again_spares_what_was_made_under_the_name_since(asker: Asker, crash: bool) -> None:
    request = bodies.Delete(NEWS, number_of(asker))
    first = asker.ask(Kind.DELETE, request)
    assert asker.ask(Kind.DELETE, request) == first._replace(request_id=asker.last_id), "there is none of that name"
    asker.subscribe(NEWS)
    asker.put_many(NEWS, 1, 1, b"new")
    if crash:
        asker.crash()
    assert asker.ask(Kind.DELETE, request) == first._replace(request_id=asker.last_id), "there is another"
    assert read(asker, asker.attach(NEWS).token) == [b"new"]
    assert number_of(asker) != request.number
    asker.ask(Kind.DELETE, bodies.Delete(NEWS, number_of(asker)))
    assert asker.store.topic(NEWS) is None


def test_a_deletion_asked_for_again_before_it_is_on_disk_is_answered_with_the_first(asker: Asker) -> None:
    request = bodies.Delete(NEWS, number_of(asker))
    keys = [asker.send(Kind.DELETE, request)]
    group = asker.take_group()
    keys.append(asker.send(Kind.DELETE, request))
    assert not set(keys) & set(asker.replies)
    asker.commit(group)
    asker.settle()
    assert [asker.replies[key].body for key in keys] == [bodies.Done()] * 2


@pytest.mark.parametrize("number", [-1, 0, 1000, 1 << 64])
def test_a_number_that_is_anothers_or_nobodys_deletes_nothing(asker: Asker, number: int) -> None:
    asker.subscribe(b"other")
    number = number or number_of(asker, b"other")
    for topic in (NEWS, b"nowhere"):
        reply = asker.ask(Kind.DELETE, bodies.Delete(topic, number))
        assert code_of(reply) == (Kind.REFUSED, Code.NO_TOPIC)
    assert asker.engine.stats()["topics"] == 2


def test_a_topic_whose_messages_are_damaged_can_be_described_and_deleted(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> NoReturn:
        raise StoredDataCorrupt("bytes are missing")

    asker.crash()  # so that nothing is in memory
    monkeypatch.setattr(asker.store, "batches", damaged)
    values = body_of(asker.ask(Kind.DESCRIBE, bodies.Describe(NEWS)), bodies.Description).values
    assert (values["next_offset"], values["oldest_at_us"], values["subscriptions"][0]["lag"]) == (4, 0, 4)
    assert asker.engine.stats()["corrupt_reads"] > 0
    assert asker.ask(Kind.DELETE, bodies.Delete(NEWS, values["number"])).body == bodies.Done()
