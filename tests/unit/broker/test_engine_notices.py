"""What goes wrong again and again is told when it begins, once a minute, and when it is over."""

from __future__ import annotations

import logging

import pytest
from tests.unit.broker.asker import Asker, code_of

from clarion.model.errors import StoredDataCorrupt, StoreUnavailable
from clarion.store.port import StoredBatch
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


def told(asker: Asker) -> list[tuple[int, str]]:
    return [(level, text) for level, text in asker.engine.take_notices(asker.now_s)]


def full(**limits: int) -> Asker:
    asker = Asker(default_retention="keep", **limits)
    asker.register(b"publisher nonce")
    asker.store.capacity_bytes = asker.store.used_bytes() + asker.limits.disk_reserve_bytes
    asker.state.free_bytes = asker.store.free_bytes()
    return asker


def test_a_full_disk_is_told_when_it_begins_once_a_minute_and_when_it_is_over() -> None:
    asker = full()
    assert told(asker) == []
    for _ in range(3):
        assert code_of(asker.put(NEWS, asker.batch(1, 1, b"one"))) == (Kind.REFUSED, Code.DISK_FULL)
    ((level, text),) = told(asker)
    assert level == logging.WARNING
    assert "disk is full but for its reserve" in text
    assert "nothing acked is lost" in text
    assert "clarion topics purge" in text
    for _ in range(5):
        asker.put(NEWS, asker.batch(1, 1, b"one"))
        assert told(asker) == []
    asker.now_s += 60
    assert "(5 times since this was last said)" in told(asker)[0][1]
    asker.now_s += 59
    assert told(asker) == []
    asker.now_s += 1
    assert told(asker) == [(logging.INFO, "DISK_FULL is over: there was none for a minute")]
    asker.now_s += 3600
    assert told(asker) == []


def test_a_commit_that_failed_is_told_though_nobody_asked_for_it() -> None:
    asker = Asker()
    asker.send(Kind.CONFIGURE, bodies.Configure(NEWS, "keep"))
    asker.fail(asker.take_group())
    assert "DISK_FULL: nothing of a commit was kept: full" in told(asker)[0][1]


def test_a_limit_is_told_and_what_only_the_asker_did_wrong_is_not() -> None:
    asker = Asker(max_publishers=1)
    asker.register(b"publisher nonce")
    asker.put(NEWS, asker.batch(1, 1, b"nobody subscribes"))
    assert told(asker) == []
    asker.ask(Kind.REGISTER, bodies.Register(b"another nonce"))
    ((_, text),) = told(asker)
    assert "max_publishers" in text


def test_damage_and_a_lack_of_descriptors_are_told_by_whatever_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = Asker(default_retention="keep", memory_bytes=0)
    asker.register(b"publisher nonce")
    asker.put(NEWS, asker.batch(1, 1, b"one"))
    for error, level in (
        (StoredDataCorrupt("0000000001.seg is damaged at byte 7"), logging.ERROR),
        (StoreUnavailable("Too many open files"), logging.WARNING),
    ):

        def failing(*_: int, error: Exception = error) -> list[StoredBatch]:
            raise error

        monkeypatch.setattr(asker.store, "batches", failing)
        asker.ask(Kind.READ, bodies.Read(NEWS, 0, 10, 1000))
        ((told_as, text),) = told(asker)
        assert told_as == level
        assert str(error) in text
