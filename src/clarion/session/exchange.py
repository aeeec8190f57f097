"""What a client core tells its driver, and requests under way on a connection: matched with replies, and sent again
when the answer does not come.

Every request is safe to repeat at the broker, so resending is the whole of recovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgspec

from clarion.model.errors import ClarionError, InvalidRequest, StoreWentBack
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code, error_of
from clarion.wire.frames import OLDEST_VERSION, PROTOCOL_VERSION, BadFrames, Buffer, Kind, pack_frames, unpack_prefix

_refused = msgspec.msgpack.Decoder(bodies.Refused)
_REFUSALS = frozenset({Kind.INVALID, Kind.REFUSED, Kind.NO_SUBSCRIBER, Kind.NOT_SUBSCRIBED})
_OF_NO_STORE = frozenset({Kind.HELLO, Kind.REGISTER, Kind.STATS})  # to be asked of whichever store there is
_ACKS = frozenset({Kind.ACK, Kind.ACK_MANY})
_KIND_AT = 3  # in the prefix
IDS = 1 << 32
AGAIN_S = 0.02  # before a refused request is sent again, at least
BodyT = TypeVar("BodyT", bound=bodies.Body)


class Send(NamedTuple):
    """An instruction of a core: send a request. The reply comes back with the `tag`, which says what it is for."""

    kind: Kind
    body: bodies.Body
    tag: Any
    blobs: Sequence[Buffer] = ()
    wait_s: float = 0.0  # that the broker may take for the answer


class Wake(NamedTuple):
    """An instruction of a core: a call that somebody waits for is done."""

    call: Any


class WakeDone(NamedTuple):
    """An instruction of a core: many calls are done; whoever waits for one of them is to be woken."""


class GiveUp(NamedTuple):
    """An instruction of a core: forget the request with this tag, for which nobody waits any more."""

    tag: Any


Instruction = Send | Wake | WakeDone | GiveUp


class Nonces:
    """Random bytes that tell requests apart, all from one seed: the same seed, the same bytes."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._count = 0

    def __iter__(self) -> Nonces:
        return self

    def __next__(self) -> bytes:
        self._count += 1
        return blake2b(self._count.to_bytes(8, "little"), digest_size=16, key=self._seed).digest()


class Seen:
    """Which store a client spoke with last, and the highest commit of it that it was told of."""

    __slots__ = ("is_of_before", "sequence", "start", "store", "timeline", "version")

    def __init__(self, store: bytes = b"", timeline: int = 0, start: bytes = b"", sequence: int = 0) -> None:
        self.store = store
        self.timeline = timeline
        self.start = start
        self.sequence = sequence
        self.is_of_before = False  # what a client before this one saw, and kept on disk
        self.version = 1  # of the protocol, that is spoken with who answers

    def note(self, sequence: int) -> None:
        """Take in what a reply told."""
        if sequence > self.sequence and self.start:
            self.sequence = sequence


def hello(client: str, seen: Seen | None = None) -> bodies.Hello:
    """Return what to greet a broker with; it says whether what was `seen` is of its past."""
    seen = seen or Seen()
    return bodies.Hello(OLDEST_VERSION, PROTOCOL_VERSION, client, seen.store, seen.timeline, seen.start, seen.sequence)


class Reply(NamedTuple):
    """What the broker answered; the body is decoded by who knows what was asked.

    A refusal says that nothing was done only where the request was sent once: of two copies the other may have been
    taken, and its answer lost.
    """

    kind: int
    body: Buffer
    blobs: Sequence[Buffer] = ()
    times_sent: int = 1  # the request that it answers
    seen: Seen | None = None  # by this client

    def refusal(self) -> bodies.Refused | None:
        """Return the refusal, if it is one."""
        return _refused.decode(self.body) if self.kind in _REFUSALS else None

    def error(self) -> ClarionError | None:
        """Return the refusal as the error to raise, if it is one."""
        refusal = self.refusal()
        return None if refusal is None else error_of(refusal.code, refusal.text)

    def again_after_s(self) -> float | None:
        """Return how long to wait before the same request is worth another try; None where it is not."""
        refusal = self.refusal()
        return None if refusal is None or refusal.code not in RETRIED else max(refusal.retry_after_s, AGAIN_S)

    def read(self, body: type[BodyT]) -> BodyT:
        """Return the body as what it is; raise the typed error if it is a refusal."""
        error = self.error()
        if error is not None:
            raise error
        try:
            found = msgspec.msgpack.decode(self.body, type=body)
            if self.seen is not None:
                self.seen.note(getattr(found, "sequence", 0))
            return found
        except msgspec.MsgspecError as bad:
            raise InvalidRequest(f"the broker's answer cannot be read: {bad}") from bad


class Count:
    """The broker's count of decisions as a client knows it: 0 of one that has none, None before any was told."""

    def __init__(self) -> None:
        self.known: int | None = None

    def note(self, count: int) -> None:
        """Take in what an answer told."""
        self.known = max(self.known or 0, count)

    def start_over(self, refusal: bodies.Refused) -> None:
        """Take what a refusal says it is now; that may be less, of another store."""
        self.known = refusal.expected


class _Asked:
    __slots__ = ("frames", "resend_at_s", "tag", "times_sent", "wait_s")

    def __init__(self, frames: list[Buffer], tag: object, wait_s: float, resend_at_s: float, times_sent: int) -> None:
        self.frames = frames
        self.tag = tag
        self.wait_s = wait_s
        self.resend_at_s = resend_at_s
        self.times_sent = times_sent


_GREETING = object()  # the tag of the exchange's own requests


class Exchange:
    """Which requests wait for an answer, in the order they were made."""

    def __init__(
        self,
        *,
        resend_after_s: float = 10.0,
        seen: Seen | None = None,
        count: Count | None = None,
        first_id: int = 0,
    ) -> None:
        """Its requests have ids from `first_id` on, of which there are `IDS`."""
        self._resend_after_s = resend_after_s
        self._asked: dict[int, _Asked] = {}
        self._first_id = self._last_id = first_id
        self._next_check_s = 0.0
        self.resent = 0
        self.strays = 0
        self.seen = seen or Seen()
        self.count = count or Count()
        self.lost: ClarionError | None = None  # to be told to the core before what `receive` returned
        self._hello = 0  # the id of the last greeting
        self.welcomed_as = 0  # the version that the broker of this connection spoke of
        self._greeting = False  # all else waits for the answer to that
        self._released = False  # it is answered: now everything may be sent

    def __len__(self) -> int:
        return len(self._asked)

    def is_awaited(self) -> bool:
        """Return whether something other than acks is unanswered: theirs are answers that can lie for a moment."""
        return not all(asked.frames[0][_KIND_AT] in _ACKS for asked in self._asked.values())

    def send(self, send: Send, *, now_s: float, sent: bool = True) -> list[Buffer]:
        """Note a request; return its frames, which are `sent` now, or with `everything` when there is a connection."""
        self._last_id = self._next_id()
        frames = pack_frames(send.kind, self._last_id, send.body, send.blobs)
        wait_s = send.wait_s
        self._asked[self._last_id] = _Asked(frames, send.tag, wait_s, now_s + wait_s + self._resend_after_s, int(sent))
        return frames

    def _next_id(self) -> int:
        """Return an id that nothing under way has; after the last of them the first."""
        request_id = self._last_id
        while True:
            request_id = self._first_id + (request_id + 1) % IDS
            if request_id not in self._asked and request_id != self._first_id:
                return request_id

    def give_up(self, tag: object) -> None:
        """Forget a request that nobody waits for any more: it is not sent again, whatever becomes of a copy that was
        sent. Done much later, it would undo what its caller, or somebody else, has decided since."""
        gone = [number for number, asked in self._asked.items() if asked.tag is tag]
        for request_id in gone:
            del self._asked[request_id]

    def receive(self, frames: Sequence[Buffer]) -> Sequence[tuple[Any, Reply]]:
        """Return the tag of the request that is answered with the reply to it; nothing where nobody asked for it, or it
        was answered before, which is counted. The answer to a greeting may answer all requests, and leave an error in
        `lost`."""
        try:
            _, kind, request_id = unpack_prefix(frames[0])
        except (BadFrames, IndexError):
            self.strays += 1
            return ()
        # Half a reply is no reply: its request stays, and is sent again.
        asked = self._asked.pop(request_id, None) if len(frames) >= 2 else None
        if asked is None:
            self.strays += 1
            return ()
        reply = Reply(kind, frames[1], frames[2:], asked.times_sent, self.seen)
        return self._on_welcome(reply) if asked.tag is _GREETING else ((asked.tag, reply),)

    # Who is there.

    @property
    def waits_to_send(self) -> bool:
        """Whether nothing may be sent now: the broker has to say first which store it has."""
        return self._greeting or self._released

    def greeting(self, now_s: float) -> list[list[Buffer]]:
        """Return what a new connection sends first: who was spoken with before; where that is nobody, everything."""
        self._asked.pop(self._hello, None)
        self._greeting = self._released = False
        self.welcomed_as = 0
        everything = [] if self.seen.start else self.everything(now_s)
        greeting = hello("clarion session", self.seen)
        frames = self.send(Send(Kind.HELLO, greeting, _GREETING), now_s=now_s)
        self._hello, self._greeting = self._last_id, bool(self.seen.start)
        return [frames, *everything]

    def _on_welcome(self, reply: Reply) -> Sequence[tuple[Any, Reply]]:
        self._released, self._greeting = self._greeting, False
        try:
            welcome = reply.read(bodies.Welcome)
        except ClarionError:  # whoever asks something hears it
            return ()
        self.count.known = welcome.count
        seen = self.seen
        seen.version = self.welcomed_as = welcome.version
        another = welcome.store_uuid != seen.store
        is_moved = another and seen.is_of_before  # a new client of another broker: nothing of that was promised to it
        seen.is_of_before = False
        if welcome.start:
            seen.store, seen.timeline, seen.start = welcome.store_uuid, welcome.timeline, welcome.start
            seen.sequence = welcome.sequence
        return self._lose(another=another) if welcome.lost and not is_moved else ()

    def _lose(self, *, another: bool) -> Sequence[tuple[Any, Reply]]:
        """What waits for an answer was for a store that is gone: return a refusal of it all."""
        what = (
            "another store answers at this address" if another else "the broker's store was restored from an older copy"
        )
        text = f"{what}: what it confirmed before may be gone, and whether this was done cannot be told"
        self.lost = StoreWentBack(text)
        refusal = msgspec.msgpack.encode(bodies.Refused(Code.WENT_BACK, text))
        lost = [number for number, asked in self._asked.items() if asked.frames[0][_KIND_AT] not in _OF_NO_STORE]
        found = [self._asked.pop(number) for number in lost]
        return [(asked.tag, Reply(Kind.REFUSED, refusal, (), asked.times_sent)) for asked in found]

    def everything(self, now_s: float) -> list[list[Buffer]]:
        """Return all requests without an answer, in order: a new connection sends them first."""
        self.resent += len(self._asked)
        for asked in self._asked.values():
            asked.times_sent += 1
            asked.resend_at_s = now_s + asked.wait_s + self._resend_after_s
        return [asked.frames for asked in self._asked.values()]

    def overdue(self, now_s: float) -> list[list[Buffer]]:
        """Return the requests to be sent again: those whose answer should have come by now; everything, once, when the
        broker has said which store it has."""
        if self._released:
            self._released = False
            return self.everything(now_s)
        if now_s < self._next_check_s or self._greeting:
            return []
        self._next_check_s = now_s + self._resend_after_s / 4
        late = [asked for asked in self._asked.values() if asked.resend_at_s <= now_s]
        for asked in late:
            asked.times_sent += 1
            asked.resend_at_s = now_s + asked.wait_s + self._resend_after_s
        self.resent += len(late)
        return [asked.frames for asked in late]

    def drop_all(self) -> None:
        """Forget all requests; nobody waits for them any more."""
        self._asked.clear()
