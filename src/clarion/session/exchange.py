"""Requests under way on a connection: matched with replies, sent again when the answer does not come.

Every request is safe to repeat at the broker, so resending is the whole of recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from clarion.model.errors import ClarionError, InvalidRequest
from clarion.wire import bodies
from clarion.wire.frames import BadFrames, Buffer, Kind, pack_frames, unpack_prefix
from clarion.wire.refusals import RETRIED, error_of

_refused = msgspec.msgpack.Decoder(bodies.Refused)
_REFUSALS = frozenset({Kind.INVALID, Kind.REFUSED, Kind.NO_SUBSCRIBER, Kind.NOT_SUBSCRIBED})
AGAIN_S = 0.02  # before a refused request is sent again, at least
BodyT = TypeVar("BodyT", bound=bodies.Body)


class Reply(NamedTuple):
    """What the broker answered; the body is decoded by who knows what was asked.

    A refusal says that nothing was done only where the request was sent once: of two copies the other may have been
    taken, and its answer lost.
    """

    kind: int
    body: Buffer
    blobs: Sequence[Buffer] = ()
    times_sent: int = 1  # the request that it answers

    def refusal(self) -> bodies.Refused | None:
        """Give the refusal, if it is one."""
        return _refused.decode(self.body) if self.kind in _REFUSALS else None

    def error(self) -> ClarionError | None:
        """Give the refusal as the error to raise, if it is one."""
        refusal = self.refusal()
        return None if refusal is None else error_of(refusal.code, refusal.text)

    def again_after_s(self) -> float | None:
        """Give how long to wait before the same request is worth another try; None where it is not."""
        refusal = self.refusal()
        return None if refusal is None or refusal.code not in RETRIED else max(refusal.retry_after_s, AGAIN_S)

    def read(self, body: type[BodyT]) -> BodyT:
        """Give the body as what it is; raise the typed error if it is a refusal."""
        error = self.error()
        if error is not None:
            raise error
        try:
            return msgspec.msgpack.decode(self.body, type=body)
        except msgspec.MsgspecError as bad:
            raise InvalidRequest(f"the broker's answer cannot be read: {bad}") from bad


OnReply = Callable[[Reply], None]


class _Asked:
    __slots__ = ("frames", "on_reply", "resend_at_s", "times_sent", "wait_s")

    def __init__(
        self, frames: list[Buffer], on_reply: OnReply, wait_s: float, resend_at_s: float, times_sent: int
    ) -> None:
        self.frames = frames
        self.on_reply = on_reply
        self.wait_s = wait_s
        self.resend_at_s = resend_at_s
        self.times_sent = times_sent


class Exchange:
    """Which requests wait for an answer, in the order they were made."""

    def __init__(self, *, resend_after_s: float = 10.0) -> None:
        self._resend_after_s = resend_after_s
        self._asked: dict[int, _Asked] = {}
        self._last_id = 0
        self._next_check_s = 0.0
        self.resent = 0
        self.strays = 0

    def __len__(self) -> int:
        return len(self._asked)

    def ask(
        self,
        kind: Kind,
        body: bodies.Body,
        blobs: Sequence[Buffer],
        on_reply: OnReply,
        *,
        wait_s: float,
        now_s: float,
        sent: bool = True,
    ) -> list[Buffer]:
        """Note a request whose answer may take `wait_s` at the broker; return its frames, which are `sent` now, or with
        `everything` when there is a connection."""
        self._last_id += 1
        frames = pack_frames(kind, self._last_id, body, blobs)
        resend_at_s = now_s + wait_s + self._resend_after_s
        self._asked[self._last_id] = _Asked(frames, on_reply, wait_s, resend_at_s, int(sent))
        return frames

    def answer(self, frames: Sequence[Buffer]) -> None:
        """Hand a reply to who asked; what nobody asked for, or asked for twice, is counted and dropped."""
        try:
            _, kind, request_id = unpack_prefix(frames[0])
        except (BadFrames, IndexError):
            self.strays += 1
            return
        # Half a reply is no reply: its request stays, and is sent again.
        asked = self._asked.pop(request_id, None) if len(frames) >= 2 else None
        if asked is None:
            self.strays += 1
            return
        asked.on_reply(Reply(kind, frames[1], frames[2:], asked.times_sent))

    def everything(self, now_s: float) -> list[list[Buffer]]:
        """Give all requests without an answer, in order: a new connection sends them first."""
        self.resent += len(self._asked)
        for asked in self._asked.values():
            asked.times_sent += 1
            asked.resend_at_s = now_s + asked.wait_s + self._resend_after_s
        return [asked.frames for asked in self._asked.values()]

    def overdue(self, now_s: float) -> list[list[Buffer]]:
        """Give the requests whose answer should have come by now, to be sent again."""
        if now_s < self._next_check_s:
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
