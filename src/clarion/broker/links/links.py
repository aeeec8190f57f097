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
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from clarion.broker.engine import Engine, Now, Reply
from clarion.broker.engine.notices import Notice
from clarion.broker.links.carrier import Carrier
from clarion.broker.links.held_answers import HeldAnswers, Origins
from clarion.broker.links.inbound import Inbound, first_session
from clarion.broker.links.neighbourhood import HELLO_EVERY_S, Neighbourhood, Send
from clarion.broker.links.neighbours import End, Port
from clarion.broker.links.outbound import LinkPeer, Outbound, subscriber_name
from clarion.broker.links.path_search import Found, Histories, Traces
from clarion.broker.links.policy import (
    ALL_TOPICS,
    LinkSettings,
    are_sound,
)
from clarion.model.ids import MessageId
from clarion.model.names import LINK, overlap, to_text
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind, Request
from clarion.wire.link_bodies import (
    ASK_TRACE,
    CONFIRM,
    DATA,
    INTEREST,
    INTEREST_DONE,
    MAX_HOPS,
    TRACE_IS,
    AskTrace,
    Interest,
    InterestDone,
    LinkConfirm,
    LinkData,
    LinkPacket,
    TraceIs,
    decode_contents,
)

__all__ = ["LinkPeer", "Links", "Send"]

_LOOK_EVERY_S = 1.0
_REFUSED = "the link is refused (clarion links says why)"
_ID_BYTES = 16
_START_BYTES = 8  # of a broker's start, at the beginning of its epochs
_NOBODY = LinkPeer(0)  # who ends what is kept for a broker that is forgotten


class _Forgetting:
    """Who had a broker forgotten, and which subscriptions of it are not ended yet."""

    __slots__ = ("asker", "asks", "why_not")

    def __init__(self, asker: Any, asks: set[int]) -> None:
        self.asker = asker
        self.asks = asks
        self.why_not = ""


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
        self._start = start
        self._follow = tuple(follow)
        self._pass_by_bytes = pass_by_bytes
        self._near = Neighbourhood(engine.identity, name, settings, start, accepts, most_bytes)
        self._carrier = Carrier(engine, self._near)
        self._traces = Traces(self.broker, name, self._near.graph.announced, histories)
        self._answers = HeldAnswers()
        self._inbound: dict[int, Inbound] = {}
        self._outbound: dict[int, Outbound] = {}
        self._changes = 0  # of the graph that were taken in …
        self._reached: frozenset[int] = frozenset()  # … and who could be reached then
        self._sessions = 0  # so many were begun
        self._epochs = 0
        self._more = False
        self._hello_at_s = self._look_at_s = -inf
        self._forgotten: set[int] = set()  # and not heard of since
        self._forgetting: list[_Forgetting] = []
        self._ends_asked = 0  # subscriptions that were to be ended
        if self._follow and not settings:
            self._near.warn(
                "`follow` is set, and there are no links: nothing comes here, and nothing can be put, until this broker"
                " is linked with one that has those topics (clarion up --link URL)"
            )
        if accepts == "listed" and not any(each.name for each in settings):
            self._near.warn(
                "`accept_links` is listed, and no table [[links]] has a name: no broker may call this one. Name those"
                " that may, or set it to none if that is meant"
            )

    @property
    def counters(self) -> Counter[str]:
        """What was counted since the start."""
        return self._near.counters

    @property
    def is_on(self) -> bool:
        """Whether there is anything to do: there is a link, or was, or something may be kept for one that was."""
        near = self._near
        return bool(near.ends or self._inbound or self._outbound or self._pass_by_bytes or self._forgetting)

    def dial(self, port: Port, settings: LinkSettings) -> None:
        """Have a link to where a broker should be listening."""
        self._near.ends[port] = End(port, settings, is_dialled=True)

    def is_up(self, port: Port) -> bool:
        """Return whether there is a link by a connection."""
        end = self._near.ends.get(port)
        return end is not None and end.is_up

    def take_sends(self) -> list[Send]:
        """Return what is to be sent, in order, and forget it."""
        out, self._near.out = self._near.out, []
        return out

    def take_notices(self) -> list[Notice]:
        """Return what the log is to say, and forget it."""
        notices, self._near.notices = self._near.notices, []
        if self._traces.trouble:
            notices.append(Notice(logging.ERROR, self._traces.trouble))
            self._traces.trouble = ""
        return notices

    # What comes in.

    def heard(self, port: Port, kind: int, body: Any, blob: Buffer | None, now: Now) -> None:
        """Take in what came over a connection."""
        end = self._near.ends.get(port)
        self._near.note_sign(port, now)
        if kind == Kind.LINK_HELLO:
            if end is None:
                end = self._near.ends[port] = End(port, LinkSettings(), is_dialled=False)
            self._near.hear_hello(end, body, now)
        elif end is None or not end.is_up:
            self._near.counters["link_unasked"] += 1
        elif kind == Kind.LINK_STATE:
            self._near.hear_state(end, body, now)
        elif kind == Kind.LINK_PACKET:
            self._hear_packet(end, body, memoryview(blob or b""), now)
        self._follow_graph(now)

    def moves(self, port: Port, has_come: bool, left_s: float, now: Now) -> None:
        """Take in whether bytes come over a connection, and that all has left by it that was sent before `left_s`."""
        if has_come:
            self._near.note_sign(port, now)
        for broker in self._carrier.brokers_beyond(port, self._outbound):
            self._outbound[broker].has_left(left_s, now)

    def was_taken(self, port: Port) -> None:
        """Take in that something listens where a broker should be."""
        end = self._near.ends.get(port)
        if end is not None:
            end.is_taken = True

    def rejected(self, port: Port, text: str, now: Now) -> None:
        """Take in that what is at the other end knows nothing of links."""
        end = self._near.ends.get(port)
        if end is not None:
            self._near.refuse(end, f"what listens there does not take links: {text}", now)

    def lost(self, port: Port, now: Now) -> None:
        """Take in that a connection is gone."""
        self._near.lost(port, now)
        self._follow_graph(now)

    def on_reply(self, reply: Reply, now: Now) -> None:
        """Take in what the engine answered to one of our own requests."""
        if reply.peer == _NOBODY:
            self._take_ended(reply)
            return
        outbound = self._outbound.get(reply.peer.broker)
        done = outbound.on_reply(reply, now) if outbound is not None else None
        if outbound is not None and done is not None:
            self._carrier.send_to(outbound.broker, INTEREST_DONE, done)

    def _follow_graph(self, now: Now) -> None:
        """Take in that routes have changed: ask whom there is a way to now for what is wanted, and leave the others."""
        if self._changes == self._near.changes:
            return
        self._changes = self._near.changes
        before, self._reached = self._reached, self._near.reached
        self._forgotten -= self._reached
        for broker in self._reached:
            inbound, start = self._inbound.get(broker), self._near.graph.announced[broker].start
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

    @property
    def waits_for_histories(self) -> bool:
        """Whether something is held until what is noted is saved."""
        return self._carrier.waits_for_histories

    def _hear_packet(self, end: End, packet: LinkPacket, blob: memoryview, now: Now) -> None:
        source, hops = packet.source, packet.hops
        if source == self.broker or self.broker in hops or len(hops) > MAX_HOPS:
            self._near.counters["link_loops"] += 1
            return
        if not hops or hops[0] != source or hops[-1] != end.broker:
            self._near.forged(end, f"a packet of {source:08x} says that it came by others than it did")
            return
        if packet.what == CONFIRM:
            if self.broker in packet.to:
                self._take_packet(packet, now)
            else:
                self._carrier.carry_confirm(packet)
            return
        if self._near.graph.parent(source, self.broker) != end.broker:  # routes change, and this is of before
            self._near.counters["link_off_route"] += 1
            return
        if packet.what == DATA:
            self._hear_data(end, packet, blob, now)
            return
        if self.broker in packet.to:
            self._take_packet(packet, now)
        others = [broker for broker in packet.to if broker != self.broker]
        for neighbour, to in self._near.graph.split(source, self.broker, others).items():
            following = self._near.up().get(neighbour)
            if following is None:
                continue
            if packet.what == INTEREST and not self._accepts_all(following, to):
                self._near.counters["link_origins_refused"] += 1
                continue
            carried = LinkPacket(source, tuple(to), (*hops, self.broker), packet.what, packet.contents)
            self._near.out.append(Send(following.port, Kind.LINK_PACKET, carried, (b"",)))

    def _accepts_all(self, end: End, origins: Iterable[int]) -> bool:
        """Return whether what is wanted of brokers may come here by a link, and so may be asked for."""
        for origin in origins:
            told = self._near.graph.announced.get(origin)
            if told is None or not end.settings.accepts(origin, told.name):
                return False
        return True

    def _take_packet(self, packet: LinkPacket, now: Now) -> None:
        contents, source = decode_contents(packet), packet.source
        if contents is None:
            self._near.counters["link_unreadable"] += 1
        elif isinstance(contents, Interest) and contents.epoch[:_START_BYTES] != self._start_of(source):
            self._near.counters["link_outdated"] += (
                1  # it is of before it was started again, or its start is not known yet
            )
        elif isinstance(contents, Interest):
            outbound = self._outbound.get(source)
            if outbound is None:
                outbound = self._outbound[source] = Outbound(self._engine, source, 0)
            done = outbound.take_interest(contents, now)
            if done is not None:
                self._carrier.send_to(source, INTEREST_DONE, done)
        elif isinstance(contents, InterestDone) and source in self._inbound:
            if self._inbound[source].take_done(contents):
                inbound = self._inbound[source]
                inbound.begin(self._next_epoch(), self._engine.interest.wanted, inbound.start)
        elif isinstance(contents, LinkConfirm) and source in self._outbound:
            self._outbound[source].take_confirm(contents, now)
        elif isinstance(contents, AskTrace) and len(contents.message) == _ID_BYTES:
            self._carrier.send_to(source, TRACE_IS, self._traces.answer(contents, self._not_reached(), now))
        elif isinstance(contents, TraceIs):
            self._traces.take(contents, source, self._reached, now)
            self._ask_for_paths()

    def _start_of(self, broker: int) -> bytes:
        return self._near.graph.announced[broker].start[:_START_BYTES]

    # Batches: sent, carried, taken.

    def _hear_data(self, end: End, packet: LinkPacket, blob: memoryview, now: Now) -> None:
        source, data = packet.source, decode_contents(packet)
        told = self._near.graph.announced[source]
        if not end.settings.accepts(source, told.name):
            self._near.counters["link_origins_refused"] += 1
            what = (
                f"messages of {told.name} ({source:08x}) may not come by this link (add it to `origins`, or leave it)"
            )
            self._near.tell_once(end, what, f"refused from {end.shown}: {what}")
            return
        if not isinstance(data, LinkData):
            self._near.counters["link_unreadable"] += 1
            return
        if not are_sound(data, blob, source):
            self._near.forged(end, f"batches of {told.name} ({source:08x}) that are not what is said of them")
            return
        if end.settings.topics_in != ALL_TOPICS:
            data, raw = self._carrier.keep_out(data, blob, end.settings.topics_in)
            blob = memoryview(raw)
        self._carrier.note_came(data, blob, end.broker)
        for part in data.parts:
            if part.to == self.broker and source in self._inbound:
                self._inbound[source].way_back = packet.hops[::-1]
                self._inbound[source].take(data, part, blob, told.store, now)
        self._carrier.carry(source, packet.hops, data, blob)

    # On the loop's clock, and after every turn of it.

    def turn(self, now: Now) -> None:
        """Do what is due: say hello, spread what is wanted, send what is there, confirm what came."""
        if now.monotonic_s >= self._hello_at_s:
            self._hello_at_s = now.monotonic_s + HELLO_EVERY_S
            for inbound in self._inbound.values():
                inbound.meter.look(inbound.messages, now.monotonic_s)
                self._tell_gone(inbound, now)
            for outbound in self._outbound.values():
                outbound.meter.look(outbound.messages, now.monotonic_s)
            self._near.tick(now)
            self._follow_graph(now)
            for broker in self._reached - self._outbound.keys():  # it may think that it is known here what it wants
                self._carrier.send_to(broker, INTEREST_DONE, InterestDone(b"", 0))
        self._traces.tick(self._reached, now)
        self._ask_for_paths()
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
                self._carrier.confirm(broker, confirm, inbound.way_back)
            if self._may_want(broker):
                part = inbound.next_part(now)
                if part is not None:
                    self._carrier.send_to(broker, INTEREST, part)
        self._carrier.send_confirms()
        lost = self._engine.link_reads.take_lost()
        for outbound in self._outbound.values():
            outbound.subscribe_again([name for who, name in lost if who == outbound.name], now)
        self._read_all(now)

    def _tell_gone(self, inbound: Inbound, now: Now) -> None:
        name = self._near.name_of(inbound.broker) or f"{inbound.broker:08x}"
        for topic, count in inbound.take_gone(now).items():
            self._near.warn(
                f"{count} messages of {to_text(topic) if topic else 'other topics'}, put at {name}, were given up there"
                " and will not come: see link_max_bytes and the bounds of the topic there (its log says which)"
            )

    def _may_want(self, broker: int) -> bool:
        """Return whether messages of a broker may come by the link that they would come by."""
        end = self._near.up().get(self._near.graph.parent(broker, self.broker) or 0)
        return end is not None and end.settings.accepts(broker, self._near.graph.announced[broker].name)

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
            self._carrier.send_batches(found, now)

    def _pass_by(self, now: Now) -> None:
        names = {subscriber_name(told.broker): told.name for told in self._near.graph.announced.values()}
        for topic, name, start, stop in self._engine.link_reads.pass_by(self._pass_by_bytes, now):
            self._near.counters["link_passed_by"] += stop - start
            who = names.get(name, to_text(name.removeprefix(LINK)))
            self._near.warn(
                f"{stop - start} messages of {to_text(topic.name)} (offsets {start} to {stop - 1}) are given up for"
                f" {who}, which has not confirmed them, as more than {self._pass_by_bytes} bytes wait: raise"
                " link_max_bytes, or see why the link is down or slow (`clarion links`)"
            )

    def next_deadline_s(self) -> float:
        """Return when `turn` has something to do."""
        if not self.is_on:
            return inf
        if not self._near.ends and not self._inbound and not self._outbound:
            return self._look_at_s
        times = [self._hello_at_s, *(held.until_s for held in self._answers.held)]
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
        return bool(self._near.ends) and (
            self._more
            or self._engine.foreign_is_done
            or any(self._outbound[broker].has_more() for broker in self._reached & self._outbound.keys())
        )

    def forget(self, name: str, now: Now, asker: Any = None) -> str:
        """Keep nothing any more for a broker that will not come back; return why not, or "": then `take_forgotten` has
        the asker when that is on disk."""
        if name in (self.name, f"{self.broker:08x}"):
            return f"{name} is this broker, which was asked; ask each of the others to forget it"
        for told in self._near.graph.announced.values():
            if told.broker in self._reached and name in (told.name, f"{told.broker:08x}"):
                return f"{name} is linked with this broker right now; stop it first"
        ids = {told.broker for told in self._near.graph.announced.values() if name in (told.name, f"{told.broker:08x}")}
        ids |= {broker for broker, end in self._near.away.items() if end.hello is not None and end.hello.name == name}
        if len(name) == 8 and not ids:  # it may not have been heard of since this broker was started
            try:
                ids.add(int(name, 16))
            except ValueError:
                pass
        subscribed = [(broker, topic) for broker in ids for topic in self._subscribed(broker)]
        if not subscribed and ids.isdisjoint((*self._known(), *self._near.away)):
            return f"nothing is kept for a broker called {name}; `clarion links` lists those that are known"
        self._forgotten |= ids
        for broker in ids:
            self._near.away.pop(broker, None)
            self._outbound.pop(broker, None)
            self._engine.link_reads.keep(subscriber_name(broker), set())
        first = self._ends_asked + 1
        self._ends_asked += len(subscribed)
        self._forgetting.append(_Forgetting(asker, set(range(first, self._ends_asked + 1))))
        for place, (broker, topic) in enumerate(subscribed):
            body = bodies.Unsubscribe(topic, subscriber_name(broker))
            self._engine.handle(_NOBODY, Request(Kind.UNSUBSCRIBE, first + place, body, None), now)
        return ""

    def _take_ended(self, reply: Reply) -> None:
        for each in self._forgetting:
            if reply.request_id in each.asks:
                each.asks.remove(reply.request_id)
                if isinstance(reply.body, bodies.Refused) and reply.kind != Kind.NOT_SUBSCRIBED:
                    each.why_not = reply.body.text

    def take_forgotten(self) -> list[tuple[Any, str]]:
        """Return who asked for what is done now, with why not or "", and forget them."""
        done = [(each.asker, each.why_not) for each in self._forgetting if not each.asks]
        self._forgetting = [each for each in self._forgetting if each.asks]
        return done

    def _subscribed(self, broker: int) -> list[bytes]:
        return self._engine.link_reads.subscribed(subscriber_name(broker))

    # Where messages went.

    def trace(self, message: MessageId, asker: Any, now: Now) -> bool:
        """Look for the path of a message, which `take_paths` has when it is known; return whether there is room for
        that."""
        if self._traces.is_full:
            return False
        self._traces.begin(message, asker, self._reached, self._not_reached(), now)
        self._ask_for_paths()
        return True

    def take_paths(self) -> list[Found]:
        """Return the paths that are known now, with who asked for them, and forget them."""
        found, self._traces.found = self._traces.found, []
        return found

    def _ask_for_paths(self) -> None:
        asks, self._traces.asks = self._traces.asks, []
        for broker, body in asks:
            self._carrier.send_to(broker, ASK_TRACE, body)

    # What is told of it.

    def status(self, now: Now) -> dict[str, Any]:
        """Return the state of all links, and of all brokers that were heard of."""
        return {
            "broker": f"{self.broker:08x}",
            "name": self.name,
            "links": [self._end_status(end, now) for end in (*self._near.ends.values(), *self._near.away.values())],
            "brokers": [self._broker_status(broker, now) for broker in self._known()],
            "counters": dict(self._near.counters),
        }

    def _known(self) -> list[int]:
        """Return the brokers that are, or were, reached, or that something is kept for since an earlier start."""
        kept = {int(name.removeprefix(LINK), 16) for name in self._engine.link_reads.subscribers()}
        heard = self._near.graph.announced.keys() - self._forgotten
        return sorted((heard | kept) - {self.broker}, key=lambda broker: (self._near.name_of(broker), broker))

    def _not_reached(self) -> Iterable[int]:
        """Return brokers that may have had messages and cannot be asked: those that were forgotten, too."""
        return {*self._known(), *self._forgotten} - self._reached

    def _end_status(self, end: End, now: Now) -> dict[str, Any]:
        state = "up" if end.is_up else "refused" if end.refused else "down"
        return {
            "url": end.settings.url if end.is_dialled else "",
            "name": end.hello.name if end.hello is not None else end.settings.name,
            "broker": f"{end.broker:08x}" if end.broker else "",
            "state": state,
            "reason": "" if end.is_up else end.refused or end.why_down or end.why_unanswered,
            "for_s": round(now.monotonic_s - end.since_s, 1) if end.since_s is not None else None,
        }

    def _broker_status(self, broker: int, now: Now) -> dict[str, Any]:
        inbound, outbound = self._inbound.get(broker), self._outbound.get(broker)
        topics, messages = self._engine.link_reads.lag(subscriber_name(broker))
        first = self._first_hop(broker) if broker in self._reached else 0
        return {
            "name": self._near.name_of(broker),
            "broker": f"{broker:08x}",
            "reachable": broker in self._reached,
            "via": self._near.name_of(first),
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
        return next(iter(self._near.graph.split(self.broker, self.broker, [broker])), 0)

    # Who subscribes here is told which brokers have confirmed it.

    def asked(self, peer: Any, request_id: int, topic: bytes) -> None:
        """Note that somebody subscribes."""
        if self.is_on:
            self._answers.asked(peer, request_id, topic)

    @property
    def is_holding(self) -> bool:
        """Whether answers wait."""
        return bool(self._answers.held)

    def hold(self, reply: Reply, now: Now) -> bool:
        """Hold an answer to who subscribed, until `take_held` says with it who has confirmed; return False where it is
        another answer, which is not held."""
        return self._answers.hold(reply, now)

    def take_held(self, now: Now, *, all_of_them: bool = False) -> list[Reply]:
        """Return the answers that need not wait any more, with what other brokers have confirmed."""
        if not self._answers.held:
            return []
        return self._answers.take(self._is_answered, self._origins_of, now, all_of_them=all_of_them)

    def _is_answered(self, topic: bytes) -> bool:
        return all(
            self._inbound[broker].is_answered(topic)
            for broker in self._reached & self._inbound.keys()
            if not self._why_kept_out(broker, topic)
        )

    def _why_kept_out(self, broker: int, topic: bytes) -> str:
        """Return why nothing that is put on a topic at a broker may come in here, by this broker's settings; or ""."""
        end = self._near.up().get(self._near.graph.parent(broker, self.broker) or 0)
        if end is None:
            return ""
        neighbour = self._near.name_of(end.broker)
        if not end.settings.accepts(broker, self._near.name_of(broker)):
            return f"origins of the link with {neighbour} lets no messages of it in"
        if not any(overlap(topic, pattern) for pattern in end.settings.topics_in):
            return f"topics_in of the link with {neighbour} lets nothing of {to_text(topic)} in"
        return ""

    def _origins_of(self, topic: bytes) -> Origins:
        confirmed: list[tuple[str, int]] = []
        why_not: dict[str, str] = {}  # "": it is waited for
        for broker in self._known():
            inbound, name = self._inbound.get(broker), self._near.name_of(broker) or f"{broker:08x}"
            offset = inbound.confirmed_from(topic) if inbound is not None else None
            if broker in self._reached and (why := self._why_kept_out(broker, topic)):
                why_not[name] = why
            elif offset is not None:
                confirmed.append((name, offset))
            else:
                why_not[name] = inbound.refused.get(topic, "") if inbound is not None else ""
        for end in self._near.ends.values():
            if not end.is_up and end.broker not in self._reached and (end.is_dialled or end.hello is not None):
                name = end.hello.name if end.hello is not None else end.shown
                why_not[name] = _REFUSED if end.refused else why_not.get(name, "")
        names = {name for name, _ in confirmed}
        reasons = tuple((name, why) for name, why in why_not.items() if why and name not in names)
        return Origins(tuple(confirmed), tuple(name for name in why_not if name not in names), reasons)
