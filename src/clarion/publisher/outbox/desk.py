"""An outbox at work, as a client uses it: the file, the worker on it, and who decides what that does next."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clarion.model.arguments import whole
from clarion.model.errors import BufferFull, NoOutbox, OutboxUnusable, TimedOut
from clarion.publisher.outbox.keeping import KeptSending
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outbox.saving import Job
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.publisher.outbox.workers import DiskWorker, Outcome
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.sending import Sending

log = logging.getLogger("clarion.publisher")
LEAST_BYTES = 2**20  # of an outbox
LET_GO_S = 2.0  # how long a close waits for the disk


def open_outbox(place: str | os.PathLike[str] | None, outbox_bytes: int) -> OutboxFile | None:
    """Open the outbox, if there is to be one; raises OutboxInUse or OutboxUnusable where that cannot be done."""
    whole(outbox_bytes, "outbox_bytes", LEAST_BYTES)
    if place is not None and not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"outbox is a path, as a str or Path, not {type(place).__name__}")
    return None if place is None else OutboxFile(Path(place))


class Desk:
    """Hands one job after the other to the worker. All but `close` is called by who may touch the sending."""

    def __init__(
        self,
        file: OutboxFile,
        sending: KeptSending,
        outbox_bytes: int,
        clock_s: Callable[[], float],
        on_done: Callable[[Job, Outcome], Job | None],
    ) -> None:
        self.file = file.file
        self._sending = sending
        self._outbox_bytes = outbox_bytes
        self._clock_s = clock_s
        self._worker = DiskWorker(file, on_done)

    def feed(self) -> None:
        """Give the worker something to do, if it has nothing and there is something."""
        job = self._sending.next_job(self._clock_s())
        if job is not None:
            self._worker.submit(job)

    def submit(self, job: Job) -> None:
        """Have the worker do a job that `take_in` gave."""
        self._worker.submit(job)

    def take_in(self, job: Job, outcome: Outcome) -> Job | None:
        """Take in what came of a job, and give the next one."""
        now_s = self._clock_s()
        try:
            self._sending.done(job, outcome, now_s)
            return self._sending.next_job(now_s)
        except Exception as error:  # nobody else would hear of it; what is on disk stays as it is
            log.critical("the outbox %s broke", self.file, exc_info=True)
            self._sending.broken = OutboxUnusable(f"the outbox {self.file} broke, and cannot go on: {error!r}")
            self._sending.give_up(self._sending.broken)
            return None

    def retire(self) -> None:
        """Have names and numbers removed from an outbox that has nothing else left."""
        self._sending.retire()
        self.feed()

    def wind_down(self) -> None:
        """Have what is not saved yet saved, and what was sent removed; nothing more is numbered or sent."""
        self._sending.wind_down()
        self.feed()

    def is_at_rest(self) -> bool:
        """Whether the disk has nothing to do."""
        return self._sending.is_at_rest

    def is_retired(self) -> bool:
        """Whether nothing is left in the outbox."""
        return self._sending.retired

    def has_room(self) -> bool:
        """Whether the outbox may take more."""
        return self._sending.kept_bytes + self._sending.buffered_bytes < self._outbox_bytes

    def why_full(self) -> str | None:
        """Say what it is that has no room, if something on disk has none."""
        if self._sending.disk_error is not None:
            return str(self._sending.disk_error)
        if self.has_room():
            return None
        aside = self._sending.aside_messages
        also = f", among them {aside} messages set aside (`clarion outbox show {self.file}`)" if aside else ""
        return f"the outbox {self.file} holds its {self._outbox_bytes} bytes{also}"

    def left_behind(self, url: str, timeout_s: float | None) -> TimedOut:
        """Give what to raise when a client is closed before everything was sent."""
        kept, lost = self._sending.left_behind()
        text = (
            f"{_messages(kept)} not confirmed by {url}{_within(timeout_s)};"
            f" kept in the outbox {self.file}: opening it again sends them"
        )
        if lost:
            why = self._sending.disk_error or "the disk is too slow"
            text += f". {lost} more could not be saved in time, and may be lost: {why}"
        return TimedOut(text)

    def unsaved(self) -> list[OutgoingBatch]:
        """Give what is not on disk yet; raises what broke, since that is gone from there then."""
        if self._sending.broken is not None:
            raise self._sending.broken.again()
        return self._sending.unsaved()

    def close(self) -> None:
        """Let go of the file; what is saved stays there."""
        self._worker.close()


def buffer_full(desk: Desk | None, buffer_bytes: int, patience_s: float) -> BufferFull:
    """Give what to raise when a put found no room."""
    full = None if desk is None else desk.why_full()
    full = full or f"the publisher's buffer of {buffer_bytes} bytes is full"
    return BufferFull(
        f"{full} and did not drain within {patience_s:g} s; this message was not queued, those before it still are"
    )


def not_confirmed(count: int, url: str, timeout_s: float | None) -> TimedOut:
    """Give what to raise when the broker's answer is not there in time."""
    return TimedOut(
        f"{_messages(count)} not confirmed by {url}{_within(timeout_s)}; still queued, and sent while the publisher is"
        " open"
    )


def given_up(sending: Sending, url: str, timeout_s: float | None) -> TimedOut | None:
    """Give what to raise when a client without an outbox is closed before everything was confirmed."""
    count, sent = sending.unconfirmed(), sum(lane.flying_messages for lane in sending.lanes.values())
    if not count:
        return None
    never = count - sent
    if not never:
        became = "sent, and may be stored"
    elif not sent:
        became = "never sent, and lost"
    else:
        became = f"{never} of them never sent, and lost, {sent} sent, and may be stored"
    return TimedOut(
        f"{_messages(count)} not confirmed by {url}{_within(timeout_s)}, and given up: {became}."
        " close(timeout_s=...) can wait longer; Publisher(url, outbox=FILE) would have kept them"
    )


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _within(timeout_s: float | None) -> str:
    return "" if timeout_s is None else f" within {timeout_s:.3g} s"


def not_saved(desk: Desk, timeout_s: float | None) -> TimedOut:
    """Give what to raise when something is not on disk in time."""
    return TimedOut(
        f"not on disk within {timeout_s:g} s; it still waits to be saved in {desk.file}, and was not sent."
        f" {desk.why_full() or 'Is the disk slow?'}"
    )


def not_emptied(desk: Desk) -> TimedOut:
    """Give what to raise when the disk does not let go of what was sent."""
    return TimedOut(f"everything was sent, but {desk.file} could not be emptied; opening it again does that")


def no_outbox() -> NoOutbox:
    """Give what to raise where there is no disk to save on."""
    return NoOutbox("this publisher keeps messages in memory only; Publisher(url, outbox=PATH) saves them on disk")


def are_saved(sheaves: Sequence[OutgoingBatch]) -> bool:
    """Whether all of it is on this machine's disk, or beyond it."""
    return all(sheaf.done or (isinstance(sheaf, DurableBatch) and sheaf.saved) for sheaf in sheaves)


def raise_unsaved(sheaves: Sequence[OutgoingBatch]) -> None:
    """Raise what kept one of them from being saved, if something did."""
    for sheaf in sheaves:
        if not (isinstance(sheaf, DurableBatch) and sheaf.saved):
            sheaf.raise_error()


def make_sending(file: OutboxFile | None, memory_bytes: int, *args: Any, **settings: Any) -> Sending:
    """Make the sending of a publisher, with or without an outbox."""
    if file is None:
        return Sending(*args, **settings)
    try:
        found = file.read()
        if found.aside_messages:
            log.warning("%d messages are set aside in %s: clarion outbox show", found.aside_messages, file.file)
        return KeptSending(*args, found=found, name=str(file.file), memory_bytes=memory_bytes, **settings)
    except BaseException:
        file.close()
        raise
