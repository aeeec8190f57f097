"""Fetches from many topics together: sessions begun, what is there handed out, and who waits for more."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from clarion.broker.engine.answers import Commit, Refused, ReplyTo, Waiting, check_nonce, is_acked
from clarion.broker.engine.clock import Now
from clarion.broker.engine.session_places import ENDED, Before, FetchSession, Place
from clarion.broker.engine.state import PatternKey, SessionAttached, State
from clarion.broker.engine.subscriptions import Subscriptions, check_count, taken_over
from clarion.broker.engine.topic_log import UNREAD, pack_batches, read_batches, unread
from clarion.broker.engine.topics import Subscription, Topic
from clarion.model.names import is_pattern, to_text
from clarion.model.options import pack_options
from clarion.store.port import PatternRow
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

MAX_FETCHED = 1000  # topics and patterns of one session
_TOPICS_SCANNED = 2000  # of the store at a time
_IDLE_S = 300.0  # without a fetch, after which a session is forgotten
_LOOK_EVERY_S = 60.0
_LEAST_BYTES = 16 * 1024  # that a topic gives at a time, where others have something, too
_JOINED_BELOW_BYTES = 32 * 1024  # batches smaller than this travel in one frame
_AGAIN_S = 1.0  # before what could not be read is tried again


class _Begin(NamedTuple):
    body: bodies.BeginFetch
    attached: list[tuple[Topic, Subscription]]  # the plain topics
    is_shared: bool


class _Delivery:
    """What one answer to a fetch brings."""

    __slots__ = (
        "attaching", "batches", "befores", "blobs", "gone", "left", "left_bytes", "left_messages", "messages",
        "shared", "skip", "topics", "trouble",
    )  # fmt: skip

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.messages = 0  # handed out
        self.left_messages = max_messages
        self.left_bytes = max_bytes
        self.befores: list[Before] = []  # where topics were
        self.attaching: list[int] = []  # topics whose consumer the session will be
        self.batches: list[tuple[int, int, int, int]] = []
        self.blobs: list[Buffer] = []
        self.topics: list[tuple[int, bytes, int, int]] = []
        self.skip: list[tuple[int, int, int]] = []
        self.gone: list[tuple[int, int, int]] = []
        self.left: list[tuple[int, int, str]] = []
        self.trouble: list[tuple[int, int, str]] = []
        self.shared: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.batches or self.topics or self.skip or self.gone or self.left or self.trouble or self.shared)

    def body(self, serial: int) -> bodies.Fetched:
        """Return what is told of it."""
        return bodies.Fetched(
            serial, tuple(self.batches), tuple(self.topics), tuple(self.skip), tuple(self.gone), tuple(self.left),
            tuple(self.trouble), tuple(self.shared),
        )  # fmt: skip


class Fetches:
    """Keeps fetch sessions, and hands out what is committed on their topics, now or when it comes."""

    def __init__(self, state: State, subscriptions: Subscriptions) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._deadlines: list[tuple[float, int, FetchSession]] = []
        self._troubled: list[tuple[float, int, FetchSession, int]] = []  # topics to look at again, by number
        self._noted = 0
        self._scans: dict[FetchSession, None] = {}  # those whose topics are being looked for in the store
        self._look_at_s = 0.0

    # BEGIN_FETCH.

    def check_begin(self, body: bodies.BeginFetch, now: Now) -> _Begin:
        """Refuse who may not read these topics, or came after another who may."""
        state, patterns = self._state, self._state.patterns
        check_nonce(body.nonce)
        if not 0 < len(body.topics) <= MAX_FETCHED:
            raise Refused(Code.TOO_LARGE, f"a fetch is from 1 to {MAX_FETCHED} topics", kind=Kind.INVALID)
        attached: list[tuple[Topic, Subscription]] = []
        shared = 0
        for name in dict.fromkeys(body.topics):
            if not is_pattern(name):
                use = self._subscriptions.check_attach(
                    bodies.Attach(name, body.name, body.nonce, as_of=body.as_of), now
                )
                attached.append((use.topic, use.subscription))
                shared += use.subscription.leases is not None
                continue
            key = (name, body.name)
            if key not in patterns.options or key in patterns.going:
                text = f"{to_text(body.name)} does not subscribe to the pattern {to_text(name)}"
                raise Refused(Code.NOT_SUBSCRIBED, text)
            shared += patterns.options[key].shared
            token, nonce = patterns.consumers.get(key, (patterns.numbers[key], b""))
            if nonce != body.nonce and body.as_of and not token <= body.as_of <= state.count:
                what = f"{to_text(body.name)} on the pattern {to_text(name)}"
                if not nonce:  # who asks anew takes it from nobody
                    raise state.stale(f"the subscription {what} was made meanwhile", Code.MOVED)
                raise state.stale(f"another consumer took over {what}; what this one did not ack goes to that one")
        return _Begin(body, attached, bool(shared))

    def begin(self, reply_to: ReplyTo, plan: _Begin, now: Now) -> None:
        """Make the caller the consumer, and answer once that is on disk; the same nonce again is the same session."""
        state, body = self._state, plan.body
        if plan.is_shared:
            state.reply_when_durable(reply_to, Kind.ACK, bodies.FetchBegun(0, shared=True, count=state.count))
            return
        known = next((each for each in state.sessions.get(body.name, ()) if each.nonce == body.nonce), None)
        if known is None or known.topics != body.topics:
            known = self._begin(plan, now)
        known.fetched_s = now.monotonic_s
        state.reply_when_durable(reply_to, Kind.ACK, bodies.FetchBegun(known.token, count=state.count))

    def _begin(self, plan: _Begin, now: Now) -> FetchSession:
        state, body = self._state, plan.body
        patterns = state.patterns
        keys = [(name, body.name) for name in dict.fromkeys(body.topics) if is_pattern(name)]
        tokens = {patterns.consumers[key][0] for key in keys if patterns.consumers.get(key, (0, b""))[1] == body.nonce}
        is_known = len(tokens) == 1 and all(patterns.consumers.get(key, (0, b""))[1] == body.nonce for key in keys)
        for session in list(state.sessions.get(body.name, ())):
            if session.nonce == body.nonce:
                self._forget([session])
            elif any(pattern in session.topics for pattern, _ in keys):
                text = f"another consumer began to fetch as {to_text(body.name)} from {to_text(session.topics[0])}"
                self._end(session, Refused(Code.TAKEN_OVER, text))
        token = tokens.pop() if is_known else state.draw() if keys else 0
        for key in keys if not is_known else ():
            patterns.consumers[key] = (token, body.nonce)
            row = PatternRow(*key, pack_options(patterns.options[key]), patterns.numbers[key], token, body.nonce)
            state.open.changes.patterns[key] = row
        for topic, subscription in plan.attached:
            if subscription.nonce != body.nonce:
                self._subscriptions.give_to(topic, subscription, body.nonce)
        # Without a pattern, the tokens of topics are all that is stored of a session: one of them is its own.
        token = token or max(subscription.token for _, subscription in plan.attached)
        session = FetchSession(body.topics, body.name, token, body.nonce)
        state.sessions.setdefault(body.name, []).append(session)
        state.sessions_changed += 1
        state.counters["fetch_sessions"] += 1
        for topic, _ in plan.attached:
            session.ready[topic.number] = None
        if keys:
            self._look_in_memory(session)
            self._scans[session] = None
        return session

    def _look_in_memory(self, session: FetchSession) -> None:
        """Find the topics in memory that have something to read."""
        for number, topic in self._state.numbered.items():
            if _is_unread(topic, session.name) and session.covers(topic.name):
                session.ready[number] = None

    def _scan(self, session: FetchSession, now: Now) -> None:
        """Find topics that were not in memory, and have something to read: one page of the store."""
        state = self._state
        assert session.scanned is not None
        page = state.store.topics_of(session.name, session.scanned, _TOPICS_SCANNED)
        for number, name, is_unread in page:
            topic = state.numbered.get(number)  # loaded meanwhile: what is in memory is newer
            is_wanted = is_unread if topic is None else _is_unread(topic, session.name)
            if is_wanted and number not in session.places and session.covers(name):
                session.ready[number] = None
        session.scanned = page[-1][0] if len(page) == _TOPICS_SCANNED else None
        if session.scanned is None:
            del self._scans[session]
        if session.waiting is not None and (session.ready or session.scanned is None):
            self._serve_waiting(session, now)

    # FETCH.

    def check_fetch(self, body: bodies.Fetch, now: Now) -> tuple[bodies.Fetch, FetchSession]:
        """Refuse a session that is not known, or that cannot wait."""
        check_count(body.acks)
        for session in self._state.sessions.get(body.name, ()):
            if session.token == body.token:
                if body.wait_ms > 0 and session.waiting is None:
                    self._state.check_waiting()
                return body, session
        raise Refused(Code.NO_SESSION, "this fetch session is not known here (any more); begin it again")

    def fetch(self, reply_to: ReplyTo, plan: tuple[bodies.Fetch, FetchSession], now: Now) -> None:
        """Hand out what is there beyond what was sent, or wait for it."""
        body, session = plan
        session.fetched_s = now.monotonic_s
        if body.number < session.number:
            self._state.reply(reply_to, Kind.NO_MESSAGES, bodies.NoMessages(0))
            return
        if session.waiting is not None:  # a consumer waits once: its older question is answered now
            self._send_away(session)
        session.number = body.number
        session.go_on_after(body.got)
        refused, acked_with = self._take_acks(body, now) if body.acks else ((), None)
        until_s = now.monotonic_s + min(max(0, body.wait_ms) / 1000, self._state.limits.max_get_wait_s)
        fetch = Waiting(reply_to, body, until_s, acked_with=acked_with)
        if self._serve(session, fetch, now, refused):
            return
        if body.wait_ms <= 0 and not self._is_looking(session):
            self._reply_nothing(fetch)
            return
        session.waiting = fetch
        self._state.waiting_gets += 1
        self._noted += 1
        heapq.heappush(self._deadlines, (until_s, self._noted, session))

    def _is_looking(self, session: FetchSession) -> bool:
        """Return whether it is not known yet that there is nothing."""
        return session.attaching > 0 or session in self._scans

    def _take_acks(self, body: bodies.Fetch, now: Now) -> tuple[bodies.Refusals, Commit | None]:
        """Take what is acked; return what is refused, and the commit that the rest goes with; None: it is on disk."""
        state = self._state
        refused = self._subscriptions.take_acks(body.name, body.acks, now)
        state.commit_in_a_moment(now)
        group = state.open if state.open else state.in_flight
        return refused, None if group is None else group.commit

    def _reply_nothing(self, fetch: Waiting) -> None:
        nothing = bodies.NoMessages(0, is_acked(fetch.body.acks, fetch.acked_with))
        self._state.reply(fetch.reply_to, Kind.NO_MESSAGES, nothing)

    def _send_away(self, session: FetchSession) -> None:
        self._reply_nothing(self._stop_waiting(session))

    def _stop_waiting(self, session: FetchSession) -> Waiting:
        waiting: Waiting = session.waiting
        session.waiting = None
        self._state.waiting_gets -= 1
        self._state.woken.pop(session, None)
        return waiting

    def _serve_waiting(self, session: FetchSession, now: Now) -> None:
        waiting: Waiting = session.waiting
        if self._serve(session, waiting, now):
            self._stop_waiting(session)
        elif waiting.deadline_s <= now.monotonic_s and not self._is_looking(session):
            self._send_away(session)

    def serve_woken(self, now: Now) -> None:
        """Hand out what came to those who wait for it."""
        woken, self._state.woken = self._state.woken, {}
        for session in woken:
            if session.waiting is not None:
                self._serve_waiting(session, now)

    def _serve(self, session: FetchSession, fetch: Waiting, now: Now, refused: bodies.Refusals = ()) -> bool:
        """Answer with what there is, as much as fits; tell whether there was anything."""
        state, ready = self._state, session.ready
        delivery = _Delivery(*state.most_of(fetch.body))
        numbered, places = state.numbered, session.places
        while ready and delivery.left_messages > 0 and delivery.left_bytes > 0:
            number, _ = ready.popitem(last=False)
            topic = numbered.get(number) or state.find_topic_by_number(number, now.monotonic_s)
            subscription = topic.subscriptions.get(session.name) if topic is not None and not topic.deleted else None
            place = places.get(number)
            if topic is None or subscription is None:
                if place is not None and not place.is_attaching:
                    self._end_place(session, place, delivery)
                continue
            if place is None:
                if topic.name not in session.plain and not _is_unread(topic, session.name):
                    continue  # it is told of with its first message
                place = places[number] = Place(number)
            if place.token == subscription.token or self._attached(session, place, topic, subscription, delivery):
                self._hand_out(session, place, topic, subscription, delivery, now)
        if delivery.attaching:
            session.attaching += 1
            state.open.on_durable.append(SessionAttached(session, delivery.attaching))
        if not delivery and not refused:
            return False
        session.note_sent(delivery.befores)
        state.counters["deliveries"] += 1
        state.counters["messages_delivered"] += delivery.messages
        fetched = delivery.body(session.serial)
        fetched.acked, fetched.refused = is_acked(fetch.body.acks, fetch.acked_with), refused
        state.reply(fetch.reply_to, Kind.MESSAGES, fetched, _frames(delivery.blobs))
        return True

    def _attached(
        self, session: FetchSession, place: Place, topic: Topic, subscription: Subscription, delivery: _Delivery
    ) -> bool:
        """See to it that the consumer has the subscription, and tell it so; False where that is not on disk yet, or
        another consumer has it. A crash takes back nothing that was told."""
        if place.is_attaching or place.left_token == subscription.token:
            return False
        if subscription.leases is not None:
            delivery.befores.append(place.now())
            place.left_token = subscription.token
            delivery.shared.append(topic.name)
            return False
        is_anothers = bool(subscription.nonce) and subscription.token > session.token
        if subscription.nonce != session.nonce and not is_anothers:
            self._subscriptions.give_to(topic, subscription, session.nonce)
        key = (topic.number, session.name)
        if any(key in group.dirty for group in self._state.groups()):
            place.is_attaching = True
            delivery.attaching.append(place.number)
            return False
        if subscription.nonce != session.nonce:
            delivery.befores.append(place.now())
            if place.left_token <= 0:  # it is told once, however many come after
                delivery.left.append((place.number, Code.TAKEN_OVER, taken_over(topic, subscription)))
            place.left_token = subscription.token
            return False
        delivery.befores.append(place.now())
        place.token, place.position, place.left_token = subscription.token, subscription.acked.cursor, 0
        delivery.topics.append((place.number, topic.name, place.token, place.position))
        return True

    def _end_place(self, session: FetchSession, place: Place, delivery: _Delivery) -> None:
        """Tell that a topic, if it was told of, is not read any more, once that is on disk."""
        key = (place.number, session.name)
        if any(key in group.changes.gone_subscriptions for group in self._state.groups()):
            place.is_attaching = True
            delivery.attaching.append(place.number)
        elif place.token:
            delivery.befores.append(place.now())
            place.token, place.left_token = 0, ENDED
            text = "the subscription was ended, or the topic deleted"
            delivery.left.append((place.number, Code.NOT_SUBSCRIBED, text))
        elif place.left_token != ENDED:  # which stays until that has arrived
            del session.places[place.number]

    def on_attached(self, effect: SessionAttached, now: Now) -> None:
        """Look at topics whose consumer the session is now, as far as the disk knows."""
        session = effect.session
        session.attaching -= 1
        for number in effect.numbers:
            if number in session.places:
                session.places[number].is_attaching = False
                session.ready[number] = None
        if session.waiting is not None:
            self._state.woken[session] = None

    def _hand_out(
        self,
        session: FetchSession,
        place: Place,
        topic: Topic,
        subscription: Subscription,
        delivery: _Delivery,
        now: Now,
    ) -> None:
        state, number = self._state, place.number
        acked = subscription.acked
        before = position = max(place.position, acked.cursor)
        end = topic.visible_end
        if position >= end:
            return
        if place.position < position:  # it expired before it was sent: who reads on must not miss it
            delivery.skip.append((number, place.position, position))
        newest = topic.recent[-1] if topic.recent else None
        if (
            newest is not None
            and newest.first_offset == position
            and newest.count <= delivery.left_messages
            and not newest.expires_at_us
            and not len(acked)
        ):
            delivery.batches.append((number, position, newest.committed_at_us, len(newest.data)))
            delivery.blobs.append(newest.data)
            delivery.left_messages -= newest.count
            delivery.left_bytes -= len(newest.data)
            delivery.messages += newest.count
            delivery.befores.append(place.now())
            place.position = end
            topic.note_read(newest.committed_at_us, now)
            return
        unacked = acked.next_unacked(position)
        if unacked < topic.first_offset:
            self._subscriptions.tell_gone(topic, subscription, unacked)
            delivery.gone.append((number, unacked, topic.first_offset))
            position = topic.first_offset
        share = max(_LEAST_BYTES, delivery.left_bytes // (1 + len(session.ready)))
        try:
            found = read_batches(state, topic, position, delivery.left_messages, min(share, delivery.left_bytes))
        except UNREAD as error:
            refused = unread(state, error)
            if refused.code != Code.BUSY:
                delivery.trouble.append((number, refused.code, refused.text))
            self._noted += 1
            heapq.heappush(self._troubled, (now.monotonic_s + _AGAIN_S, self._noted, session, number))
            return
        packed = pack_batches((delivery.left_messages, found), position, now)
        for start, stop in packed.expired:
            self._subscriptions.take_expired(topic, subscription, start, stop)
        reached = packed.reached or max(position, min(unacked, end))
        delivery.skip += [(number, start, stop) for start, stop in acked.within(position, reached)]
        if packed.envelopes:
            topic.note_read(packed.envelopes[0][1], now)
        for (first_offset, at_us), blob in zip(packed.envelopes, packed.blobs, strict=True):
            delivery.batches.append((number, first_offset, at_us, len(blob)))
            delivery.blobs.append(blob)
            delivery.left_bytes -= len(blob)
        delivery.left_messages -= packed.messages
        delivery.messages += packed.messages
        delivery.befores.append(place.now())
        place.position = reached
        if before < reached < end:
            session.ready[number] = None  # in its turn

    # On the loop's clock, and when something ends.

    def tick(self, now: Now) -> None:
        """Go on looking for topics, answer those whose wait is over, look again at what could not be read."""
        for session in list(self._scans)[:1]:
            self._scan(session, now)
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_s:
            until_s, _, session = heapq.heappop(self._deadlines)
            waiting = session.waiting
            if waiting is not None and waiting.deadline_s <= until_s and not self._is_looking(session):
                self._send_away(session)
        while self._troubled and self._troubled[0][0] <= now.monotonic_s:
            _, _, session, number = heapq.heappop(self._troubled)
            session.ready[number] = None
            if session.waiting is not None:
                self._serve_waiting(session, now)
        if now.monotonic_s >= self._look_at_s:
            self._look_at_s = now.monotonic_s + _LOOK_EVERY_S
            self._forget(
                session
                for session in self._all()
                if session.waiting is None and now.monotonic_s - session.fetched_s > _IDLE_S
            )

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        if self._scans:
            return 0.0
        while self._deadlines and not _is_waited_for(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        heads = [heap[0][0] for heap in (self._deadlines, self._troubled) if heap]
        return min(heads, default=None)

    def end_pattern(self, key: PatternKey, text: str) -> None:
        """Nobody fetches from the topics of a pattern any more."""
        for session in [each for each in self._state.sessions.get(key[1], ()) if key[0] in each.topics]:
            self._end(session, Refused(Code.NOT_SUBSCRIBED, text))

    def answer_all(self) -> None:
        """Send everybody who waits away empty-handed, and forget all sessions; they begin them again."""
        self._forget(list(self._all()))
        self._deadlines.clear()
        self._troubled.clear()

    def _all(self) -> list[FetchSession]:
        return [session for sessions in self._state.sessions.values() for session in sessions]

    def _forget(self, sessions: Iterable[FetchSession]) -> None:
        for session in sessions:
            if session.waiting is not None:
                self._send_away(session)
            self._drop(session)

    def _end(self, session: FetchSession, refused: Refused) -> None:
        if session.waiting is not None:
            self._state.refuse(self._stop_waiting(session).reply_to, refused)
        self._drop(session)

    def _drop(self, session: FetchSession) -> None:
        state = self._state
        state.sessions[session.name].remove(session)
        if not state.sessions[session.name]:
            del state.sessions[session.name]
        state.sessions_changed += 1
        self._scans.pop(session, None)


def _is_unread(topic: Topic, name: bytes) -> bool:
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        return False
    return subscription.acked.cursor < topic.visible_end or subscription.leases is not None


def _is_waited_for(until_s: float, _: int, session: FetchSession) -> bool:
    return session.waiting is not None and bool(session.waiting.deadline_s <= until_s)


def _frames(blobs: list[Buffer]) -> tuple[Buffer, ...]:
    """Return batches in as few frames as they may travel in, in their order, without copying large ones."""
    frames: list[Buffer] = []
    small: list[Buffer] = []
    for blob in blobs:
        if len(blob) < _JOINED_BELOW_BYTES:
            small.append(blob)
            continue
        if small:
            frames.append(b"".join(small))
            small = []
        frames.append(blob)
    if small:
        frames.append(b"".join(small))
    return tuple(frames)
