"""A broker's links: neighbours met, routes kept, interest spread, batches sent, carried and taken.

Every broker tells the others which neighbours it hears, so all know the same graph and the same shortest-path trees. A
batch is served by the broker that took it first, its origin: for each broker that subscribes to something there it has
a durable subscription, whose cursor follows what that broker has confirmed. Batches, and what is said of them, travel
in packets that the brokers in between carry and do not keep: what is lost on the way is sent again, and what comes
again is known by its position.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine import Engine, Now, Reply
from clarion.broker.engine.link_reads import LinkBatch
from clarion.broker.engine.notices import Notice
from clarion.broker.links.inbound import Inbound, first_session
from clarion.broker.links.neighbours import End, Port, find_settings, is_sound
from clarion.broker.links.outbound import LinkPeer, Outbound, subscriber_name
from clarion.broker.links.policy import (
    ALL_TOPICS,
    LinkSettings,
    are_sound,
    count_without,
    is_among,
    part_for,
    without_bytes,
)
from clarion.broker.links.traces import Histories, Traces
from clarion.model.ids import MessageId
from clarion.model.names import LINK, to_text
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.wire import bodies
from clarion.wire.batch import HEADER_BYTES
from clarion.wire.frames import Buffer, Kind, Request
from clarion.wire.link_bodies import (
    ASK_TRACE,
    CONFIRM,
    DATA,
    INTEREST,
    INTEREST_DONE,
    LINK_VERSION,
    MAX_HOPS,
    OLDEST_LINK_VERSION,
    TRACE_IS,
    AskTrace,
    Interest,
    InterestDone,
    LinkConfirm,
    LinkData,
    LinkHello,
    LinkPacket,
    LinkPart,
    LinkState,
    Traced,
    TraceIs,
    decode_contents,
    encode,
)

__all__ = ["LinkPeer", "Links", "Send"]

_HELLO_EVERY_S = 1.0
_DEAD_S = 5.0  # without a hello
_PACKET_BYTES = 2**20
_ROW_BYTES = 64  # of what is said of one batch, or of it for one broker, beside its name: more than it is
_STATE_BYTES = 2**19  # of announcements that are sent together
_MOST_BROKERS = 1000
_MOST_TOLD = 100  # different refusals that the log has of one connection
_LOOK_EVERY_S = 1.0
_ID_BYTES = 16
_HOLD_S = 1.0  # the answer to a subscribe, for other brokers to confirm
_MOST_HELD = 10_000
_TOLD_AGAIN_S = 600.0  # before the log says once more why there is no link
_START_BYTES = 8  # of a broker's start, at the beginning of its epochs


class Send(NamedTuple):
    """Something for a neighbour."""

    port: Port
    kind: int
    body: msgspec.Struct
    blobs: tuple[Buffer, ...] = ()


class Held(NamedTuple):
    """An answer to somebody who subscribed, while brokers have not confirmed."""

    reply: Reply
    topic: bytes
    until_s: float


class Links:
    """Decides what a broker says over its links; performs nothing."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        settings: Sequence[LinkSettings] = (),
        *,
        start: bytes,
        accepts: str = "any",
        follow: Iterable[bytes] = (),
        pass_by_bytes: int = 0,
        histories: Histories | None = None,
        most_bytes: int = 0,
    ) -> None:
        self._engine = engine
        self.broker = engine.identity.broker
        self.name = name
        self._settings = settings
        self._start = start
        self._accepts = accepts
        self._follow = tuple(follow)
        self._pass_by_bytes = pass_by_bytes
        self._most_bytes = most_bytes  # of a frame that is taken here; 0: any
        self._ends: dict[Port, End] = {}
        self._graph = LinkGraph()
        self._number = 0  # of the last announcement
        self._traces = Traces(self.broker, name, self._graph.announced, self._ask_trace, histories)
        self._is_outdone = False  # by an announcement of this broker that is not of this start
        self._outdone_by: set[bytes] = set()  # of which starts there were such
        self._inbound: dict[int, Inbound] = {}
        self._outbound: dict[int, Outbound] = {}
        self._sessions = 0  # so many were begun
        self._epochs = 0
        self._more = False
        self._hello_at_s = self._look_at_s = -inf
        self._reached: frozenset[int] = frozenset()
        self._out: list[Send] = []
        self._confirms: list[tuple[int, LinkPacket]] = []  # until what they confirm is saved as noted
        self._notices: list[Notice] = []
        self._told: dict[str, float] = {}  # refusals, and when the log said them
        self._forgotten: set[int] = set()  # and not heard of since
        self._asked: dict[tuple[Any, int], bytes] = {}  # topics of subscribes that are not answered
        self._held: list[Held] = []
        self.counters: Counter[str] = Counter()

    @property
    def is_on(self) -> bool:
        """Whether there is anything to do: there is a link, or was, or something may be kept for one that was."""
        return bool(self._ends or self._inbound or self._outbound or self._pass_by_bytes)

    def dial(self, port: Port, settings: LinkSettings) -> None:
        """Have a link to where a broker should be listening."""
        self._ends[port] = End(port, settings, is_dialled=True)

    def take_sends(self) -> list[Send]:
        """Return what is to be sent, in order, and forget it."""
        out, self._out = self._out, []
        return out

    def take_notices(self) -> list[Notice]:
        """Return what the log is to say, and forget it."""
        notices, self._notices = self._notices, []
        return notices

    def _warn(self, text: str) -> None:
        self._notices.append(Notice(logging.WARNING, text))

    def _warn_once(self, text: str, now: Now) -> None:
        """Say something that may come again and again, with whoever calls, in long intervals alone."""
        if now.monotonic_s >= self._told.get(text, -inf) + _TOLD_AGAIN_S:
            self._told.pop(text, None)
            if len(self._told) >= _MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[text] = now.monotonic_s
            self._warn(text)

    # What comes in.

    def heard(self, port: Port, kind: int, body: Any, blob: Buffer | None, now: Now) -> None:
        """Take in what came over a connection."""
        end = self._ends.get(port)
        if kind == Kind.LINK_HELLO:
            if end is None:
                end = self._ends[port] = End(port, LinkSettings(), is_dialled=False)
            self._hear_hello(end, body, now)
        elif end is None or not end.is_up:
            self.counters["link_unasked"] += 1
        elif kind == Kind.LINK_STATE:
            self._hear_state(end, body, now)
        elif kind == Kind.LINK_PACKET:
            self._hear_packet(end, body, memoryview(blob or b""), now)

    def rejected(self, port: Port, text: str, now: Now) -> None:
        """Take in that what is at the other end knows nothing of links."""
        end = self._ends.get(port)
        if end is not None:
            self._refuse(end, f"what listens there does not take links: {text}", now)

    def lost(self, port: Port, now: Now) -> None:
        """Take in that a connection is gone."""
        end = self._ends.get(port)
        if end is not None:
            self._take_down(end, "the connection is gone", now)
            if not end.is_dialled:
                del self._ends[port]

    def on_reply(self, reply: Reply, now: Now) -> None:
        """Take in what the engine answered to one of our own requests."""
        outbound = self._outbound.get(reply.peer.broker)
        done = outbound.on_reply(reply, now) if outbound is not None else None
        if outbound is not None and done is not None:
            self._send_to(outbound.broker, INTEREST_DONE, done)

    # Neighbours.

    def _hear_hello(self, end: End, hello: LinkHello, now: Now) -> None:
        why = self._why_not(end, hello)
        end.heard_s = now.monotonic_s
        if why:
            self._refuse(end, why, now, hello)
            self._take_down(end, "", now)
            if not hello.refused:  # else the two would refuse each other without end
                self._send_hello(end, refused=why)
            return
        if hello.refused:
            self._refuse(end, f"{hello.name} refuses: {hello.refused[:1000]}", now, hello)
            self._take_down(end, "", now)
            return
        if end.hello is not None and end.hello.start != hello.start:
            self._take_down(end, "it was started again", now)
        settings = find_settings(hello, end, self._settings, self._accepts)
        assert isinstance(settings, LinkSettings)
        end.hello, end.settings, end.refused = hello, settings, ""
        if hello.heard != self._start:
            self._send_hello(end)
        elif not end.is_up:
            end.is_up, end.since_s, end.why_down = True, now.monotonic_s, ""
            end.seen_refusals.clear()
            self._notices.append(Notice(logging.INFO, f"link up: {end.shown}, {end.where}"))
            self._announce(now)
            self._send_hello(end)
            self._send_state(end, self._known_to(end))
        elif hello.digest != self._digest():
            self._send_state(end, self._known_to(end))

    def _why_not(self, end: End, hello: LinkHello) -> str:
        settings = find_settings(hello, end, self._settings, self._accepts)
        if isinstance(settings, str):
            return settings
        if hello.broker == self.broker:
            if hello.start == self._start:
                return "the link leads back to this broker itself: take its address out of `links`"
            return (
                f"both brokers have the id {self.broker:08x}: one of them runs on a copy of the other's store; stop"
                " that one, and give it a data folder of its own"
            )
        if hello.name == self.name:
            return f"both brokers are called {self.name}: give one of them another name (--name)"
        known = self._graph.announced.get(hello.broker)
        if known is not None and known.store != hello.store and self._is_near(hello.broker):
            return (
                f"there are two brokers of the id {hello.broker:08x}, on different stores; stop one of them, and give"
                " it a new data folder"
            )
        for other in self._graph.announced.values():
            if other.name == hello.name and other.broker != hello.broker and self._is_near(other.broker):
                return (
                    f"another broker ({other.broker:08x}) that can be reached is called {hello.name}, too: give one of"
                    " them another name (--name)"
                )
        return ""

    def _is_near(self, broker: int) -> bool:
        return broker in self._reached or any(end.is_up and end.broker == broker for end in self._ends.values())

    def _refuse(self, end: End, why: str, now: Now, hello: LinkHello | None = None) -> None:
        self.counters["links_refused"] += 1
        end.refused = why
        who = f"{hello.name!r:.80}, {end.where}" if hello is not None else end.shown
        self._warn_once(f"no link with {who}: {why}", now)

    def _tell_once(self, end: End, what: str, text: str) -> None:
        """Have the log say something of a connection, unless it said so before, or far too much already."""
        if what not in end.seen_refusals and len(end.seen_refusals) < _MOST_TOLD:
            end.seen_refusals.add(what)
            self._warn(text)

    def _take_down(self, end: End, why: str, now: Now) -> None:
        if end.is_up:
            end.is_up, end.since_s, end.why_down = False, now.monotonic_s, why
            if end.broker in self._up():
                return  # by another connection
            if why:
                self._warn(
                    f"link down: {end.shown}, {end.where}: {why}. It is tried again and again; what is wanted there is"
                    " kept here until then (`clarion links` shows it, `clarion links forget` ends that)"
                )
            self._announce(now)

    def _send_hello(self, end: End, refused: str = "") -> None:
        identity = self._engine.identity
        heard = end.hello.start if end.hello is not None and not refused else b""
        hello = LinkHello(
            OLDEST_LINK_VERSION, LINK_VERSION, self.broker, identity.store_uuid, self.name, self._start, heard,
            self._digest(), refused, self._most_bytes,
        )  # fmt: skip
        self._out.append(Send(end.port, Kind.LINK_HELLO, hello))

    def _up(self) -> dict[int, End]:
        """Return the neighbours, by id, each by one of its connections."""
        return {end.broker: end for end in self._ends.values() if end.is_up}

    # The graph.

    def _announce(self, now: Now) -> None:
        self._number = max(self._number + 1, now.unix_us)
        own = Announcement(
            self.broker, self.name, self._engine.identity.store_uuid, self._number, tuple(sorted(self._up())),
            self._start,
        )  # fmt: skip
        self._graph.hear(own)
        self._flood([own], None)
        self._graph_changed(now)

    def _hear_state(self, end: End, state: LinkState, now: Now) -> None:
        news = []
        for each in state.announcements:
            told = Announcement(*each)
            known = self._graph.announced.get(told.broker)
            if not is_sound(told):
                self._forged(end, "an announcement that no broker makes")
            elif told.broker == self.broker:
                self._hear_of_itself(end, told)
            elif known is not None and known.store != told.store and told.broker in self._reached:
                self._conflict(end, f"there are two brokers of the id {told.broker:08x}, on different stores")
            elif known is None and not self._has_room():
                self.counters["link_too_many_brokers"] += 1
                self._tell_once(end, "brokers", f"more than {_MOST_BROKERS} brokers are linked: others are not heard")
            elif self._graph.hear(told):
                news.append(told)
        if news:
            self._flood(news, end)
            self._graph_changed(now)
            for told in news:
                self._look_at_name(end, told)

    def _hear_of_itself(self, end: End, told: Announcement) -> None:
        """Take in what is told of this broker: by itself, before it was started again, or by another that is not it."""
        if told.store != self._engine.identity.store_uuid:
            self._conflict(end, f"another broker has the id of this one, {self.broker:08x}, on another store")
        elif told.number > self._number:  # of a time when the clock was ahead
            self._number = told.number
            self._is_outdone = True
            if told.start in self._outdone_by:  # what is over does not answer
                self._conflict(end, "another broker runs on a copy of this one's store, and has its id: stop it")
            elif len(self._outdone_by) < _MOST_TOLD:
                self._outdone_by.add(told.start)

    def _look_at_name(self, end: End, told: Announcement) -> None:
        """Tell of brokers that are called alike: they are told apart by their ids, but not by who reads their names."""
        if told.broker not in self._reached:
            return
        for other in (self.broker, *self._reached):
            name = self._graph.announced[other].name
            if name == told.name and other != told.broker:
                self._conflict(end, f"two brokers, {other:08x} and {told.broker:08x}, are called {name}: rename one")

    def _conflict(self, end: End, what: str) -> None:
        self.counters["link_id_conflicts"] += 1
        self._tell_once(end, what, f"heard from {end.shown}: {what}")

    def _has_room(self) -> bool:
        """Return whether one more broker may be known; those that cannot be reached make room for it."""
        announced = self._graph.announced
        if len(announced) < _MOST_BROKERS:
            return True
        away = announced.keys() - self._reached - {self.broker}
        for broker in away:
            self._graph.forget(broker)
        return bool(away)

    def _known_to(self, end: End) -> list[Announcement]:
        """Return what a neighbour is told: of itself, in case it has forgotten, and of all that can be reached here."""
        announced = self._graph.announced
        return [announced[broker] for broker in {self.broker, end.broker, *self._reached} if broker in announced]

    def _flood(self, news: list[Announcement], but: End | None) -> None:
        for end in self._up().values():
            if but is None or end.broker != but.broker:
                self._send_state(end, news)

    def _send_state(self, end: End, announced: Iterable[Announcement]) -> None:
        some: list[Announcement] = []
        size = 0
        for told in announced:
            its_size = _ROW_BYTES + len(told.name.encode()) + 9 * len(told.linked) + len(told.store) + len(told.start)
            if some and size + its_size > _STATE_BYTES:
                self._out.append(Send(end.port, Kind.LINK_STATE, LinkState(tuple(some))))
                some, size = [], 0
            some.append(told)
            size += its_size
        if some:
            self._out.append(Send(end.port, Kind.LINK_STATE, LinkState(tuple(some))))

    def _digest(self) -> int:
        announced = self._graph.announced
        numbers = sorted(
            (broker, announced[broker].number) for broker in {self.broker, *self._reached} & announced.keys()
        )
        return xxh3_64_intdigest(encode(numbers))

    def _graph_changed(self, now: Now) -> None:
        before, self._reached = self._reached, frozenset(self._graph.reached_from(self.broker))
        for broker in self._reached:
            inbound, start = self._inbound.get(broker), self._graph.announced[broker].start
            if inbound is None:
                inbound = self._inbound[broker] = Inbound(self._engine, broker, self._follow)
            if broker not in before or inbound.start != start:
                inbound.begin(self._next_epoch(), self._engine.interest.wanted, start)
        for broker in before - self._reached:
            if broker in self._outbound:
                self._outbound[broker].stop()
        for outbound in self._outbound.values():
            outbound.route_changed(now)

    def _next_epoch(self) -> bytes:
        self._epochs += 1
        return self._start[:_START_BYTES] + self._epochs.to_bytes(8, "big")

    # Packets.

    def _send_to(self, broker: int, what: int, contents: msgspec.Struct) -> None:
        packet = LinkPacket(self.broker, (broker,), (self.broker,), what, encode(contents))
        for neighbour in self._graph.split(self.broker, self.broker, [broker]):
            end = self._up().get(neighbour)
            if end is not None:
                self._out.append(Send(end.port, Kind.LINK_PACKET, packet, (b"",)))

    def _send_confirms(self) -> None:
        """Send confirmations on, by the way that the batches came, once it is saved at this broker that they did: what
        is confirmed to its origin can be traced, though any broker on the way may crash."""
        tracks = self._engine.tracks
        saved = tracks.saved_round if tracks.tracker is not None else tracks.round
        confirms, self._confirms = self._confirms, []
        for number, packet in confirms:
            if number > saved:
                self._confirms.append((number, packet))
                continue
            route = packet.route or packet.to
            end = self._up().get(route[0])
            if end is not None:  # else it is lost, and so the batches come again by another way
                sent = LinkPacket(
                    packet.source, packet.to, (*packet.hops, self.broker), CONFIRM, packet.contents, route[1:]
                )
                self._out.append(Send(end.port, Kind.LINK_PACKET, sent, (b"",)))

    @property
    def waits_for_histories(self) -> bool:
        """Whether something is held until what is noted is saved."""
        return bool(self._confirms) and self._engine.tracks.tracker is not None

    def _hear_packet(self, end: End, packet: LinkPacket, blob: memoryview, now: Now) -> None:
        source, hops = packet.source, packet.hops
        if source == self.broker or self.broker in hops or len(hops) > MAX_HOPS:
            self.counters["link_loops"] += 1
            return
        if not hops or hops[0] != source or hops[-1] != end.broker:
            self._forged(end, f"a packet of {source:08x} says that it came by others than it did")
            return
        if packet.what == CONFIRM:
            if self.broker in packet.to:
                self._take_packet(packet, now)
            elif packet.route and len(self._confirms) < _MOST_HELD:
                self._confirms.append((self._engine.tracks.round, packet))
            return
        if self._graph.parent(source, self.broker) != end.broker:  # routes change, and this is of before
            self.counters["link_off_route"] += 1
            return
        if packet.what == DATA:
            self._hear_data(end, packet, blob, now)
            return
        if self.broker in packet.to:
            self._take_packet(packet, now)
        others = [broker for broker in packet.to if broker != self.broker]
        for neighbour, to in self._graph.split(source, self.broker, others).items():
            following = self._up().get(neighbour)
            if following is None:
                continue
            if packet.what == INTEREST and not self._accepts_all(following, to):
                continue
            carried = LinkPacket(source, tuple(to), (*hops, self.broker), packet.what, packet.contents)
            self._out.append(Send(following.port, Kind.LINK_PACKET, carried, (b"",)))

    def _accepts_all(self, end: End, origins: Iterable[int]) -> bool:
        """Return whether what is wanted of brokers may come here by a link, and so may be asked for."""
        for origin in origins:
            told = self._graph.announced.get(origin)
            if told is None or not end.settings.accepts(origin, told.name):
                self.counters["link_origins_refused"] += 1
                return False
        return True

    def _take_packet(self, packet: LinkPacket, now: Now) -> None:
        contents, source = decode_contents(packet), packet.source
        if contents is None:
            self.counters["link_unreadable"] += 1
        elif isinstance(contents, Interest) and contents.epoch[:_START_BYTES] != self._start_of(source):
            self.counters["link_outdated"] += 1  # it is of before it was started again, or its start is not known yet
        elif isinstance(contents, Interest):
            outbound = self._outbound.get(source)
            if outbound is None:
                outbound = self._outbound[source] = Outbound(self._engine, source, 0)
            done = outbound.take_interest(contents, now)
            if done is not None:
                self._send_to(source, INTEREST_DONE, done)
        elif isinstance(contents, InterestDone) and source in self._inbound:
            if self._inbound[source].take_done(contents):
                inbound = self._inbound[source]
                inbound.begin(self._next_epoch(), self._engine.interest.wanted, inbound.start)
        elif isinstance(contents, LinkConfirm) and source in self._outbound:
            self._outbound[source].take_confirm(contents, now)
        elif isinstance(contents, AskTrace) and len(contents.message) == _ID_BYTES:
            self._send_to(source, TRACE_IS, self._traces.answer(contents))
        elif isinstance(contents, TraceIs):
            self._traces.take(contents, source, self._reached, now)

    def _start_of(self, broker: int) -> bytes:
        return self._graph.announced[broker].start[:_START_BYTES]

    def _forged(self, end: End, what: str) -> None:
        self.counters["link_forged"] += 1
        text = f"refused from {end.shown}: {what}. If this goes on, take that broker out of `links`"
        self._tell_once(end, what, text)

    # Batches: sent, carried, taken.

    def _hear_data(self, end: End, packet: LinkPacket, blob: memoryview, now: Now) -> None:
        source, data = packet.source, decode_contents(packet)
        told = self._graph.announced[source]
        if not end.settings.accepts(source, told.name):
            self.counters["link_origins_refused"] += 1
            what = (
                f"messages of {told.name} ({source:08x}) may not come by this link (add it to `origins`, or leave it)"
            )
            self._tell_once(end, what, f"refused from {end.shown}: {what}")
            return
        if not isinstance(data, LinkData):
            self.counters["link_unreadable"] += 1
            return
        if not are_sound(data, len(blob)):
            self._forged(end, f"batches of {told.name} ({source:08x}) that are not what is said of them")
            return
        if end.settings.topics_in != ALL_TOPICS:
            data, raw = self._keep_out(data, blob, end.settings.topics_in)
            blob = memoryview(raw)
        self._note_came(data, blob, end.broker)
        for part in data.parts:
            if part.to == self.broker and source in self._inbound:
                self._inbound[source].way_back = packet.hops[::-1]
                self._inbound[source].take(data, part, blob, told.store, now)
        self._carry(source, packet.hops, data, blob)

    def _note_came(self, data: LinkData, blob: memoryview, via: int) -> None:
        at = 0
        for *_, size, _ttl_ms in data.batches:
            if size >= HEADER_BYTES:
                self._engine.tracks.came(blob[at : at + size], via)
            at += size

    def _carry(self, source: int, hops: tuple[int, ...], data: LinkData, blob: memoryview) -> None:
        """Send batches on, each to the neighbours that it goes by from here."""
        others = [part.to for part in data.parts if part.to != self.broker]
        for neighbour, to in self._graph.split(source, self.broker, others).items():
            end = self._up().get(neighbour)
            if end is None:
                continue
            some, raw = part_for(data, blob, to)
            if end.settings.topics_out != ALL_TOPICS:
                some, raw = self._keep_out(some, memoryview(raw), end.settings.topics_out)
            if end.hello is not None and 0 < end.hello.most_bytes < len(raw):
                some, raw = self._leave_out(end, some, memoryview(raw), end.hello.most_bytes)
            packet = LinkPacket(source, tuple(to), (*hops, self.broker), DATA, encode(some))
            self._out.append(Send(end.port, Kind.LINK_PACKET, packet, (raw,)))
            self.counters["link_packets_carried" if hops else "link_packets_sent"] += 1

    def _keep_out(self, data: LinkData, blob: memoryview, patterns: tuple[bytes, ...]) -> tuple[LinkData, bytes]:
        left = without_bytes(data, blob, lambda name, _size: not is_among(name, patterns), self.broker)
        self.counters["link_kept_out"] += count_without(left[0]) - count_without(data)
        return left

    def _leave_out(self, end: End, data: LinkData, blob: memoryview, most: int) -> tuple[LinkData, bytes]:
        """Leave out batches that a neighbour's socket would not take, or the connection broke at each try."""
        left = without_bytes(data, blob, lambda _name, size: size > most, self.broker)
        self.counters["link_left_out"] += count_without(left[0]) - count_without(data)
        self._tell_once(
            end, "large", f"batches of more than {most} bytes do not cross the link with {end.shown}, and are left out:"
            " have max_batch_bytes alike on linked brokers",
        )  # fmt: skip
        return left

    def _send_batches(self, found: list[tuple[Outbound, list[LinkBatch]]], now: Now) -> None:
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
        self._carry(self.broker, (), data, memoryview(b"".join(blobs)))

    # On the loop's clock, and after every turn of it.

    def turn(self, now: Now) -> None:
        """Do what is due: say hello, spread what is wanted, send what is there, confirm what came."""
        if now.monotonic_s >= self._hello_at_s:
            self._hello_at_s = now.monotonic_s + _HELLO_EVERY_S
            for inbound in self._inbound.values():
                inbound.meter.look(inbound.messages, now.monotonic_s)
            for outbound in self._outbound.values():
                outbound.meter.look(outbound.messages, now.monotonic_s)
            for end in list(self._ends.values()):
                if end.is_up and now.monotonic_s > end.heard_s + _DEAD_S:
                    self._take_down(end, f"nothing was heard for {_DEAD_S:g} s", now)
                if not end.is_dialled and not end.is_up and now.monotonic_s > end.heard_s + _DEAD_S:
                    del self._ends[end.port]  # it calls again, if it is there
                else:
                    self._send_hello(end)
            if self._is_outdone:  # not at once: a copy of this broker would be answered by it without end
                self._is_outdone = False
                self._announce(now)
        self._traces.tick(self._reached, now)
        if self._pass_by_bytes and now.monotonic_s >= self._look_at_s:
            self._look_at_s = now.monotonic_s + _LOOK_EVERY_S
            self._pass_by(now)
        if not self.is_on:
            return
        interest = self._engine.interest
        interest.is_on = True
        self._more = interest.look()
        if interest.news and not self._more:  # else a topic may turn out to be wanted that a pattern covered before
            news = interest.take_news()
            for inbound in self._inbound.values():
                inbound.take_news(news)
        for origin, topic, position in self._engine.take_foreign_done():
            if origin in self._inbound:
                self._inbound[origin].on_disk(topic, position)
        for broker in self._reached & self._inbound.keys():
            inbound = self._inbound[broker]
            confirm = inbound.take_confirm()
            if confirm is not None:
                packet = LinkPacket(self.broker, (broker,), (), CONFIRM, encode(confirm), inbound.way_back)
                self._confirms.append((self._engine.tracks.round, packet))
            if self._may_want(broker):
                part = inbound.next_part(now)
                if part is not None:
                    self._send_to(broker, INTEREST, part)
        self._send_confirms()
        lost = self._engine.link_reads.take_lost()
        for outbound in self._outbound.values():
            outbound.subscribe_again([name for who, name in lost if who == outbound.name], now)
        self._read_all(now)

    def _may_want(self, broker: int) -> bool:
        """Return whether messages of a broker may come by the link that they would come by."""
        end = self._up().get(self._graph.parent(broker, self.broker) or 0)
        return end is not None and end.settings.accepts(broker, self._graph.announced[broker].name)

    def _read_all(self, now: Now) -> None:
        found = []
        for broker in sorted(self._reached & self._outbound.keys()):
            outbound = self._outbound[broker]
            some = outbound.read(first_session(self._start) + self._sessions + 1, now)
            if outbound.session == first_session(self._start) + self._sessions + 1:
                self._sessions += 1
            if some:
                found.append((outbound, some))
        if found:
            self._send_batches(found, now)

    def _pass_by(self, now: Now) -> None:
        names = {subscriber_name(told.broker): told.name for told in self._graph.announced.values()}
        for topic, name, start, stop in self._engine.link_reads.pass_by(self._pass_by_bytes, now):
            self.counters["link_passed_by"] += stop - start
            who = names.get(name, to_text(name.removeprefix(LINK)))
            self._warn(
                f"{stop - start} messages of {to_text(topic.name)} (offsets {start} to {stop - 1}) are given up for"
                f" {who}, which has not confirmed them, as more than {self._pass_by_bytes} bytes wait: raise"
                " link_max_bytes, or see why the link is down or slow (`clarion links`)"
            )

    def next_deadline_s(self) -> float:
        """Return when `turn` has something to do."""
        if not self.is_on:
            return inf
        if not self._ends and not self._inbound and not self._outbound:
            return self._look_at_s
        times = [self._hello_at_s, *(held.until_s for held in self._held)]
        if (deadline_s := self._traces.next_deadline_s()) is not None:
            times.append(deadline_s)
        for broker in self._reached:
            inbound, outbound = self._inbound.get(broker), self._outbound.get(broker)
            deadlines_s = (
                inbound.next_deadline_s() if inbound is not None and self._may_want(broker) else None,
                outbound.next_deadline_s() if outbound is not None else None,
            )
            times += [deadline_s for deadline_s in deadlines_s if deadline_s is not None]
        return min(times)

    @property
    def has_more(self) -> bool:
        """Whether `turn` is to be called again at once."""
        return bool(self._ends) and (
            self._more
            or self._engine.foreign_is_done
            or any(self._outbound[broker].has_more() for broker in self._reached & self._outbound.keys())
        )

    def forget(self, name: str, now: Now) -> str:
        """Keep nothing any more for a broker that will not come back; return why not, or ""."""
        for told in self._graph.announced.values():
            if told.broker in self._reached and name in (told.name, f"{told.broker:08x}"):
                return f"{name} is linked with this broker right now; stop it first"
        ids = {told.broker for told in self._graph.announced.values() if name in (told.name, f"{told.broker:08x}")}
        if len(name) == 8 and not ids:  # it may not have been heard of since this broker was started
            try:
                ids.add(int(name, 16))
            except ValueError:
                pass
        subscribed = [(broker, topic) for broker in ids for topic in self._subscribed(broker)]
        if not subscribed:
            return f"nothing is kept for a broker called {name}; `clarion links` lists those that are known"
        self._forgotten |= ids
        for broker in ids:
            self._outbound.pop(broker, None)
            self._engine.link_reads.keep(subscriber_name(broker), set())
        for broker, topic in subscribed:
            body = bodies.Unsubscribe(topic, subscriber_name(broker))
            self._engine.handle(LinkPeer(broker), Request(Kind.UNSUBSCRIBE, 0, body, None), now)
        return ""

    def _subscribed(self, broker: int) -> list[bytes]:
        return self._engine.link_reads.subscribed(subscriber_name(broker))

    # Where messages went.

    def trace(self, message: MessageId, done: Callable[[Traced], None], now: Now) -> bool:
        """Look for the path of a message, and tell it when it is known; return whether there is room for that."""
        return self._traces.begin(message, done, self._reached, now)

    def _ask_trace(self, broker: int, asked: AskTrace) -> None:
        self._send_to(broker, ASK_TRACE, asked)

    # What is told of it.

    def status(self, now: Now) -> dict[str, Any]:
        """Return the state of all links, and of all brokers that were heard of."""
        return {
            "broker": f"{self.broker:08x}",
            "name": self.name,
            "links": [self._end_status(end, now) for end in self._ends.values()],
            "brokers": [self._broker_status(broker, now) for broker in self._known()],
            "counters": dict(self.counters),
        }

    def _known(self) -> list[int]:
        """Return the brokers that are, or were, reached, or that something is kept for since an earlier start."""
        kept = {int(name.removeprefix(LINK), 16) for name in self._engine.link_reads.subscribers()}
        heard = self._graph.announced.keys() - (self._forgotten - self._reached)
        return sorted((heard | kept) - {self.broker}, key=lambda broker: (self._name_of(broker), broker))

    def _name_of(self, broker: int) -> str:
        told = self._graph.announced.get(broker)
        return told.name if told is not None else ""

    def _end_status(self, end: End, now: Now) -> dict[str, Any]:
        state = "up" if end.is_up else "refused" if end.refused else "down"
        return {
            "url": end.settings.url if end.is_dialled else "",
            "name": end.hello.name if end.hello is not None else end.settings.name,
            "broker": f"{end.broker:08x}" if end.broker else "",
            "state": state,
            "reason": "" if end.is_up else end.refused or end.why_down,
            "for_s": round(now.monotonic_s - end.since_s, 1) if end.since_s is not None else None,
        }

    def _broker_status(self, broker: int, now: Now) -> dict[str, Any]:
        inbound, outbound = self._inbound.get(broker), self._outbound.get(broker)
        topics, messages = self._engine.link_reads.lag(subscriber_name(broker))
        first = self._first_hop(broker) if broker in self._reached else 0
        return {
            "name": self._name_of(broker),
            "broker": f"{broker:08x}",
            "reachable": broker in self._reached,
            "via": self._name_of(first),
            "confirmed": (
                inbound is not None
                and inbound.is_confirmed
                and broker in self._reached
                and self._engine.interest.is_settled
            ),
            "refused": {to_text(name): why for name, why in inbound.refused.items()} if inbound is not None else {},
            "received_messages": inbound.messages if inbound is not None else 0,
            "received_per_s": inbound.meter.per_s(inbound.messages, now.monotonic_s) if inbound is not None else 0.0,
            "gone_messages": inbound.gone if inbound is not None else 0,
            "kept_out_messages": inbound.kept_out if inbound is not None else 0,
            "sent_messages": outbound.messages if outbound is not None else 0,
            "sent_per_s": outbound.meter.per_s(outbound.messages, now.monotonic_s) if outbound is not None else 0.0,
            "lag_topics": topics,
            "lag_messages": messages,
        }

    def _first_hop(self, broker: int) -> int:
        return next(iter(self._graph.split(self.broker, self.broker, [broker])), 0)

    # Who subscribes here is told which brokers have confirmed it.

    def asked(self, peer: Any, request_id: int, topic: bytes) -> None:
        """Note that somebody subscribes."""
        if self.is_on and len(self._asked) < _MOST_HELD:
            self._asked[peer, request_id] = topic

    @property
    def is_holding(self) -> bool:
        """Whether answers wait."""
        return bool(self._held)

    def hold(self, reply: Reply, now: Now) -> bool:
        """Return whether an answer is to wait: whoever subscribed is told who has confirmed it, by `take_held`."""
        topic = self._asked.pop((reply.peer, reply.request_id), None)
        if topic is None or not isinstance(reply.body, bodies.Subscribed):
            return False
        self._held.append(Held(reply, topic, now.monotonic_s + _HOLD_S))
        return True

    def take_held(self, now: Now, *, all_of_them: bool = False) -> list[Reply]:
        """Return the answers that need not wait any more, with what other brokers have confirmed."""
        if not self._held:
            return []
        done, waiting = [], []
        for held in self._held:
            if all_of_them or now.monotonic_s >= held.until_s or self._is_answered(held.topic):
                done.append(held.reply._replace(body=self._with_origins(held)))
            else:
                waiting.append(held)
        self._held = waiting
        return done

    def _is_answered(self, topic: bytes) -> bool:
        return all(
            self._inbound[broker].is_answered(topic)
            for broker in self._reached & self._inbound.keys()
            if self._may_want(broker)
        )

    def _with_origins(self, held: Held) -> bodies.Subscribed:
        origins, unconfirmed = [], []
        for broker in self._known():
            if broker in self._reached and not self._may_want(broker):
                continue  # nothing of it may come here, by the settings
            inbound, name = self._inbound.get(broker), self._name_of(broker) or f"{broker:08x}"
            offset = inbound.confirmed_from(held.topic) if inbound is not None else None
            if offset is not None:
                origins.append((name, offset))
            else:
                unconfirmed.append(name)
        unconfirmed += [end.shown for end in self._ends.values() if end.is_dialled and end.hello is None]
        body = held.reply.body
        assert isinstance(body, bodies.Subscribed)
        return bodies.Subscribed(body.cursor, body.options, body.count, tuple(origins), tuple(unconfirmed))
