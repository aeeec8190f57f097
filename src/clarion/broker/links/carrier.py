"""Packets over links: those that this broker sends, and those that it carries for others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from clarion.broker.engine import Engine, Now
from clarion.broker.engine.link_reads import LinkBatch
from clarion.broker.links.neighbourhood import Neighbourhood, Send
from clarion.broker.links.neighbours import End, Port
from clarion.broker.links.outbound import Outbound
from clarion.broker.links.policy import ALL_TOPICS, count_without, is_among, part_for, without_bytes
from clarion.wire.frames import Buffer, Kind
from clarion.wire.link_bodies import CONFIRM, DATA, LinkConfirm, LinkData, LinkPacket, LinkPart, encode

_PACKET_BYTES = 2**20
_ROW_BYTES = 64  # of what is said of one batch, or of it for one broker, beside its name: more than it is
_MOST_HELD = 10_000


class Carrier:
    """Sends packets by the routes of the graph."""

    def __init__(self, engine: Engine, near: Neighbourhood) -> None:
        self._engine = engine
        self._near = near
        self._confirms: list[tuple[int, LinkPacket]] = []  # until what they confirm is saved as noted

    def send_to(self, broker: int, what: int, contents: msgspec.Struct) -> None:
        """Send something to one broker, wherever it is."""
        packet = LinkPacket(self._near.broker, (broker,), (self._near.broker,), what, encode(contents))
        for neighbour in self._near.graph.split(self._near.broker, self._near.broker, [broker]):
            end = self._near.up().get(neighbour)
            if end is not None:
                self._near.out.append(Send(end.port, Kind.LINK_PACKET, packet, (b"",)))

    def brokers_beyond(self, port: Port, brokers: Iterable[int]) -> Sequence[int]:
        """Return those among brokers to which what is sent from here goes by a connection."""
        end = self._near.ends.get(port)
        if end is None or self._near.up().get(end.broker) is not end:
            return ()
        return self._near.graph.split(self._near.broker, self._near.broker, list(brokers)).get(end.broker, ())

    def confirm(self, broker: int, confirm: LinkConfirm, way_back: tuple[int, ...]) -> None:
        """Confirm to its origin what came, by the way that it came."""
        packet = LinkPacket(self._near.broker, (broker,), (), CONFIRM, encode(confirm), way_back)
        self._confirms.append((self._engine.tracks.round, packet))

    def carry_confirm(self, packet: LinkPacket) -> None:
        """Send on what another broker confirms to another."""
        if packet.route and len(self._confirms) < _MOST_HELD:
            self._confirms.append((self._engine.tracks.round, packet))

    def send_confirms(self) -> None:
        """Send confirmations on, by the way that the batches came, once it is saved at this broker that they did: what
        is confirmed to its origin can be traced, though any broker on the way may crash."""
        confirms, self._confirms = self._confirms, []
        for number, packet in confirms:
            if not self._engine.tracks.is_saved(number):
                self._confirms.append((number, packet))
                continue
            route = packet.route or packet.to
            end = self._near.up().get(route[0])
            if end is not None:  # else it is lost, and so the batches come again by another way
                sent = LinkPacket(
                    packet.source, packet.to, (*packet.hops, self._near.broker), CONFIRM, packet.contents, route[1:]
                )
                self._near.out.append(Send(end.port, Kind.LINK_PACKET, sent, (b"",)))

    @property
    def waits_for_histories(self) -> bool:
        """Whether something is held until what is noted is saved."""
        return bool(self._confirms) and not self._engine.tracks.is_saved(self._confirms[-1][0])

    def note_came(self, data: LinkData, blob: memoryview, via: int) -> None:
        """Have it noted that batches came by a neighbour."""
        at = 0
        for *_, size, _ttl_ms in data.batches:
            if size:
                self._engine.tracks.came(blob[at : at + size], via)
            at += size

    def carry(self, source: int, hops: tuple[int, ...], data: LinkData, blob: memoryview) -> None:
        """Send batches on, each to the neighbours that it goes by from here."""
        others = [part.to for part in data.parts if part.to != self._near.broker]
        for neighbour, to in self._near.graph.split(source, self._near.broker, others).items():
            end = self._near.up().get(neighbour)
            if end is None:
                continue
            some, raw = part_for(data, blob, to)
            if end.settings.topics_out != ALL_TOPICS:
                some, raw = self.keep_out(some, memoryview(raw), end.settings.topics_out)
            if end.hello is not None and 0 < end.hello.most_bytes < len(raw):
                some, raw = self._leave_out(end, some, memoryview(raw), end.hello.most_bytes)
            packet = LinkPacket(source, tuple(to), (*hops, self._near.broker), DATA, encode(some))
            self._near.out.append(Send(end.port, Kind.LINK_PACKET, packet, (raw,)))
            self._near.counters["link_packets_carried" if hops else "link_packets_sent"] += 1

    def keep_out(self, data: LinkData, blob: memoryview, patterns: tuple[bytes, ...]) -> tuple[LinkData, bytes]:
        """Take out batches on topics that may not cross; whom they are for is told that they were there."""
        left = without_bytes(data, blob, lambda name, _size: not is_among(name, patterns), self._near.broker)
        self._near.counters["link_kept_out"] += count_without(left[0]) - count_without(data)
        return left

    def _leave_out(self, end: End, data: LinkData, blob: memoryview, most: int) -> tuple[LinkData, bytes]:
        """Leave out batches that a neighbour's socket would not take, or the connection broke at each try."""
        left = without_bytes(data, blob, lambda _name, size: size > most, self._near.broker)
        self._near.counters["link_left_out"] += count_without(left[0]) - count_without(data)
        self._near.tell_once(
            end, "large", f"batches of more than {most} bytes do not cross the link with {end.shown}, and are left out:"
            " have max_batch_bytes alike on linked brokers",
        )  # fmt: skip
        return left

    def send_batches(self, found: list[tuple[Outbound, list[LinkBatch]]], now: Now) -> None:
        """Send batches; those for several brokers travel together."""
        places: dict[tuple[int, int], int] = {}
        batches: list[tuple[int, bytes, int, int, int, int]] = []
        blobs: list[Buffer] = []
        parts: dict[int, tuple[int, list[tuple[int, int, bool, int]]]] = {}
        size = 0
        for outbound, some in found:
            for each in some:
                batch = each.batch
                key = (each.topic, batch.first_offset)
                size += _ROW_BYTES
                if key not in places:
                    its_size = len(batch.data) + len(each.name)
                    if batches and size + its_size > _PACKET_BYTES:
                        self._send_packet(batches, blobs, parts)
                        places, batches, blobs, parts, size = {}, [], [], {}, 0
                    size += its_size + _ROW_BYTES
                    places[key] = len(batches)
                    ttl_ms = max(1, (batch.expires_at_us - now.unix_us) // 1000) if batch.expires_at_us else 0
                    batches.append((
                        each.topic, each.name, batch.first_offset, batch.count, len(batch.data), ttl_ms,
                    ))  # fmt: skip
                    blobs.append(batch.data)
                own = parts.setdefault(outbound.broker, (outbound.session, []))[1]
                own.append((places[key], each.since, each.is_start, each.gone))
        if batches:
            self._send_packet(batches, blobs, parts)

    def _send_packet(
        self,
        batches: list[tuple[int, bytes, int, int, int, int]],
        blobs: list[Buffer],
        parts: dict[int, tuple[int, list[tuple[int, int, bool, int]]]],
    ) -> None:
        data = LinkData(
            tuple(batches), tuple(LinkPart(to, session, tuple(own)) for to, (session, own) in parts.items())
        )
        self.carry(self._near.broker, (), data, memoryview(b"".join(blobs)))
