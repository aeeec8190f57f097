"""A transaction as the application sees it: acks, puts and named states, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from clarion.model.arguments import as_headers, whole
from clarion.model.errors import ClarionError, PermanentError
from clarion.model.names import reply_address, to_bytes
from clarion.subscriber.claim import Owner, Steps
from clarion.subscriber.drafts import Draft
from clarion.subscriber.messages import Message, MessageBatch, check_message
from clarion.subscriber.steps import Ports
from clarion.subscriber.transacting import Commit, Transacting
from clarion.wire.timestamps import Timestamp, due_us, ttl_ms

_TextHeaders = Mapping[str, bytes | str]


class _Gathering:
    """What is the same for threads and asyncio: all but committing."""

    def __init__(self, owner: Owner, ports: Ports, transacting: Transacting, *, keeper: object = None) -> None:
        self._keeper = keeper  # the subscriber, which lives as long as its transactions do
        self._owner = owner
        self._ports = ports
        self._transacting = transacting
        self._draft = Draft()
        self._commit = Commit(self._draft)
        self._ended = False

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: _TextHeaders | None = None,
        *,
        ttl_s: float | None = None,
        deliver_at: Timestamp | None = None,
    ) -> None:
        """Have a message put, as Publisher.put does."""
        self._check_open()
        self._draft.put(
            to_bytes(topic, "topic"),
            to_bytes(payload, "payload"),
            None if key is None else to_bytes(key, "key"),
            as_headers(headers),
            ttl_ms(ttl_s),
            None if deliver_at is None else due_us(deliver_at),
        )

    def ack(self, message: Message | MessageBatch) -> None:
        """Have messages acked. From now on nothing else acks them: where the transaction is not committed, ack or nack
        them, or give them to another one. Raises LeaseLost where they were taken away."""
        self._check_open()
        part = message.alone() if isinstance(message, Message) else message
        if not isinstance(part, MessageBatch):
            raise TypeError(f"a transaction acks a Message or a MessageBatch at a time, not {type(message).__name__}")
        claim = part._claimed()
        start, stop = part.offsets.start, part.offsets.stop
        self._owner.do(lambda: claim.reading.lend_to_transaction(claim, start, stop))
        self._draft.ack(claim, start, stop)

    def set(self, name: bytes | str, value: bytes | str | None, *, expect: int | None = None) -> None:
        """Have a named state set, or with None removed; only where it has the version `expect` (0: where it is not
        there), if that is given. Otherwise the commit raises VersionConflict."""
        self._check_open()
        version = None if expect is None else whole(expect, "expect")
        self._draft.set(to_bytes(name, "name"), None if value is None else to_bytes(value, "value"), version)

    def reply(
        self,
        message: Message,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: _TextHeaders | None = None,
    ) -> None:
        """Have a reply put to a message that is a request; PermanentError where it is none."""
        check_message(message)
        topic, needed = reply_address(message.headers)
        self.put(topic, payload, key, {**(as_headers(headers) or {}), **needed})

    @property
    def offsets(self) -> tuple[int, ...]:
        """Once committed: the offset of each message put, in order; -1 for a delayed one."""
        return self._commit.offsets

    @property
    def versions(self) -> tuple[int, ...]:
        """Once committed: the version of each state set, in order; 0 for a removed one."""
        return self._commit.versions

    def _check_open(self) -> None:
        self._ports.check_usable()
        if self._ended:
            raise PermanentError("this transaction is over; begin another one")

    def _committing(self) -> Steps[None]:
        self._check_open()
        self._ended = True
        if self._draft:
            yield from self._transacting.committing(self._commit, self._ports.timeout_s)

    def _abandon(self) -> None:
        self._ended = True
        try:
            self._owner.do(lambda: self._transacting.abandon(self._commit))
        except ClarionError:  # the client is closed, and holds nothing any more
            pass

    def _waiting(self, timeout_s: float | None) -> Steps[None]:
        if not self._ended:
            raise PermanentError("this transaction is not committed: leave its block first")
        patience_s = self._ports.timeout_s if timeout_s is None else timeout_s
        if self._draft:
            yield from self._transacting.waiting(self._commit, self._ports.clock_s() + patience_s)


class Transaction(_Gathering):
    """Use it as `with subscriber.transaction() as tx`. Left normally it is committed, and raises where that was
    refused: then nothing of it was done. Left by an exception, nothing is done.

    Where the broker does not answer in time it raises TimedOut (or its last "not now", as TopicFull): the outcome is
    not known yet, the transaction stays under way, and the next one waits for it. `result` waits again.
    """

    def result(self, timeout_s: float | None = None) -> Transaction:
        """Wait for the outcome, and raise it where nothing was done."""
        self._owner.run(self._waiting(timeout_s))
        return self

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
        else:
            self._owner.run(self._committing())


class AsyncTransaction(_Gathering):
    """As Transaction: `async with subscriber.transaction() as tx`."""

    async def result(self, timeout_s: float | None = None) -> AsyncTransaction:
        """Wait for the outcome, and raise it where nothing was done."""
        await self._owner.run(self._waiting(timeout_s))
        return self

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
        else:
            await self._owner.run(self._committing())
