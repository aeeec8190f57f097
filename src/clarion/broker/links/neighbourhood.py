"""The neighbours of a broker and the graph that all brokers know: hellos, announcements, and who is refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine import Now
from clarion.broker.engine.notices import Notice
from clarion.broker.links.neighbours import End, Port, find_settings, is_sound
from clarion.broker.links.policy import LinkSettings
from clarion.broker.links.ups_and_downs import Change, UpsAndDowns
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.store.port import Identity
from clarion.wire.frames import Buffer, Kind
from clarion.wire.link_bodies import LINK_VERSION, OLDEST_LINK_VERSION, LinkHello, LinkState, encode

HELLO_EVERY_S = 1.0
_DEAD_S = 5.0  # without anything that comes
_ROW_BYTES = 64  # of what is said of one broker, beside names and ids: more than it is
_STATE_BYTES = 2**19  # of announcements that are sent together
_UNANSWERED_S = 5.0  # before the log says that nobody answers a call
_MOST_BROKERS = 1000
_MOST_AWAY = 100  # neighbours that called, and are told of when they are gone
_MOST_TOLD = 100  # different refusals that the log has of one connection
_TOLD_AGAIN_S = 600.0  # before the log says once more why there is no link


class Send(NamedTuple):
    """Something for a neighbour."""

    port: Port
    kind: int
    body: msgspec.Struct
    blobs: tuple[Buffer, ...] = ()


class Neighbourhood:
    """Keeps links with neighbours, and the same graph as all others."""

    def __init__(
        self,
        identity: Identity,
        name: str,
        settings: Sequence[LinkSettings],
        start: bytes,
        accepts: str,
        most_bytes: int,
    ) -> None:
        self._identity = identity
        self.broker = identity.broker
        self.name = name
        self._settings = settings
        self.start = start
        self._accepts = accepts
        self._most_bytes = most_bytes  # of a frame that is taken here; 0: any
        self.ends: dict[Port, End] = {}
        self._came_s: dict[Port, float] = {}  # when something came last that is no hello
        self.away: dict[int, End] = {}  # neighbours that called and were linked, and do not call now
        self.graph = LinkGraph()
        self.reached: frozenset[int] = frozenset()  # brokers to which there is a way
        self.changes = 0  # of the graph
        self._number = 0  # of the last announcement
        self._is_outdone = False  # by an announcement of this broker that is not of this start
        self._outdone_by: set[bytes] = set()  # of which starts there were such
        self.out: list[Send] = []
        self.notices: list[Notice] = []
        self._ups_and_downs = UpsAndDowns()
        self._told: dict[str, float] = {}  # refusals, and when the log said them
        self.counters: Counter[str] = Counter()

    def name_of(self, broker: int) -> str:
        """Return how a broker is called, as far as it was heard of."""
        told = self.graph.announced.get(broker)
        return told.name if told is not None else ""

    def up(self) -> dict[int, End]:
        """Return the neighbours, by id, each by one of its connections."""
        return {end.broker: end for end in self.ends.values() if end.is_up}

    def warn(self, text: str) -> None:
        """Have the log warn of something."""
        self.notices.append(Notice(logging.WARNING, text))

    def _warn_once(self, text: str, now: Now) -> None:
        """Say something that may come again and again, with whoever calls, in long intervals alone."""
        if now.monotonic_s >= self._told.get(text, -inf) + _TOLD_AGAIN_S:
            self._told.pop(text, None)
            if len(self._told) >= _MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[text] = now.monotonic_s
            self.warn(text)

    def tick(self, now: Now) -> None:
        """Say hello to all, and give up who does not."""
        self.notices += self._ups_and_downs.take_notices(self.up(), now)
        for end in list(self.ends.values()):
            is_silent = now.monotonic_s > max(end.heard_s, self._came_s.get(end.port, -inf)) + _DEAD_S
            if end.is_up and is_silent:
                self.take_down(end, f"nothing was heard for {_DEAD_S:g} s", now)
            if not end.is_dialled and not end.is_up and is_silent:
                self._let_go(end)  # it calls again, if it is there
            else:
                self._await_answer(end, now)
                self._send_hello(end)
        if self._is_outdone:  # not at once: a copy of this broker would be answered by it without end
            self._is_outdone = False
            self._announce(now)

    def note_sign(self, port: Port, now: Now) -> None:
        """Take in that something comes over a connection, be it a part of a long frame: a hello may be behind it."""
        if port in self.ends:
            self._came_s[port] = now.monotonic_s

    def lost(self, port: Port, now: Now) -> None:
        """Take in that a connection is gone."""
        end = self.ends.get(port)
        if end is not None:
            self.take_down(end, "the connection is gone", now)
            if not end.is_dialled:
                self._let_go(end)

    def _let_go(self, end: End) -> None:
        """Drop a connection that another broker made, and keep what is told of it until that broker calls again."""
        del self.ends[end.port]
        self._came_s.pop(end.port, None)
        was_up = end.since_s is not None and not end.refused
        if was_up and all(other.broker != end.broker for other in self.ends.values()):
            self.away.pop(end.broker, None)
            if len(self.away) >= _MOST_AWAY:
                del self.away[next(iter(self.away))]
            self.away[end.broker] = end

    def _await_answer(self, end: End, now: Now) -> None:
        """Have the log say, in long intervals, that a link that this broker makes has never come up."""
        if not end.is_dialled or end.since_s is not None or end.refused:
            return
        if end.awaited_s is None:
            end.awaited_s = now.monotonic_s + _UNANSWERED_S
        elif now.monotonic_s >= end.awaited_s:
            end.awaited_s = now.monotonic_s + _TOLD_AGAIN_S
            which = f": {end.why_unanswered}" if end.why_unanswered else ""
            self.warn(
                f"no answer from {end.settings.url}, which is to be linked with{which}. See that host name and port are"
                " right, that a broker of this release runs there, and that no firewall is in between. It is tried"
                " again and again"
            )

    # Neighbours.

    def hear_hello(self, end: End, hello: LinkHello, now: Now) -> None:
        """Take in who is at the other end of a connection, and whether there is to be a link."""
        if end.start != hello.start:
            end.start, end.begun_s = hello.start, now.monotonic_s
        end.heard_s = now.monotonic_s
        why = self._why_not(end, hello)
        if why:
            self.refuse(end, why, now, hello)
            self.take_down(end, "", now)
            if not hello.refused:  # else the two would refuse each other without end
                self._send_hello(end, refused=why)
            return
        if hello.refused:
            self.refuse(end, f"{hello.name} refuses: {hello.refused[:1000]}", now, hello)
            self.take_down(end, "", now)
            return
        if end.hello is not None and end.hello.start != hello.start:
            self.take_down(end, "it was started again", now)
        settings = find_settings(hello, end, self._settings, self._accepts)
        assert isinstance(settings, LinkSettings)
        end.hello, end.settings, end.refused = hello, settings, ""
        if hello.heard != self.start:
            self._send_hello(end)
        elif not end.is_up:
            self._tell_up(end, now)
            end.is_up, end.since_s, end.why_down = True, now.monotonic_s, ""
            end.seen_refusals.clear()
            self.away.pop(end.broker, None)
            self._announce(now)
            self._send_hello(end)
            self._send_state(end, self._known_to(end))
        elif hello.digest != self._digest():
            self._send_state(end, self._known_to(end))

    def _tell_up(self, end: End, now: Now) -> None:
        """Have the log say that a link comes up, and how, where it was not down."""
        starts = {other.start for other in self.ends.values() if other.is_up and other.broker == end.broker}
        change, how = Change.UP, ""
        if starts:
            is_same = end.start in starts
            change = Change.ANEW if is_same else Change.RESTARTED
            how = ", by one more connection" if is_same else ": it was started again"
        if self._ups_and_downs.take(end.broker, end.shown, change, now):
            self.notices.append(Notice(logging.INFO, f"link up: {end.shown}, {end.where}{how}"))

    def _why_not(self, end: End, hello: LinkHello) -> str:
        settings = find_settings(hello, end, self._settings, self._accepts)
        if isinstance(settings, str):
            return settings
        if hello.broker == self.broker:
            if hello.start == self.start:
                return "the link leads back to this broker itself: take its address out of `links`"
            return (
                f"both brokers have the id {self.broker:08x}: one of them runs on a copy of the other's store; stop"
                " that one, and give it a data folder of its own"
            )
        if hello.name == self.name:
            return f"both brokers are called {self.name}: give one of them another name (--name)"
        known = self.graph.announced.get(hello.broker)
        if known is not None and known.store != hello.store and self._is_near(hello.broker):
            return (
                f"there are two brokers of the id {hello.broker:08x}, on different stores; stop one of them, and give"
                " it a new data folder"
            )
        if self._is_copy(end, hello):
            return (
                f"two brokers of the id {hello.broker:08x} run at the same time, one of them on a copy of the other's"
                " store; stop that one, and give it a data folder of its own"
            )
        for other in self.graph.announced.values():
            if other.name == hello.name and other.broker != hello.broker and self._is_near(other.broker):
                return (
                    f"another broker ({other.broker:08x}) that can be reached is called {hello.name}, too: give one of"
                    " them another name (--name)"
                )
        return ""

    def _is_copy(self, end: End, hello: LinkHello) -> bool:
        """Return whether a broker of this id was linked before and goes on to speak: one that was started again does
        not, though what it had said may come late."""
        return any(
            other.is_up
            and other.broker == hello.broker
            and (other.begun_s, other.start) < (end.begun_s, end.start)
            and other.start != end.start
            and other.heard_s >= end.begun_s + HELLO_EVERY_S / 2
            for other in self.ends.values()
        )

    def _is_near(self, broker: int) -> bool:
        return broker in self.reached or any(end.is_up and end.broker == broker for end in self.ends.values())

    def refuse(self, end: End, why: str, now: Now, hello: LinkHello | None = None) -> None:
        """Note why there is no link."""
        self.counters["links_refused"] += 1
        end.refused = why
        who = f"{hello.name!r:.80}, {end.where}" if hello is not None else end.shown
        self._warn_once(f"no link with {who}: {why}", now)

    def tell_once(self, end: End, what: str, text: str) -> None:
        """Have the log say something of a connection, unless it said so before, or far too much already."""
        if what not in end.seen_refusals and len(end.seen_refusals) < _MOST_TOLD:
            end.seen_refusals.add(what)
            self.warn(text)

    def take_down(self, end: End, why: str, now: Now) -> None:
        """Take in that a link is not there any more."""
        if end.is_up:
            end.is_up, end.since_s, end.why_down = False, now.monotonic_s, why
            if end.broker in self.up():
                return  # by another connection
            if why and self._ups_and_downs.take(end.broker, end.shown, Change.DOWN, now):
                then = "It is tried again and again" if end.is_dialled else "It is expected to call again"
                self.warn(
                    f"link down: {end.shown}, {end.where}: {why}. {then}; what is wanted there is"
                    " kept here until then (`clarion links` shows it, `clarion links forget` ends that)"
                )
            self._announce(now)

    def _send_hello(self, end: End, refused: str = "") -> None:
        identity = self._identity
        heard = end.hello.start if end.hello is not None and not refused else b""
        hello = LinkHello(
            OLDEST_LINK_VERSION, LINK_VERSION, self.broker, identity.store_uuid, self.name, self.start, heard,
            self._digest(), refused, self._most_bytes,
        )  # fmt: skip
        self.out.append(Send(end.port, Kind.LINK_HELLO, hello))

    # The graph.

    def _announce(self, now: Now) -> None:
        self._number = max(self._number + 1, now.unix_us)
        own = Announcement(
            self.broker, self.name, self._identity.store_uuid, self._number, tuple(sorted(self.up())),
            self.start,
        )  # fmt: skip
        self.graph.hear(own)
        self._flood([own], None)
        self._changed()

    def hear_state(self, end: End, state: LinkState, now: Now) -> None:
        """Take in what brokers announce, and pass on what is news."""
        news = []
        for each in state.announcements:
            told = Announcement(*each)
            known = self.graph.announced.get(told.broker)
            if not is_sound(told, now.unix_us):
                self.forged(end, "an announcement that no broker makes")
            elif told.broker == self.broker:
                self._hear_of_itself(end, told)
            elif known is not None and known.store != told.store and told.broker in self.reached:
                self._conflict(end, f"there are two brokers of the id {told.broker:08x}, on different stores")
            elif known is None and not self._make_room():
                self.counters["link_too_many_brokers"] += 1
                self.tell_once(end, "brokers", f"more than {_MOST_BROKERS} brokers are linked: others are not heard")
            elif self.graph.hear(told):
                news.append(told)
        if news:
            self._flood(news, end)
            self._changed()
            for told in news:
                self._look_at_name(end, told)

    def _hear_of_itself(self, end: End, told: Announcement) -> None:
        """Take in what is told of this broker: by itself, before it was started again, or by another that is not it."""
        if told.store != self._identity.store_uuid:
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
        if told.broker not in self.reached:
            return
        for other in (self.broker, *self.reached):
            name = self.graph.announced[other].name
            if name == told.name and other != told.broker:
                self._conflict(end, f"two brokers, {other:08x} and {told.broker:08x}, are called {name}: rename one")

    def _conflict(self, end: End, what: str) -> None:
        self.counters["link_id_conflicts"] += 1
        self.tell_once(end, what, f"heard from {end.shown}: {what}")

    def _make_room(self) -> bool:
        """Forget brokers that cannot be reached, where no more may be known; return whether one more may be now."""
        announced = self.graph.announced
        if len(announced) < _MOST_BROKERS:
            return True
        away = announced.keys() - self.reached - {self.broker}
        for broker in away:
            self.graph.forget(broker)
        return bool(away)

    def _known_to(self, end: End) -> list[Announcement]:
        """Return what a neighbour is told: of itself, in case it has forgotten, and of all that can be reached here."""
        announced = self.graph.announced
        return [announced[broker] for broker in {self.broker, end.broker, *self.reached} if broker in announced]

    def _flood(self, news: list[Announcement], but: End | None) -> None:
        for end in self.up().values():
            if but is None or end.broker != but.broker:
                self._send_state(end, news)

    def _send_state(self, end: End, announced: Iterable[Announcement]) -> None:
        some: list[Announcement] = []
        size = 0
        for told in announced:
            its_size = _ROW_BYTES + len(told.name.encode()) + 9 * len(told.linked) + len(told.store) + len(told.start)
            if some and size + its_size > _STATE_BYTES:
                self.out.append(Send(end.port, Kind.LINK_STATE, LinkState(tuple(some))))
                some, size = [], 0
            some.append(told)
            size += its_size
        if some:
            self.out.append(Send(end.port, Kind.LINK_STATE, LinkState(tuple(some))))

    def _digest(self) -> int:
        announced = self.graph.announced
        numbers = sorted(
            (broker, announced[broker].number) for broker in {self.broker, *self.reached} & announced.keys()
        )
        return xxh3_64_intdigest(encode(numbers))

    def _changed(self) -> None:
        self.reached = frozenset(self.graph.reached_from(self.broker))
        self.changes += 1

    def forged(self, end: End, what: str) -> None:
        """Count, and tell, that a neighbour sent what cannot be."""
        self.counters["link_forged"] += 1
        text = f"refused from {end.shown}: {what}. If this goes on, take that broker out of `links`"
        self.tell_once(end, what, text)
