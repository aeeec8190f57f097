"""Answers to who subscribes, held for a moment so that they say which other brokers have confirmed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clarion.broker.engine import Now, Reply
from clarion.wire import bodies

_HOLD_S = 1.0
_MOST_HELD = 10_000


class Origins(NamedTuple):
    """Which brokers have confirmed a topic, from which offset on, and which not, with why nothing of them comes."""

    confirmed: tuple[tuple[str, int], ...]
    unconfirmed: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]


class Held(NamedTuple):
    """An answer to somebody who subscribed, while brokers have not confirmed."""

    reply: Reply
    topic: bytes
    until_s: float


class HeldAnswers:
    """The answers that wait."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Any, int], bytes] = {}  # topics of subscribes that are not answered
        self.held: list[Held] = []

    def asked(self, peer: Any, request_id: int, topic: bytes) -> None:
        """Note that somebody subscribes."""
        if len(self._asked) < _MOST_HELD:
            self._asked[peer, request_id] = topic

    def hold(self, reply: Reply, now: Now) -> bool:
        """Hold an answer to who subscribed, until `take` says with it who has confirmed; return False where it is
        another answer, which is not held."""
        topic = self._asked.pop((reply.peer, reply.request_id), None)
        if topic is None or not isinstance(reply.body, bodies.Subscribed):
            return False
        self.held.append(Held(reply, topic, now.monotonic_s + _HOLD_S))
        return True

    def take(
        self,
        is_answered: Callable[[bytes], bool],
        origins_of: Callable[[bytes], Origins],
        now: Now,
        *,
        all_of_them: bool,
    ) -> list[Reply]:
        """Return the answers that need not wait any more, with who has confirmed, and who has not."""
        done, waiting = [], []
        for held in self.held:
            if all_of_them or now.monotonic_s >= held.until_s or is_answered(held.topic):
                body = held.reply.body
                assert isinstance(body, bodies.Subscribed)
                told = bodies.Subscribed(body.cursor, body.options, body.count, *origins_of(held.topic))
                done.append(held.reply._replace(body=told))
            else:
                waiting.append(held)
        self.held = waiting
        return done
