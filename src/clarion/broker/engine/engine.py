"""The engine: one request, commit or tick in; replies and groups of changes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from clarion.broker.engine import decisions
from clarion.broker.engine.administration import Administration, Reports
from clarion.broker.engine.answers import Answer, Peer, Refused, Reply, ReplyTo
from clarion.broker.engine.clock import Now
from clarion.broker.engine.dead_letters import DeadLetters
from clarion.broker.engine.decisions import Changing
from clarion.broker.engine.delays import Delays
from clarion.broker.engine.fetches import Fetches
from clarion.broker.engine.foreign_puts import ForeignPuts
from clarion.broker.engine.gets import Gets
from clarion.broker.engine.interest import Interest
from clarion.broker.engine.leases import Leases
from clarion.broker.engine.limits import FULL_RETRY_S, Limits
from clarion.broker.engine.link_reads import LinkReads
from clarion.broker.engine.many_puts import ManyPuts
from clarion.broker.engine.notices import Notice
from clarion.broker.engine.patterns import Patterns
from clarion.broker.engine.puts import Puts
from clarion.broker.engine.retention import Retention
from clarion.broker.engine.staged_puts import StagedPuts
from clarion.broker.engine.state import (
    Decided,
    Delayed,
    DelaysReleased,
    ForeignDone,
    Group,
    Leasable,
    PutsTaken,
    PutTaken,
    Registered,
    SessionAttached,
    State,
    SubscriptionChanged,
    TopicDeleted,
    TransactionTaken,
    Trimmed,
)  # fmt: skip
from clarion.broker.engine.subscriptions import Subscriptions
from clarion.broker.engine.topic_log import on_trimmed
from clarion.broker.engine.tracks import Tracks
from clarion.broker.engine.transactions import Transactions
from clarion.store.port import HistoryRow, Identity, Store
from clarion.tracking.tracker import Tracker
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import DECIDED_KINDS, OLDEST_VERSION, PROTOCOL_VERSION, Kind, Request

_PUBLISHERS_EVERY_S = 60.0
_DISK_EVERY_S = 1.0
_CLOCK_EVERY_S = 30.0  # that the time is noted, as long as there is something to commit


class _Handler(NamedTuple):
    """How requests of a kind are taken: the check reads only, and returns a plan or raises Refused; then it is done."""

    check: Callable[..., Any]
    apply: Callable[[ReplyTo, Any, Now], None]


class Engine:
    """Decides everything the broker does; performs nothing.

    The serving loop hands in requests, takes groups of changes to commit, one at a time, and says when they
    are on disk. Nothing is delivered or acknowledged before that.
    """

    def __init__(
        self, store: Store, limits: Limits | None = None, *, start: bytes = b"", tracker: Tracker | None = None
    ) -> None:
        self._start = start
        self._seen = Now(0.0, 0)
        self._clock_noted_s = -_CLOCK_EVERY_S
        self._state = state = State(store, limits or Limits())
        self._delays = Delays(state)
        self.tracks = Tracks(state, tracker)
        self._subscriptions = Subscriptions(state, self.tracks)
        self._puts = Puts(state, self._subscriptions, self._delays)
        self._many_puts = ManyPuts(state, self._puts)
        self._staged_puts = StagedPuts(state, self._puts)
        self._dead_letters = DeadLetters(state, self._subscriptions)
        self._leases = Leases(state, self._subscriptions, self._dead_letters)
        self._gets = Gets(state, self._subscriptions)
        self._transactions = Transactions(state, self._subscriptions, self._puts)
        self._fetches = Fetches(state, self._subscriptions)
        self._patterns = Patterns(state, self._subscriptions, self._fetches)
        self._retention = Retention(state, self._subscriptions, self.tracks)
        self.foreign_puts = ForeignPuts(state, self._puts)
        self.link_reads = LinkReads(state, self._subscriptions)
        self.interest = Interest(state)
        self._trim_at_s = self._publishers_at_s = self._disk_at_s = 0.0
        self._commits_seen = -1
        self._store_waits = False
        self._administration = Administration(state, self._subscriptions)
        self._reports = Reports(state)
        self._handlers = {**self._handlers_of_messages(), **self._handlers_of_administrators()}
        self._effects = self._handlers_of_effects()
        self._begin()

    def _begin(self) -> None:
        """Have it on disk that the broker begins here, unless it is."""
        state = self._state
        self._timeline = state.identity.timeline
        self._left: set[int] = set()  # timelines that were left, or met, since
        if self._start and not any(row.start == self._start for row in state.store.history()):
            state.open.changes.history.append(HistoryRow(self._start, self._timeline))

    def _handlers_of_messages(self) -> dict[int, _Handler]:
        puts, subscriptions, leases = self._puts, self._subscriptions, self._leases
        return {
            Kind.PUT: _Handler(puts.check_put, puts.put),
            Kind.PUT_MANY: _Handler(self._many_puts.check_put_many, self._many_puts.put_many),
            Kind.TRANSACT: _Handler(self._transactions.check_transact, self._transactions.transact),
            Kind.STAGE: _Handler(self._staged_puts.check_stage, self._staged_puts.stage),
            Kind.COMMIT_STAGED: _Handler(self._staged_puts.check_commit, self._staged_puts.commit),
            Kind.REGISTER: _Handler(puts.check_register, puts.register),
            Kind.OPEN: _Handler(puts.check_open, puts.open),
            Kind.FORGET: _Handler(lambda body, _now: body, puts.forget),
            Kind.SUBSCRIBE: _Handler(self._patterns.check_subscribe, self._patterns.subscribe),
            Kind.UNSUBSCRIBE: _Handler(self._patterns.check_unsubscribe, self._patterns.unsubscribe),
            Kind.MATCHES: _Handler(self._patterns.check_matches, self._patterns.matching.ask),
            Kind.ATTACH: _Handler(subscriptions.check_attach, subscriptions.attach),
            Kind.ACK: _Handler(subscriptions.check_ack, subscriptions.ack),
            Kind.ACK_MANY: _Handler(subscriptions.check_ack_many, subscriptions.ack_many),
            Kind.GET: _Handler(self._gets.check_get, self._gets.get),
            Kind.BEGIN_FETCH: _Handler(self._fetches.check_begin, self._fetches.begin),
            Kind.FETCH: _Handler(self._fetches.check_fetch, self._fetches.fetch),
            Kind.TAKE: _Handler(leases.check_take, leases.take),
            Kind.RENEW: _Handler(leases.check_renew, leases.renew),
            Kind.RETURN: _Handler(leases.check_return, leases.take_back),
            Kind.DETACH: _Handler(leases.check_detach, leases.detach),
        }

    def _handlers_of_administrators(self) -> dict[int, _Handler]:
        administration, answer = self._administration, self._answer
        return {
            Kind.HELLO: _Handler(self._check_hello, self._hello),
            Kind.CONFIGURE: _Handler(administration.check_configure, administration.configure),
            Kind.SEEK: _Handler(administration.check_seek, administration.seek),
            Kind.PURGE: _Handler(administration.check_purge, administration.purge),
            Kind.DELETE: _Handler(administration.check_delete, administration.delete),
            Kind.DEAD: _Handler(self._dead_letters.check_dead, self._dead_letters.settle),
            Kind.TOPICS: _Handler(administration.check_topics, answer),
            Kind.DESCRIBE: _Handler(administration.check_describe, self._answer_when_durable),
            Kind.DESCRIBE_MANY: _Handler(administration.check_describe_many, self._answer_when_durable),
            Kind.STATE: _Handler(administration.check_state, answer),
            Kind.READ: _Handler(self._gets.check_read, self._gets.read),
            Kind.FIND_OFFSET: _Handler(self._gets.check_find_offset, answer),
            Kind.STATS: _Handler(self._check_stats, answer),
            Kind.REPORT: _Handler(self._reports.check_report, self._reports.report),
        }

    def _handlers_of_effects(self) -> dict[type, Callable[[Any, Now], object]]:
        state = self._state
        return {
            Reply: lambda effect, _now: state.out.append(effect),
            PutTaken: self._puts.on_put_taken,
            PutsTaken: self._many_puts.on_puts_taken,
            TransactionTaken: self._transactions.on_transaction_taken,
            Registered: lambda effect, _now: state.registered.pop(effect.nonce, None),
            Decided: lambda effect, _now: state.asked.pop(effect.nonce, None),
            Trimmed: lambda effect, _now: on_trimmed(state, effect),
            TopicDeleted: self._on_topic_deleted,
            SubscriptionChanged: self._on_subscription_changed,
            SessionAttached: self._fetches.on_attached,
            Leasable: self._leases.on_leasable,
            Delayed: self._on_delayed,
            DelaysReleased: self._delays.on_released,
            ForeignDone: lambda effect, _now: state.foreign_done.append(effect),
        }

    def handle(self, peer: Peer, request: Request, now: Now) -> None:
        """Take one request: check it, and do it or refuse it. What is answered at once is in `take_replies`."""
        self._seen = now
        self._state.counters["requests"] += 1
        kind, request_id, body, blob = request
        reply_to = ReplyTo(peer, request_id)
        check, apply = self._handlers[kind]
        try:
            if kind in DECIDED_KINDS and cast(Changing, body).as_of:
                decided = decisions.begin(self._state, reply_to, kind, cast(Changing, body))
                if decided is None:
                    return
                reply_to = decided
            plan = check(body, now) if blob is None else check(body, blob, now)
        except Refused as refused:
            self._state.refuse(reply_to, refused)
        else:
            apply(reply_to, plan, now)

    def refuse(self, peer: Peer, request_id: int, code: int, text: str) -> None:
        """Answer INVALID to what could not be understood."""
        self._state.counters["invalid"] += 1
        self._state.reply(ReplyTo(peer, request_id), Kind.INVALID, bodies.Refused(code, text))

    def _answer(self, reply_to: ReplyTo, plan: Answer, now: Now) -> None:
        self._state.reply(reply_to, *plan)

    def _answer_when_durable(self, reply_to: ReplyTo, plan: Answer, now: Now) -> None:
        self._state.reply_when_durable(reply_to, *plan)

    # On the loop's clock: the periodic jobs of the reliable service.

    def tick(self, now: Now) -> None:
        """Do the periodic work that is due."""
        self._seen = now
        now_s = now.monotonic_s
        self._gets.expire(now_s)
        self._fetches.tick(now)
        self._leases.tick(now)
        self._delays.tick(now)
        self._patterns.tick(now)
        if now_s >= self._disk_at_s:
            self._disk_at_s = now_s + _DISK_EVERY_S
            self._look_at_disk()
        if now_s >= self._trim_at_s:
            self._trim_at_s = now_s + self._state.limits.stale_msg_interval_s
            self._retention.trim_read(now)
        self._retention.sweep(now)
        if now_s >= self._state.next_unload_s():
            self._state.unload_coldest(now_s)
        if now_s >= self._publishers_at_s:
            self._publishers_at_s = now_s + _PUBLISHERS_EVERY_S
            self._puts.expire(now)
            self._staged_puts.expire(now)

    def next_deadline_s(self, *, may_commit: bool = True) -> float:
        """Return when `tick` should be called next, or, where that may be, a group be taken; on the monotonic clock."""
        own = min(self._trim_at_s, self._state.next_unload_s(), self._disk_at_s, self._retention.next_deadline_s())
        if may_commit and self._state.in_flight is None:
            own = min(own, self._state.open.patient_until_s)
        for part in (self._gets, self._fetches, self._leases, self._delays, self._patterns):
            deadline_s = part.next_deadline_s()
            own = own if deadline_s is None else min(own, deadline_s)
        return own

    def take_chore(self) -> bool:
        """Return, once, whether the store should look after itself on the committing thread: it had no commit to do it
        with, or has little room."""
        waits, self._store_waits = self._store_waits, False
        return waits

    def _look_at_disk(self) -> None:
        state = self._state
        state.free_bytes = state.store.free_bytes()
        idle, self._commits_seen = state.counters["commits"] == self._commits_seen, state.counters["commits"]
        self._store_waits = idle or state.free_bytes < 2 * state.limits.disk_reserve_bytes

    def stalled(self, seconds: float) -> None:
        """Say that the broker itself stood still for a while, so that nobody else is blamed for it."""
        self._leases.stalled(seconds)

    @property
    def identity(self) -> Identity:
        """Which broker this is, on which store."""
        return self._state.identity

    @property
    def foreign_is_done(self) -> bool:
        """Whether `take_foreign_done` has something."""
        return bool(self._state.foreign_done)

    def take_foreign_done(self) -> list[ForeignDone]:
        """Return what of other brokers is on disk here now, and forget it."""
        done, self._state.foreign_done = self._state.foreign_done, []
        return done

    def take_replies(self) -> list[Reply]:
        """Return the replies to send, in order, and forget them."""
        replies, self._state.out = self._state.out, []
        return replies

    def uncommitted_bytes(self) -> int:
        """Return the bytes of batches taken that are not on disk yet."""
        state = self._state
        return state.open.bytes + (state.in_flight.bytes if state.in_flight else 0)

    def take_group(self) -> Group | None:
        """Return what is to be committed next; None when there is nothing or a commit is under way."""
        state = self._state
        if state.in_flight is not None or not state.open:
            return None
        if state.open.can_wait and self._seen.monotonic_s < state.open.patient_until_s:
            return None
        state.write_notes()
        self._retention.trim_along(self._seen)
        if self._seen.monotonic_s >= self._clock_noted_s + _CLOCK_EVERY_S:
            self._clock_noted_s, state.open.changes.clock_us = self._seen.monotonic_s, self._seen.unix_us
        group, state.open = state.open, Group()
        group.close()
        state.in_flight = group
        return group

    def make_haste(self) -> None:
        """Have the next group wait for nothing: there will be no other."""
        self._state.open.patient_until_s = 0.0

    def committed(self, group: Group, now: Now) -> None:
        """The group is on disk: show its batches, deliver them, and only then do what else was to follow, in order."""
        state = self._state
        assert state.in_flight is group
        state.in_flight = None
        group.commit.is_done = True
        state.counters["commits"] += 1
        if group.changes.history:
            state.identity = state.store.identity
        if group.changes.count:
            state.durable_count = group.changes.count
        self._show(group, now)
        effects = self._effects
        for effect in group.on_durable:
            effects[type(effect)](effect, now)
        self._leases.serve_all(now)
        self._patterns.matching.tell_changed()
        self._fetches.serve_woken(now)
        for topic in group.topics:
            topic.uncommitted -= 1

    def _show(self, group: Group, now: Now) -> None:
        """Have the batches of a group seen, and delivered to those who wait."""
        state = self._state
        grown = {}
        messages = size = 0
        for topic, batch in group.shown:
            topic.visible_end = batch.first_offset + batch.count
            topic.visible_bytes = batch.bytes_total
            state.remember(topic, batch)
            messages += batch.count
            size += len(batch.data)
            grown[topic] = True
        state.counters["messages_stored"] += messages
        state.counters["bytes_stored"] += size
        state.counters["batches_stored"] += len(group.shown)
        for topic in grown:
            if topic.waiting:
                self._gets.wake(topic, now)
            if topic.takers:
                self._leases.wake(topic, now)
            if state.sessions:
                state.tell_sessions(topic)
        self._fetches.serve_woken(now)
        if self.tracks.tracker is not None:
            self.tracks.shown(group.shown)

    def _on_subscription_changed(self, effect: SubscriptionChanged, now: Now) -> None:
        self._patterns.matching.on_subscription_changed(effect, now)
        self.interest.on_changed(effect.topic)
        if effect.is_there:
            self._state.tell_sessions(effect.topic)
        elif effect.topic.name in self._state.link_topics.get(effect.name, ()):
            self._state.link_topics_lost.append((effect.name, effect.topic.name))

    def _on_delayed(self, effect: Delayed, now: Now) -> None:
        self.tracks.held_back(effect.topic, effect.key)
        self._delays.on_delayed(effect, now)

    def _on_topic_deleted(self, effect: TopicDeleted, now: Now) -> None:
        """Free the name of a topic whose deletion is on disk."""
        self._state.drop_topic(effect.topic)
        self._state.topic_count -= 1
        self._staged_puts.forget_all()  # with the topic went what was staged for it

    def commit_failed(self, group: Group, code: Code, text: str) -> None:
        """Nothing of the group was kept: forget it and all that was taken since, and tell everybody to try again."""
        state = self._state
        assert state.in_flight is group
        state.counters["commits_failed"] += 1
        self._gets.answer_all()
        self._fetches.answer_all()
        self._leases.forget_all()
        refused = Refused(code, text, retry_after_s=FULL_RETRY_S)
        lost = [*group.on_durable, *state.open.on_durable]
        for effect in lost:
            if isinstance(effect, Reply):
                state.refuse(ReplyTo(effect.peer, effect.request_id), refused)
            elif isinstance(effect, PutTaken | TransactionTaken):
                state.refuse(effect.reply_to, refused)
            elif isinstance(effect, PutsTaken) and effect.answer.left:
                effect.answer.left = 0  # once, though its batches may be in both groups
                state.refuse(effect.answer.reply_to, refused)
        trimmed = [effect.topic for effect in lost if isinstance(effect, Trimmed)]
        trims = {topic.name for topic in (*state.read_topics, *trimmed)} | set(self._retention.forget_all())
        patterns = state.patterns
        state.forget_all()
        self._patterns.failed(patterns, code, text)
        self.tracks.forget_topics()
        self._transactions.forget_all()
        self._delays.forget_all()
        self._staged_puts.forget_all()
        self._begin()
        state.free_bytes = 0  # until housekeeping looks again: acks and trims now go without puts that do not fit
        for name in trims:  # a full disk needs them more than ever
            state.find_topic(name, 0.0)
        state.notices.trouble(code, f"nothing of a commit was kept: {text}")

    # HELLO and STATS.

    def _check_hello(self, body: bodies.Hello, now: Now) -> tuple[int, bodies.Hello]:
        version = min(body.newest_version, PROTOCOL_VERSION)
        if version < max(body.oldest_version, OLDEST_VERSION):
            text = f"this broker speaks protocol versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"
            raise Refused(Code.VERSION, text)
        return version, body

    def _hello(self, reply_to: ReplyTo, plan: tuple[int, bodies.Hello], now: Now) -> None:
        state, (version, body) = self._state, plan
        identity, limits = state.identity, state.limits
        lost = bool(body.seen_start) and not self._is_of_here(body)
        if lost and body.seen_store == identity.store_uuid:
            self._leave_timeline(body)
        welcome = bodies.Welcome(
            version, identity.broker, identity.store_uuid, self._timeline,
            limits.max_batch_bytes, limits.max_in_flight, limits.max_get_bytes, self._start, lost=lost,
            count=state.durable_count,
        )  # fmt: skip
        state.reply_when_durable(reply_to, Kind.ACK, welcome)

    def _is_of_here(self, seen: bodies.Hello) -> bool:
        """Return whether what a client has seen is of this store's past."""
        store = self._state.store
        if seen.seen_store != self._state.identity.store_uuid:
            return False
        starts = [row for row in store.history() if row.start]
        its = [place for place, row in enumerate(starts) if row.start == seen.seen_start]
        if not its:  # either it is of a past that is gone, or of one that is too long ago to be known
            return bool(starts) and seen.seen_sequence < starts[0].sequence
        following = its[-1] + 1
        return seen.seen_sequence < (starts[following].sequence if following < len(starts) else store.sequence + 1)

    def _leave_timeline(self, seen: bodies.Hello) -> None:
        """The store went back behind what a client has seen: what comes from now on is another history, and has another
        timeline, so that nobody takes it for what was there."""
        state = self._state
        known = {row.timeline for row in state.store.history()} | self._left
        if seen.seen_timeline != self._timeline and seen.seen_timeline in known:
            return  # of one that was left already; only this client did not hear of it yet
        self._left |= {self._timeline, seen.seen_timeline}
        before, known = self._timeline, known | self._left
        self._timeline = int.from_bytes(self._start[:6]) or max(known)
        while self._timeline in known:
            self._timeline += 1
        if seen.seen_timeline != before:
            state.open.changes.history.append(HistoryRow(b"", seen.seen_timeline))
        state.open.changes.history.append(HistoryRow(self._start, self._timeline))
        state.counters["went_back"] += 1
        state.notices.tell(
            f"the store went back: a client has seen commit {seen.seen_sequence} of timeline {seen.seen_timeline}, and"
            f" that is not in this store, which is at commit {state.store.sequence}. Was an older copy restored? What"
            f" was stored after it is gone. This is timeline {self._timeline} from now on; clients are told"
        )

    def take_notices(self, now_s: float) -> list[Notice]:
        """Return what is to be told in the log by now, and forget it."""
        return self._state.notices.take(now_s)

    def _check_stats(self, body: bodies.AskStats, now: Now) -> Answer:
        return Answer(Kind.ACK, bodies.Stats({**self.stats(), "publishers": self._reports.publishers(now)}))

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start, and what is held now; the serving loop adds its own to the answer."""
        state = self._state
        return {
            **dict.fromkeys(("messages_stored", "messages_delivered", "commits", "refused", "invalid"), 0),
            **state.counters,
            "broker": f"{state.identity.broker:08x}",
            "topics": state.topic_count,
            "topics_in_memory": len(state.topics),
            "memory_bytes": state.cached_bytes,
            "waiting_gets": state.waiting_gets,
            "uncommitted_bytes": self.uncommitted_bytes(),
            "used_bytes": state.store.used_bytes(),
            "free_bytes": state.store.free_bytes(),
        }
