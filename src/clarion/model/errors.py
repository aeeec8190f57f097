"""The typed errors of the world. Each says what happened, what was kept and what to do."""

from __future__ import annotations

import copy
from typing import Self


class ClarionError(Exception):
    """Anything that can go wrong in Clarion."""

    def again(self) -> Self:
        """Return a copy to raise, where one error is told more than once. Raised itself, it would gather the traceback
        of everybody who heard of it, in each other's name, and keep whatever their frames hold."""
        copied = copy.copy(self)
        copied.__cause__ = self.__cause__
        return copied


class RetryableError(ClarionError):
    """The same call may succeed later; nothing was lost by the failure."""


class PermanentError(ClarionError):
    """The same call will fail again; change the request."""


class FatalError(ClarionError):
    """The broker must stop: going on would break a promise."""


# What a client may meet.


class BufferFull(RetryableError):
    """The publisher's buffer is at its bound; the message was not accepted.

    `accepted` counts those of a put_many that were, before the bound was met.
    """

    accepted = 0


class TimedOut(RetryableError):
    """No answer within the time given; the request may still take effect."""


class Unreachable(RetryableError):
    """No broker answers at this address."""


class TopicFull(RetryableError):
    """The topic holds as much as it may; the put was refused until readers catch up."""


class DiskFull(RetryableError):
    """The broker's disk has no room; the put was refused, nothing acked is lost."""


class Busy(RetryableError):
    """What was asked for is just being changed, as a topic being deleted; nothing was done, try again."""


class NoSubscriber(PermanentError):
    """The topic keeps messages until they are read, and nobody subscribes; nothing was stored."""


class NotSubscribed(PermanentError):
    """There is no such subscription at this broker."""


class TooLarge(PermanentError):
    """The message, batch, key, headers or name is larger than the broker takes.

    `accepted` counts those of a put_many that were queued before it.
    """

    accepted = 0


class InvalidRequest(PermanentError):
    """The broker did not understand or could not allow the request; it changed nothing."""


class TakenOver(PermanentError):
    """Another consumer of the same name took the subscription over; this one can no longer get or ack."""


class LeaseLost(PermanentError):
    """The messages were taken away from this consumer, which gave no sign of life in time, or were sought away.

    They go, or went, to another consumer; nothing that depended on holding them was done.
    """


class VersionConflict(PermanentError):
    """A named state does not have the version that the transaction expected; nothing of it was done."""


class NoTopic(PermanentError):
    """There is no such topic at this broker."""


class ReadOnly(PermanentError):
    """This broker is a read-only cache of others: messages are put where their topics are from."""


class AlreadyDone(PermanentError):
    """A transaction would ack a message that is acked already; nothing of it was done.

    Most likely an earlier attempt with the same message did all of it, and its answer was lost.
    """


class InDoubt(PermanentError):
    """Whether the request was done cannot be told any more: it was sent more than once, and the broker no longer knows
    what became of the first. Look before doing it again."""


class PublisherExpired(InDoubt):
    """The broker forgot this publisher after long silence; it must register again, as a new one.

    Whether what was in flight is stored cannot be told any more.
    """


class MessagesGone(PermanentError):
    """The messages asked for are no longer kept; the text names the gap, and so do `topic`, `start` and `stop`.

    Once told, the reader goes on after the gap with the next call.
    """

    topic = b""
    start = 0
    stop = 0


class LimitReached(PermanentError):
    """A limit of the broker is reached, such as its number of topics; the text names it."""


class StoredDataCorrupt(PermanentError):
    """What the broker stored for this topic is damaged, and is not served."""


class MessagesUnreadable(StoredDataCorrupt):
    """Messages came as their publisher packed them, and cannot be opened; text, `topic`, `start` and `stop` say which.

    `raw` has the batch as it is stored. Once told, a reader that has its subscription to itself goes on after them, and
    they count as read; of a shared subscription they were given back, and become dead letters in the end.
    """

    topic = b""
    start = 0
    stop = 0
    raw = b""


class StoreWentBack(PermanentError):
    """The broker's store is not what this client spoke with before: it was restored from an older copy, or another one
    is there. What was confirmed since that copy was made is gone; what was under way may be stored or not."""


class VersionMismatch(PermanentError):
    """Client and broker speak no common version of the protocol."""


class Closed(PermanentError):
    """The client is closed."""


class UsedAfterFork(PermanentError):
    """The client was made before a fork; make a new one in the child process."""


# What a broker may meet when it opens or uses its store.


class StoreInUse(FatalError):
    """Another broker has this data folder open."""


class StoreTooNew(FatalError):
    """The store was written by a newer version of Clarion."""


class StoreCorrupt(FatalError):
    """The store's files are damaged."""


class StoreFailed(FatalError):
    """The disk failed under the store; nothing may be acknowledged any more."""


class StoreUnavailable(RetryableError):
    """The system did not give the store what it needs just now: descriptors, memory, a read.

    Nothing of a change was kept, nothing that was read is taken for damaged; the same may work a moment later.
    """


class StoreFull(RetryableError):
    """The store has no room for the change; nothing of it was kept."""


class BadSettings(PermanentError):
    """A setting is unknown, or its value is not usable."""


# What a publisher's outbox may meet.


class OutboxInUse(RetryableError):
    """Another publisher has this outbox open."""


class OutboxFull(RetryableError):
    """The disk has no room for the change; nothing of it was kept, and everything that was saved before is."""


class OutboxUnusable(PermanentError):
    """The outbox cannot be opened or used: another format, damage, a folder that cannot be written, a failing disk."""


class OutboxInDoubt(PermanentError):
    """Messages that the broker may have, or may not: nobody can tell any more, so they are kept in quarantine.

    `clarion outbox show` names them, `clarion outbox resend` sends them as new ones, `clarion outbox drop` lets go.
    """


class NoOutbox(PermanentError):
    """The publisher keeps messages in memory only: it was made without `outbox=PATH`."""
