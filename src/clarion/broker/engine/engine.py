"""The engine: one request, commit or tick in; replies and groups of changes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clarion.broker.engine.admin.administering import Administering
from clarion.broker.engine.admin.reporting import Reporting
from clarion.broker.engine.deciding import Deciding
from clarion.broker.engine.keep.housekeeping import Housekeeping
from clarion.broker.engine.keep.removing import forget_deleted
from clarion.broker.engine.keep.retention import Retention
from clarion.broker.engine.limits import FULL_RETRY_S, Limits
from clarion.broker.engine.notices import Notice
from clarion.broker.engine.publish.delaying import Delaying
from clarion.broker.engine.publish.putting import Putting
from clarion.broker.engine.publish.staging import Staging
from clarion.broker.engine.share.burying import Burying
from clarion.broker.engine.share.returning import Returning
from clarion.broker.engine.share.reviving import Reviving
from clarion.broker.engine.share.sharing import Sharing
from clarion.broker.engine.state import Group, Now, Reply, State
from clarion.broker.engine.subscribe.getting import Getting
from clarion.broker.engine.subscribe.patterns import Patterns
from clarion.broker.engine.subscribe.subscribing import Subscribing
from clarion.broker.engine.topics import Peer, Waiter
from clarion.broker.engine.transacting import Transacting
from clarion.store.port import HistoryRow, Store
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import DECIDED_KINDS, OLDEST_VERSION, PROTOCOL_VERSION, Kind, Request

_CLOCK_EVERY_S = 30.0  # that the time is noted, as long as there is something to commit


class Engine:
    """Decides everything the broker does; performs nothing.

    The serving loop hands in requests, takes groups of changes to commit, one at a time, and says when they
    are on disk. Nothing is delivered or acknowledged before that.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits | None = None,
        *,
        start: bytes = b"",
        more_stats: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._more_stats = more_stats
        self._start = start
        self._seen = Now(0.0, 0)
        self._clock_noted_s = -_CLOCK_EVERY_S
        self._state = State(store, limits or Limits())
        self._deciding = Deciding(self._state)
        self._delaying = Delaying(self._state)
        self._putting = Putting(self._state, self._delaying)
        self._subscribing = Subscribing(self._state)
        burying = Burying(self._state, self._subscribing)
        self._returning = Returning(self._state, self._subscribing, burying)
        self._sharing = Sharing(self._state, self._subscribing, self._returning)
        self._getting = Getting(self._state, self._subscribing, self._sharing)
        self._transacting = Transacting(self._state, self._putting, self._getting)
        self._putting.on_publisher_gone = self._transacting.drop_publisher
        self._reviving = Reviving(self._state, self._returning)
        self._staging = Staging(self._state, self._putting)
        self._patterns = Patterns(self._state, self._subscribing)
        self._housekeeping = Housekeeping(
            self._state,
            self._getting,
            self._sharing,
            self._putting,
            self._delaying,
            self._staging,
            self._patterns,
            Retention(self._state, self._subscribing, self._returning),
        )
        self._reporting = Reporting(self._state)
        self._handlers_of_batches: dict[int, Any] = {
            Kind.PUT: self._putting.put,
            Kind.TRANSACT: self._transacting.transact,
            Kind.STAGE: self._staging.stage,
        }
        self._handlers = self._other_handlers()
        self._handlers |= {kind: self._deciding.once(self._handlers[kind], kind) for kind in DECIDED_KINDS}
        self._begin()

    def _begin(self) -> None:
        """Have it on disk that the broker begins here, unless it is."""
        state = self._state
        self._timeline = state.identity.timeline
        self._left: set[int] = set()  # timelines that were left, or met, since
        if self._start and not any(row.start == self._start for row in state.store.history()):
            state.open.changes.history.append(HistoryRow(self._start, self._timeline))

    def _other_handlers(self) -> dict[int, Any]:
        administering = Administering(self._state, self._subscribing, self._sharing, self._returning)
        return {
            Kind.SUBSCRIBE: self._subscribing.subscribe,
            Kind.UNSUBSCRIBE: self._subscribing.unsubscribe,
            Kind.ATTACH: self._getting.attach,
            Kind.GET: self._getting.get,
            Kind.ACK: self._getting.ack,
            Kind.TAKE: self._sharing.take,
            Kind.RENEW: self._sharing.renew,
            Kind.RETURN: self._sharing.give_back,
            Kind.DETACH: self._sharing.detach,
            Kind.DEAD: self._reviving.dead,
            Kind.REGISTER: self._putting.register,
            Kind.OPEN: self._putting.open,
            Kind.FORGET: self._putting.forget,
            Kind.HELLO: self._hello,
            Kind.COMMIT_STAGED: self._staging.commit,
            Kind.MATCHES: self._patterns.matches,
            Kind.CONFIGURE: administering.configure,
            Kind.TOPICS: administering.topics,
            Kind.DESCRIBE: administering.describe,
            Kind.SEEK: administering.seek,
            Kind.PURGE: administering.purge,
            Kind.DELETE: administering.delete,
            Kind.READ: administering.read,
            Kind.STATE: administering.state,
            Kind.FIND_OFFSET: administering.find_offset,
            Kind.STATS: self._stats,
            Kind.REPORT: self._reporting.report,
        }

    def handle(self, peer: Peer, request: Request, now: Now) -> None:
        """Take one request; what is to be answered at once is in `take_replies`."""
        self._seen = now
        self._state.counters["requests"] += 1
        waiter = Waiter(peer, request.request_id)
        if request.blob is not None:
            self._handlers_of_batches[request.kind](waiter, request.body, request.blob, now)
        else:
            self._handlers[request.kind](waiter, request.body, now)

    def refuse(self, peer: Peer, request_id: int, code: int, text: str) -> None:
        """Answer INVALID to what could not be understood."""
        self._state.counters["invalid"] += 1
        self._state.say(Waiter(peer, request_id), Kind.INVALID, bodies.Refused(code, text))

    def tick(self, now: Now) -> None:
        """Do the periodic work that is due."""
        self._housekeeping.tick(now)

    def stalled(self, seconds: float) -> None:
        """Say that the broker itself stood still for a while, so that nobody else is blamed for it."""
        self._sharing.stalled(seconds)

    def next_deadline_s(self) -> float:
        """Give when `tick` should be called next, on the monotonic clock."""
        return self._housekeeping.next_deadline_s()

    def take_chore(self) -> bool:
        """Tell whether the store should be given time to look after itself, on the committing thread."""
        return self._housekeeping.take_chore()

    def take_replies(self) -> list[Reply]:
        """Give the replies to send, in order, and forget them."""
        replies, self._state.out = self._state.out, []
        return replies

    def uncommitted_bytes(self) -> int:
        """Give the bytes of batches taken that are not on disk yet."""
        state = self._state
        return state.open.bytes + (state.in_flight.bytes if state.in_flight else 0)

    def take_group(self) -> Group | None:
        """Give what is to be committed next; None when there is nothing or a commit is under way."""
        state = self._state
        if state.in_flight is not None or not state.open:
            return None
        state.write_notes()
        if self._seen.monotonic_s >= self._clock_noted_s + _CLOCK_EVERY_S:
            self._clock_noted_s, state.open.changes.clock_us = self._seen.monotonic_s, self._seen.unix_us
        group, state.open = state.open, Group()
        for key, subscription in group.dirty.items():
            group.changes.subscriptions[key] = subscription.to_row()
        state.in_flight = group
        return group

    def committed(self, group: Group, now: Now) -> None:
        """The group is on disk: show its batches, deliver them, and only then answer those who put them."""
        state = self._state
        assert state.in_flight is group
        state.in_flight = None
        state.counters["commits"] += 1
        if group.changes.history:
            state.identity = state.store.identity
        for nonce in [row.nonce for row in group.changes.publishers.values()]:
            state.registered.pop(nonce, None)
        if group.changes.count:
            state.durable_count = group.changes.count
            self._deciding.committed(group.changes.decisions)
        grown = {}
        for topic, _, _, batch in group.puts:
            if batch is not None:
                topic.visible_end = batch.first_offset + batch.count
                topic.visible_bytes = batch.bytes_total
                state.remember(topic, batch)
                state.counters["messages_stored"] += batch.count
                state.counters["bytes_stored"] += len(batch.data)
                state.counters["batches_stored"] += 1
                grown[topic] = True
        for topic in grown:
            if topic.waiting:
                self._getting.wake(topic, now)
            if topic.takers:
                self._sharing.wake(topic, now)
        for topic, writer, receipt, _ in group.puts:
            if writer is not None and receipt is not None:
                for waiter in writer.pending.pop(receipt.number, ()):
                    self._putting.answer(waiter, topic, writer, receipt, now)
        self._transacting.committed(group)
        self._sharing.committed(group, now)
        state.out.extend(group.replies)
        for topic in group.trimmed:
            row = state.store.topic(topic.name)
            if row is not None:
                later = state.open.changes.trims.get(topic.number)  # what the next group trims is promised to nobody
                topic.first_offset = max(row.first_offset, later.below) if later else row.first_offset
                topic.stored_bytes = row.stored_bytes + topic.bytes_total - row.bytes_total
        forget_deleted(state, group)
        self._delaying.committed(group)
        self._staging.committed(group)
        self._patterns.committed(group, now)
        for topic in group.topics:
            topic.uncommitted -= 1

    def commit_failed(self, group: Group, code: Code, text: str) -> None:
        """Nothing of the group was kept: forget it and all that was taken since, and tell everybody to try again."""
        state = self._state
        assert state.in_flight is group
        state.counters["commits_failed"] += 1
        self._getting.answer_all()
        self._sharing.forget_all()
        for failed in (group, state.open):
            self._transacting.failed(failed, code, text)
            for _, writer, receipt, _ in failed.puts:
                if writer is not None and receipt is not None:
                    for waiter in writer.pending.pop(receipt.number, ()):
                        state.refuse(waiter, Kind.REFUSED, code, text, retry_after_s=FULL_RETRY_S)
            for reply in failed.replies:
                state.refuse(Waiter(reply.peer, reply.request_id), Kind.REFUSED, code, text, retry_after_s=FULL_RETRY_S)
        trims = {topic.name for topic in (*state.read_topics, *group.trimmed, *state.open.trimmed)}
        state.forget_all()
        self._deciding.forget_all()
        self._transacting.forget_all()
        self._delaying.forget_all()
        self._staging.forget_all()
        self._patterns.failed(code, text)
        self._begin()
        state.free_bytes = 0  # until housekeeping looks again: acks and trims now go without puts that do not fit
        for name in trims:  # a full disk needs them more than ever
            state.find_topic(name, 0.0)
        state.notices.trouble(code, f"nothing of a commit was kept: {text}")

    def _hello(self, waiter: Waiter, body: bodies.Hello, now: Now) -> None:
        state = self._state
        version = min(body.newest_version, PROTOCOL_VERSION)
        if version < max(body.oldest_version, OLDEST_VERSION):
            text = f"this broker speaks protocol versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"
            state.refuse(waiter, Kind.INVALID, Code.VERSION, text)
            return
        identity, limits = state.identity, state.limits
        lost = bool(body.seen_start) and not self._is_of_here(body)
        if lost and body.seen_store == identity.store_uuid:
            self._leave_timeline(body)
        welcome = bodies.Welcome(
            version, identity.broker, identity.store_uuid, self._timeline,
            limits.max_batch_bytes, limits.max_in_flight, limits.max_get_bytes, self._start, lost=lost,
            count=state.durable_count,
        )  # fmt: skip
        state.say_when_durable(waiter, Kind.ACK, welcome)

    def _is_of_here(self, seen: bodies.Hello) -> bool:
        """Tell whether what a client has seen is of this store's past."""
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

    def _stats(self, waiter: Waiter, body: bodies.AskStats, now: Now) -> None:
        self._state.say(waiter, Kind.ACK, bodies.Stats({**self.stats(), "publishers": self._reporting.publishers(now)}))

    def stats(self) -> dict[str, Any]:
        """Give the counters since the start, and what is held now."""
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
            **self._more_stats(),
        }
