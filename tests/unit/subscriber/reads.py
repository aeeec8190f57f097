"""A subscriber without its thread, whose requests are answered by the test."""

from __future__ import annotations

from typing import Literal

from tests.unit.subscriber.talking import Asked, Walk, World

from clarion.model.options import SubscriptionOptions
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import Get
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.messages import MessageBatch

SHARED = SubscriptionOptions(shared=True)


class Reads(World):
    """A subscriber without its thread."""

    def __init__(
        self, *, ack: Literal["auto", "explicit"] = "auto", at_most_once: bool = False, shared: bool = False
    ) -> None:
        super().__init__(FetchSettings(1000, True, 10, True, at_most_once), auto_ack=ack == "auto")
        self.options = SubscriptionOptions(shared=shared)

    def get(self, most: int = 10, wait_s: float = 0.0, *, opened: bool = False) -> Walk[list[MessageBatch]]:
        return self.run(Get(b"news", most, wait_s, opened=opened, holder=self))

    def attach(self, token: int = 7) -> None:
        self.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(token, 0, (), self.options))

    def got(self, *offsets: int) -> list[MessageBatch]:
        """Get the first messages, attaching for them."""
        walk = self.get()
        self.attach()
        bring(self.take_asked()[0], *offsets)
        return walk.end()


def bring(asked: Asked, *offsets: int) -> None:
    if asked.kind == Kind.TAKE:
        asked.lend(*offsets)
    else:
        asked.deliver(offsets[0], *(b"%d" % offset for offset in offsets))
