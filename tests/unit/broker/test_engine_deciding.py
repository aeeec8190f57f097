"""Each request that changes something is decided once."""

from __future__ import annotations

from tests.unit.broker.asking import Asker, body_of

from clarion.wire import bodies
from clarion.wire.frames import Kind

NEWS = b"news"


def count_of(asker: Asker) -> int:
    """Return the count that the broker tells."""
    return body_of(asker.ask(Kind.HELLO, bodies.Hello(1, 1, "test")), bodies.Welcome).count


def max_bytes_of(asker: Asker) -> int:
    values = body_of(asker.ask(Kind.DESCRIBE, bodies.Describe(NEWS)), bodies.Description).values
    return int(values["settings"]["max_bytes"])


def test_the_first_request_to_a_new_store_is_decided_once_too() -> None:
    asker = Asker()
    first = bodies.Configure(NEWS, "keep", {"max_bytes": 1}, b"first nonce", count_of(asker))
    asker.ask(Kind.CONFIGURE, first)
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "", {"max_bytes": 2}, b"second nonce", count_of(asker)))
    asker.crash()
    assert asker.ask(Kind.CONFIGURE, first).kind == Kind.ACK
    assert max_bytes_of(asker) == 2
