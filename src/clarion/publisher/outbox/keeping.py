"""Sending from an outbox: what is put is on disk before it is numbered, numbered on disk before it is sent, and
removed after the broker has it.

Numbers are good with one store of one broker, for as long as that knows the publisher. When they are not any more, what
was surely never taken is numbered anew; what may have been is in doubt, and set aside.
"""

from __future__ import annotations

from math import inf
from typing import Any

from clarion.model.errors import ClarionError, InvalidRequest, NoTopic, PublisherExpired
from clarion.publisher.lanes import Lane
from clarion.publisher.outbox.lanes import KeptLane
from clarion.publisher.outbox.outbox_rows import Found, Home
from clarion.publisher.outbox.saving import Saving
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.sending import USES_NUMBER
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.batch_builder import HEADER_BYTES
from clarion.wire.codes import RETRIED, Code

_REGISTER_AGAIN_S = 5.0


class KeptSending(Saving):
    """The publisher with an outbox, without its threads."""

    def __init__(self, *args: Any, found: Found, **settings: Any) -> None:
        super().__init__(*args, found=found, **settings)
        self._waits_for_welcome = True  # there may be something to send before anybody asked for anything
        self._known_max_batch_bytes = found.max_batch_bytes
        self._old_publishers = {lane.row.publisher for lane in found.lanes if lane.row.publisher}

    def greet(self) -> None:
        """Ask the broker for its version, limits and identity."""
        super().greet()
        if self._known_max_batch_bytes:
            self.max_batch_bytes = self._known_max_batch_bytes
            self.batch_bytes = min(self._usual_batch_bytes, self.max_batch_bytes - HEADER_BYTES)

    def _meet(self, welcome: bodies.Welcome) -> None:
        """Numbers belong to one store. Before another one is sent anything, what it may not have goes aside."""
        super()._meet(welcome)
        self._here = Home(welcome.broker, welcome.store_uuid, welcome.timeline)
        if self._home == self._here:
            self._forgets |= self._old_publishers - self.identities()
        else:
            self._identity = None
            for lane in self._kept_lanes():
                if self._has_numbers(lane):
                    self._trouble(lane, InvalidRequest("this is another broker, or another store of it"))
                else:
                    lane.start_anew()
        self._old_publishers = set()

    def _fail_too_large(self) -> None:
        """The broker says it itself of each batch: that uses a number up, as it is on disk."""

    def _on_put_reply(self, lane: Lane, sheaf: OutgoingBatch, reply: Reply) -> None:
        assert isinstance(lane, KeptLane)
        assert isinstance(sheaf, DurableBatch)
        refusal = reply.refusal()
        if sheaf.done or lane.flying.get(sheaf.number) is not sheaf:
            return
        self._dirty[lane] = None
        if refusal is None or refusal.code in USES_NUMBER:
            super()._on_put_reply(lane, sheaf, reply)
            return
        error = reply.error()
        assert error is not None
        overtaken = refusal.code == Code.GAP and refusal.expected < next(iter(lane.flying))
        sheaf.uncertain |= reply.times_sent > 1  # whatever is answered when it is sent again
        sheaf.surely_out = refusal.code in RETRIED or isinstance(error, PublisherExpired | NoTopic)
        sheaf.answered = True
        if refusal.code in RETRIED and not overtaken:
            super()._on_put_reply(lane, sheaf, reply)
            return
        if overtaken:
            error = InvalidRequest(f"the broker lost what it had of this topic: {error}")
        if refusal.code != Code.NO_TOPIC:  # in the topic that has the name next, its numbers begin with 1
            self._leave_identity(lane.identity)
        self._trouble(lane, error)
        self._on_change()

    def _open(self, now_s: float) -> float:
        return super()._open(now_s) if self._settled else inf

    def _on_opened(self, lanes: list[Lane], reply: Reply) -> None:
        super()._on_opened(lanes, reply)
        for lane in lanes:
            assert isinstance(lane, KeptLane)
            self._look_at(lane)  # what is saved can be numbered now

    def _refused_open(self, lane: Lane, error: ClarionError) -> None:
        assert isinstance(lane, KeptLane)
        lane.refuse(error)
        for sheaf in lane.numbered:
            sheaf.aside = self._why_aside(sheaf, error)
        self._dirty[lane] = None

    def _leave_identity(self, identity: bodies.Registered | None) -> None:
        """Number nothing more as this publisher, which the broker does not know any more, or not as we do."""
        if self._identity == identity:
            self._identity = None
        for lane in self._kept_lanes():
            if lane.identity == identity and not self._has_numbers(lane):
                lane.start_anew()

    def _trouble(self, lane: KeptLane, error: ClarionError) -> None:
        """The lane's numbers do not fit the broker's any more: nothing is sent until it is numbered anew."""
        lane.trouble = lane.trouble or error
        self._dirty[lane] = None
        self._greet_again()

    def _greet_again(self) -> None:
        """Ask who is there before anything more is numbered or sent."""
        if self._settled:
            self._settled = False
            self._here = None
            self._ask_hello()

    def went_back(self, error: ClarionError) -> None:
        """Ask who is there: what was numbered for another store, or another timeline, is in doubt then."""
        self._greet_again()
        self.failures.tell(error)
        self._on_change()

    def give_up(self, error: ClarionError) -> None:
        """Tell everybody who waits; what is saved stays in the outbox."""
        if self.broken is None:  # it cannot register now: that may change
            self.refusal = error
            for lane in self.lanes.values():
                lane.refusal = error
            self._register_at_s = self._clock_s() + _REGISTER_AGAIN_S
            return
        kept = type(error)(
            f"{error} (what was saved is kept in {self._name}: opening it again sends it, where it can be read)"
        )
        for lane in self._kept_lanes():
            for sheaf in lane.take_unsaved():
                self.buffered_bytes -= sheaf.memory_bytes
                self.failures.end(sheaf, error)
        for sheaf in list(self._live.values()):
            if not sheaf.done:
                self.failures.end(sheaf, kept)
        self._on_change()

    def pump(self, now_s: float) -> float | None:
        """Send what may be sent; give when to come back, if something waits for a time."""
        wanted = [super().pump(now_s)]
        if self._settled and self._identity is None and not self._registering:
            if now_s >= self._register_at_s:
                self._register()
            else:
                wanted.append(self._register_at_s)
        again_s = max(self._save_again_s, self._commit_again_s)
        if self.disk_error is not None and again_s > now_s:
            wanted.append(again_s)
        times = [at_s for at_s in wanted if at_s is not None]
        return min(times) if times else None

    def _on_registered(self, reply: Reply) -> None:
        super()._on_registered(reply)
        if self._identity is not None and self._home is not None and self._identity.broker != self._home.broker:
            self._identity = None  # somebody else answers than a moment ago
            self._greet_again()
        for lane in self._kept_lanes():
            self._look_at(lane)  # what is saved can be numbered now

    def _held_until_s(self, lane: Lane, now_s: float) -> float | None:
        assert isinstance(lane, KeptLane)
        if lane.trouble is not None or not self._settled:
            return inf
        return super()._held_until_s(lane, now_s)

    def _send_next(self, lane: Lane, now_s: float) -> int:
        sheaf = lane.take_next()
        lane.fly(sheaf, now_s)
        self._send(lane, sheaf)
        return sheaf.count

    def _send(self, lane: Lane, sheaf: OutgoingBatch) -> None:
        assert isinstance(sheaf, DurableBatch)
        sheaf.was_sent = True
        sheaf.answered = sheaf.surely_out = False
        super()._send(lane, sheaf)

    def _fail(self, sheaf: OutgoingBatch, error: ClarionError) -> None:
        assert isinstance(sheaf, DurableBatch)
        sheaf.aside = self._why_aside(sheaf, error)
        if sheaf.aside is not None:
            self.aside_messages += sheaf.count
            error = type(error)(f"{error}; it is kept aside in {self._name}")
        super()._fail(sheaf, error)

    def _why_aside(self, sheaf: DurableBatch, error: ClarionError) -> str | None:
        """Return why a sheaf that is refused for good is kept: where nobody has a receipt that could say so."""
        return str(error) if sheaf.is_found and not self.doubts.is_unread_reply(sheaf, error) else None
