"""Transactions on their way: one at a time, numbered, sent again until the broker has said what became of it.

A transaction is never given up once it was sent. Whoever waits for it is told, after a while, that its outcome is not
known yet; the same request stays under way, with the same number, and the next transaction waits until it is answered.
So the answer that counts is the first, nothing overtakes, and nothing is done twice. A consumer that closes, dies or
loses its lease meanwhile does no harm: its messages are acked by the transaction, or go to others, who put anew.
"""

from __future__ import annotations

from clarion.model.errors import (
    ClarionError,
    InvalidRequest,
    LeaseLost,
    PermanentError,
    PublisherExpired,
    TimedOut,
)
from clarion.session.exchange import Reply
from clarion.subscriber.claim import Steps
from clarion.subscriber.drafts import Draft, Stamps
from clarion.subscriber.steps import Ports
from clarion.wire import bodies
from clarion.wire.codes import Code, error_of
from clarion.wire.frames import Kind

_USES_NUMBER = frozenset({
    Code.LEASE_LOST, Code.CONFLICT, Code.NOT_SUBSCRIBED, Code.NO_SUBSCRIBER, Code.TOO_LARGE, Code.TAKEN_OVER,
    Code.ALREADY_DONE,
})  # fmt: skip
_IN_DOUBT = (
    "This transaction was sent more than once, and whether it was done cannot be told any more. Where it acks a"
    " message it is safe to do it again: what is acked already is refused"
)
_SHOWN_S = 0.01  # for what is held to be with the broker, before it is asked again


class Commit:
    """One transaction on its way, and what became of it."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.done = False
        self.error: ClarionError | None = None
        self.refusal: ClarionError | None = None  # the broker's last "not now"
        self.may_be_done = False  # a copy of it was sent that no answer is known to
        self.offsets: tuple[int, ...] = ()
        self.versions: tuple[int, ...] = ()


class Transacting:
    """One subscriber's transactions."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._stamps = Stamps()
        self._registering = False
        self._register_error: ClarionError | None = None
        self._identity: bodies.Registered | None = None
        self._number = 0
        self._current: Commit | None = None
        self._request: tuple[bodies.Transact, bytes] | None = None
        self._again_at_s: float | None = None
        self.committed = 0

    def committing(self, commit: Commit, timeout_s: float) -> Steps[None]:
        """Send a transaction and wait for the answer; raises where it was refused, and then nothing of it was done."""
        deadline_s = self._ports.clock_s() + timeout_s
        try:
            yield from self._getting_ready(commit, deadline_s)
            for claim, _, _ in commit.draft.acks():
                claim.check()
            self._pack(commit.draft)
        except BaseException:
            self.abandon(commit)
            raise
        self._send()
        yield from self.waiting(commit, deadline_s)

    def abandon(self, commit: Commit) -> None:
        """It is not sent after all: its messages are whose they were."""
        if self._current is commit:
            self._current = None
        commit.error = PermanentError("this transaction was not sent; nothing of it was done")
        commit.done = True
        self._end_claims(commit.draft, False)
        self._ports.on_change()

    def waiting(self, commit: Commit, deadline_s: float) -> Steps[None]:
        """Wait for the answer to what was sent."""
        if not (yield from self._ports.until(lambda: commit.done, deadline_s)):
            unknown = "the outcome of this transaction is not known yet; it stays under way, and result() waits for it"
            if commit.refusal is not None:
                raise type(commit.refusal)(f"{unknown}. The broker's last word: {commit.refusal}")
            raise TimedOut(f"{self._ports.url} did not answer in time: {unknown}")
        if commit.error is not None:
            raise commit.error.again()

    # Who transacts.

    def _getting_ready(self, commit: Commit, deadline_s: float) -> Steps[None]:
        """Be the only transaction, have a publisher's id, and know how much the broker takes."""
        if not (yield from self._ports.until(lambda: self._current is None, deadline_s)):
            raise TimedOut("an earlier transaction is not answered yet; nothing of this one was done")
        self._current = commit
        self._register_error = None
        self._register()

        def is_ready() -> bool:
            return self._register_error is not None or self._identity is not None

        if not (yield from self._ports.until(is_ready, deadline_s)):
            raise TimedOut(f"{self._ports.url} did not answer in time; nothing of this transaction was done")
        if self._register_error is not None:
            raise self._register_error

    def _register(self) -> None:
        if self._identity is None and not self._registering:
            self._registering = True
            self._ports.greet(self._on_greeted)

    def _on_greeted(self, error: ClarionError | None) -> None:
        if error is None:
            body = bodies.Register(self._ports.nonce(), self._ports.count.known or 0)
            self._ports.ask(Kind.REGISTER, body, self._on_registered)
        else:
            self._registering = False
            self._register_error = error
            self._ports.on_change()

    def _on_registered(self, reply: Reply) -> None:
        refusal = reply.refusal()
        if refusal is not None and refusal.code == Code.STALE:  # an id that an earlier copy got is nobody's
            self._ports.count.start_over(refusal)
            self._on_greeted(None)
            return
        self._registering = False
        again_s = reply.again_after_s()
        try:
            self._identity = reply.read(bodies.Registered)
            self._number = 0
            if self._request is not None:  # a new id for a transaction that its old one was too old for
                assert self._current is not None
                self._pack(self._current.draft)
                self._send()
        except ClarionError as error:
            if again_s is not None:
                self._again_at_s = self._ports.clock_s() + again_s
            elif self._request is not None:
                self._end(error)
            else:
                self._register_error = error
        self._ports.on_change()

    # On the way.

    def _pack(self, draft: Draft) -> None:
        assert self._identity is not None
        assert self._ports.welcome is not None
        max_bytes = self._ports.welcome.max_batch_bytes
        try:
            self._request = draft.pack(self._identity, self._number + 1, self._stamps, self._ports.unix_s(), max_bytes)
        except (TypeError, OverflowError) as error:
            raise InvalidRequest(f"this transaction cannot be packed, and was not sent: {error}") from error
        self._number += 1

    def _send(self) -> None:
        assert self._request is not None
        body, blob = self._request
        self._send_again(body, blob)

    def _send_again(self, body: bodies.Transact, blob: bytes) -> None:
        self._ports.ask(Kind.TRANSACT, body, lambda reply: self._on_reply(body, reply), (blob,))

    def _on_reply(self, body: bodies.Transact, reply: Reply) -> None:
        commit = self._current
        if commit is None or self._request is None or self._request[0] is not body:
            return
        refusal = reply.refusal()
        again_s = reply.again_after_s()
        commit.may_be_done = commit.may_be_done or reply.times_sent > 1
        if refusal is None:
            self._take_answer(commit, reply)
        elif refusal.code == Code.SHOW_HELD:
            for claim, _, _ in commit.draft.acks():
                if claim.error is None:
                    claim.reading.show(refusal.expected)
            self._again_at_s = self._ports.clock_s() + _SHOWN_S
        elif again_s is not None and refusal.code != Code.GAP:
            commit.refusal = reply.error()
            self._again_at_s = self._ports.clock_s() + again_s
        elif refusal.code == Code.PUBLISHER_EXPIRED:
            self._identity = None
            if commit.may_be_done:
                self._end(PublisherExpired(f"{refusal.text}. {_IN_DOUBT}"))
            else:  # it was refused each time it was sent, and is sent as what it was not: a new publisher's
                self._register()
        else:
            self._end(error_of(refusal.code, refusal.text), keeps_id=refusal.code in _USES_NUMBER)
        self._ports.on_change()

    def _take_answer(self, commit: Commit, reply: Reply) -> None:
        try:
            transacted = reply.read(bodies.Transacted)
        except ClarionError as error:
            self._end(error)
            return
        if transacted.code:
            self._end(error_of(transacted.code, transacted.text), keeps_id=transacted.code in _USES_NUMBER)
            return
        commit.offsets = commit.draft.offsets_of(transacted.offsets)
        commit.versions = transacted.versions
        self.committed += 1
        self._end(None, keeps_id=True)

    def _end(self, error: ClarionError | None, *, keeps_id: bool = False) -> None:
        """It is known what became of it. An id whose next number is in doubt is not used again."""
        commit = self._current
        assert commit is not None
        self._current = self._request = self._again_at_s = None
        commit.error = error
        commit.done = True
        self._end_claims(commit.draft, error is None)
        if isinstance(error, LeaseLost):
            for claim in {claim for claim, _, _ in commit.draft.acks()}:
                claim.reading.lose(claim, str(error))
        if not keeps_id and self._identity is not None:
            self._ports.ask(Kind.FORGET, bodies.Forget(self._identity.publisher), lambda _reply: None)
            self._identity = None

    def _end_claims(self, draft: Draft, done: bool) -> None:
        for claim, start, stop in draft.acks():
            claim.reading.end_transaction(claim, start, stop, done)

    def pump(self, now_s: float) -> float | None:
        """Send again what was refused for a time that is over; give when to come back."""
        if self._again_at_s is None:
            return None
        if now_s < self._again_at_s:
            return self._again_at_s
        self._again_at_s = None
        if self._identity is None:
            self._register()
        elif self._request is not None:
            self._send_again(*self._request)
        return None

    def went_back(self) -> None:
        """The publisher's id was of a store that is not there any more."""
        self._identity = None

    # Leaving.

    def finishing(self, deadline_s: float) -> Steps[None]:
        """Wait for what is under way."""
        yield from self._ports.until(lambda: self._current is None, deadline_s)

    def forgetting(self, deadline_s: float) -> Steps[None]:
        """Have the broker forget the publisher, unless it may still have something to answer."""
        if self._identity is None or self._current is not None:
            return
        forgotten: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            forgotten.append(reply)
            self._ports.on_change()

        self._ports.ask(Kind.FORGET, bodies.Forget(self._identity.publisher), on_reply)
        yield from self._ports.until(lambda: bool(forgotten), deadline_s)
