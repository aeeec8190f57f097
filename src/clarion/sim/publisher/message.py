"""A message on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clarion.sim.publisher.publisher import SimulatedPublisher


class Message:
    """Which arrival of which publisher it is, and what its transfer was dealt."""

    __slots__ = ("half_rtt_s", "limit", "number", "publisher", "transfer_began_s")

    def __init__(self, publisher: SimulatedPublisher, number: int) -> None:
        self.publisher = publisher
        self.number = number
        self.half_rtt_s = 0.0
        self.transfer_began_s = 0.0
        self.limit = 0  # carried by its ACK
