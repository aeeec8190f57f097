"""A store that went back is told from one that only began anew, to the very commit."""

from __future__ import annotations

import copy

import pytest
from tests.unit.broker.asker import Asker, body_of

from clarion.broker.engine import Engine
from clarion.wire import bodies
from clarion.wire.frames import Kind


class Started(Asker):
    """An asker whose broker begins again and again."""

    def start(self, start: bytes) -> None:
        self.engine = Engine(self.store, self.limits, start=start)
        self.settle()

    def hello(self, seen: bodies.Welcome | None = None, sequence: int = 0) -> bodies.Welcome:
        body = bodies.Hello(1, 1, "test")
        if seen is not None:
            body = bodies.Hello(1, 1, "test", seen.store_uuid, seen.timeline, seen.start, sequence)
        return body_of(self.ask(Kind.HELLO, body), bodies.Welcome)


@pytest.fixture
def asker() -> Started:
    asker = Started()
    asker.start(b"the first start.")
    asker.subscribe(b"news")
    return asker


def test_what_is_on_disk_was_seen_here_and_one_commit_more_was_not(asker: Started) -> None:
    seen = asker.hello()
    assert not asker.hello(seen, asker.store.sequence).lost
    assert asker.hello(seen, asker.store.sequence + 1).lost


@pytest.mark.parametrize("lost", [0, 1])
def test_a_store_that_is_one_commit_older_than_what_was_seen_went_back(asker: Started, lost: int) -> None:
    seen = asker.hello()
    older = copy.deepcopy(asker.store)
    for place in range(lost):
        asker.subscribe(b"news", b"%d" % place)
    told = asker.store.sequence
    asker.store = older
    asker.start(b"the other start.")
    assert asker.hello(seen, told).lost == bool(lost)
