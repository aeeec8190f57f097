"""A refused request has changed nothing."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import Asker, code_of

from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS, TYPO = b"news", b"nwes"


def test_a_refused_transaction_has_no_topic_let_go_of_what_was_read() -> None:
    asker = Asker()
    publisher = asker.register()
    for topic in (b"kept", b"full"):
        settings = {"max_bytes": 400, "at_bound": "refuse"}
        asker.ask(Kind.CONFIGURE, bodies.Configure(topic, "keep", settings))
        asker.subscribe(topic)
        for number in (1, 2):
            assert asker.put(topic, asker.batch(publisher, number, bytes(100))).kind == Kind.ACK
    asker.ack(b"kept", asker.attach(b"kept").token, (0, 2))
    batches = [asker.batch(publisher, 0, bytes(200)) for _ in range(2)]
    puts = tuple((topic, len(batch), 0, b"") for topic, batch in zip((b"kept", b"full"), batches, strict=True))
    body = bodies.Transact(publisher, 1, (), puts, ())
    assert code_of(asker.ask(Kind.TRANSACT, body, b"".join(batches))) == (Kind.REFUSED, Code.TOPIC_FULL)
    row = asker.store.topic(b"kept")
    assert row is not None
    assert (row.first_offset, row.next_offset) == (0, 2)


@pytest.mark.parametrize(("retention", "code"), [("until-read", Code.NO_SUBSCRIBER), ("keep", Code.TOO_LARGE)])
def test_a_refused_put_leaves_no_topic_behind(retention: str, code: Code) -> None:
    asker = Asker(default_retention=retention, max_batch_bytes=200)
    publisher = asker.register()
    packed = asker.batch(publisher, 1, bytes(300) if code == Code.TOO_LARGE else b"one")
    assert code_of(asker.put(TYPO, packed))[1] == code
    overtaking = asker.put(TYPO, asker.batch(publisher, 2, b"two"))
    assert code_of(overtaking)[1] == (Code.NO_SUBSCRIBER if retention == "until-read" else Code.GAP)
    assert asker.store.topic_count() == 0


def test_a_refused_stage_leaves_no_topic_behind() -> None:
    asker = Asker(default_retention="keep", max_batch_bytes=200)
    packed = asker.batch(asker.register(), 1, bytes(300))
    refused = asker.ask(Kind.STAGE, bodies.Stage(TYPO, b"writer", 1, b"part", 0), packed)
    assert code_of(refused) == (Kind.REFUSED, Code.TOO_LARGE)
    assert asker.store.topic_count() == 0


def test_a_refused_subscription_leaves_no_topic_behind() -> None:
    asker = Asker()
    assert code_of(asker.subscribe(TYPO, start="offset", at=-1)) == (Kind.INVALID, Code.MALFORMED)
    assert asker.store.topic_count() == 0


def test_a_full_topic_that_refuses_a_put_keeps_what_was_read() -> None:
    asker = Asker()
    publisher = asker.register()
    settings = {"max_bytes": 400, "at_bound": "refuse"}
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "keep", settings))
    asker.subscribe(NEWS)
    asker.put_many(NEWS, publisher, 1, bytes(100), bytes(100))
    asker.ack(NEWS, asker.attach(NEWS).token, (0, 1))
    assert code_of(asker.put(NEWS, asker.batch(publisher, 3, bytes(300)))) == (Kind.REFUSED, Code.TOPIC_FULL)
    row = asker.store.topic(NEWS)
    assert row is not None
    assert row.first_offset == 0


def test_a_refused_ack_renews_no_lease() -> None:
    asker = Asker()
    options = SubscriptionOptions(shared=True, lease_s=10.0)
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, b"workers", "new", 0, options))
    token = asker.attach(NEWS, b"workers").token
    asker.put(NEWS, asker.batch(asker.register(), 1, b"one"))
    for _ in range(2):
        asker.tick(6)
        refused = asker.ack(NEWS, token, (0, 1), name=b"workers")
        assert code_of(refused) == (Kind.REFUSED, Code.LEASE_LOST)
    assert asker.engine.stats()["leases_lapsed"] == 1


def test_a_publisher_that_is_refused_for_now_lives_on() -> None:
    asker = Asker(publisher_expiry_s=100.0, topic_max_bytes=150)
    publisher = asker.register()
    asker.subscribe(NEWS)
    asker.put(NEWS, asker.batch(publisher, 1, bytes(100)))
    packed = asker.batch(publisher, 2, bytes(100))
    for _ in range(10):
        asker.tick(61)
        asker.settle()
        assert code_of(asker.put(NEWS, packed)) == (Kind.REFUSED, Code.TOPIC_FULL)
