"""The serving loop: it moves requests, commits and replies, and decides nothing."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import zmq

from clarion.broker.committer import INDEX_AFTER_S, Committer, Outcome
from clarion.broker.crashpoints import CLOCK_FILE, ENVIRONMENT, crash_points_from, wall_clock_from
from clarion.broker.engine import Clock, Engine, Now, Reply
from clarion.broker.engine.state import Group
from clarion.broker.history_writer import HistoryWriter, begin_tracks, new_tracker, open_histories
from clarion.broker.link_sockets import Dialled, LinkSockets
from clarion.broker.links import LinkPeer, Links
from clarion.broker.settings import BrokerSettings
from clarion.broker.transport import Listener, Peer, Transport
from clarion.model.errors import FatalError, StoreFull, StoreUnavailable
from clarion.model.ids import MessageId
from clarion.session.service_process import StopSignals, raise_descriptor_limit
from clarion.store.port import Store
from clarion.store.segmented import SegmentedStore
from clarion.version import __version__
from clarion.wire.bodies import TELLING, Stats, Subscribe, Transact
from clarion.wire.bundles import Frames
from clarion.wire.codes import Code
from clarion.wire.frames import (
    LINK_KINDS,
    PUBLISHER_KINDS,
    BadFrames,
    Kind,
    Request,
    UnknownVersion,
    pack_frames,
    parse_request,
    request_id_of,
)
from clarion.wire.link_bodies import AskLinks, LinksAre, Trace

log = logging.getLogger("clarion.broker")
_REQUESTS_A_TURN = 256
_TURN_S = 0.02  # for which requests are taken before anybody is answered, unless a single one takes longer
_ALONE_REQUESTS = 2
_WRONG_LISTENER = "this address does not serve such requests: it is for publishers alone, or for subscribers alone"
_INDEX_SOON_S = 0.5
_LINGER_MS = 2000
_READ_ONLY = "this broker is a read-only cache of other brokers (its setting `follow`): put where the topic is from"
_LONGEST_SLEEP_S = 1.0
_AGAIN_S = 0.05  # after a commit of which nothing was kept, before the next one
_STALLED_S = 2.0  # for one turn of the loop: the process was stopped, or the machine asleep
_KILLED_EXIT = 130
_RUNNING = getattr(
    time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC
)  # it only runs; the first also while the machine sleeps


class Broker:
    """A broker on a data folder. `run` serves until it is told to stop.

    The first SIGINT or SIGTERM (or `stop`) drains: what was taken is committed and answered. A second one
    ends the process at once, which loses nothing acked either.
    """

    def __init__(self, settings: BrokerSettings, *, store: Store | None = None) -> None:
        self._settings = settings
        raise_descriptor_limit()
        self._crash_points = crash_points_from(os.environ.get(ENVIRONMENT))
        self._store = store or SegmentedStore(
            settings.data, max_bytes=settings.max_store_bytes or None, crash_points=self._crash_points
        )
        try:
            start = os.urandom(16)
            begin = Now(time.monotonic(), time.time_ns() // 1000)
            histories = open_histories(settings, self._store.identity.broker, now_us=begin.unix_us)
            self._engine = Engine(self._store, settings.limits(), start=start, tracker=new_tracker(histories))
            self._histories: HistoryWriter | None = None
            if histories is not None:
                begin_tracks(histories, self._engine.tracks, begin)
                self._histories = HistoryWriter(histories, self._engine.tracks, settings.tracking_persist_s, begin)
            self._transport = Transport(
                listen=settings.listen,
                publishers=settings.listen_publishers or None,
                subscribers=settings.listen_subscribers or None,
                max_batch_bytes=settings.max_batch_bytes,
                max_connections=settings.max_connections,
            )
            self._links = Links(
                self._engine,
                settings.name or f"broker-{self._store.identity.broker:08x}",
                settings.links,
                start=start,
                accepts=settings.accept_links,
                follow=settings.followed(),
                pass_by_bytes=settings.link_max_bytes,
                histories=self._histories,
                most_bytes=self._transport.max_frame_bytes,
            )
            self._link_sockets = LinkSockets(settings.links, self._transport)
            self._link_sockets.begin(self._links)
        except BaseException:
            self._store.close()
            raise
        self._clock = Clock(self._store.clock_us())
        self._wall_us = wall_clock_from(os.environ.get(CLOCK_FILE))
        soon = ENVIRONMENT in os.environ  # who waits for a crash, perhaps of the index, need not wait long
        self._committer = Committer(self._store, index_after_s=_INDEX_SOON_S if soon else INDEX_AFTER_S)
        self._started_s = time.monotonic()
        self._stops = 0
        self._signals = StopSignals()
        self._again_s = 0.0  # when the next commit may be tried, after one that failed
        self._waiting: tuple[Group, tuple[int, int]] | None = None  # for what is noted to be saved
        self._handles_signals = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    @property
    def urls(self) -> list[str]:
        """Where it listens, with the ports it got."""
        return [listener.url for listener in self._transport.listeners]

    @property
    def _tracking(self) -> str:
        """What tracking does where there are no histories: none is wanted, or they could not be opened."""
        return "none" if self._settings.tracking == "none" else "given up"

    def _stats(self) -> dict[str, Any]:
        """What the loop has to add to the engine's counters."""
        return {
            **self._transport.stats(),
            **self._link_sockets.counters,
            **(self._histories.stats() if self._histories is not None else {"tracking": self._tracking}),
            "commit_seconds": round(self._committer.seconds, 3),
            "clock_jumps": self._clock.jumps,
            "clock_off_s": round(self._clock.off_s, 3),
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "pid": os.getpid(),
            "version": __version__,
        }

    def stop(self) -> None:
        """Drain and stop; from any thread or signal handler."""
        self._stops += 1
        try:
            self._wake_in.send(b"\0")
        except OSError:  # full: the loop has enough reason to wake
            pass

    def handle_signals(self) -> None:
        """Let SIGINT and SIGTERM stop the broker; call it from the main thread."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        self._handles_signals = True

    def _let_go_of_signals(self) -> None:
        if self._handles_signals:
            signal.set_wakeup_fd(-1)
        self._wake_in.close()
        self._wake_out.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signals.is_echo(number, time.monotonic()):
            return
        if self._stops:
            log.warning("second signal: stopping at once; everything acked is on disk")
            os._exit(_KILLED_EXIT)
        log.info("%s: draining; a second one stops at once", signal.Signals(number).name)
        self.stop()

    def run(self, on_ready: Callable[[list[str]], None] | None = None) -> None:
        """Serve until stopped. A FatalError (the disk failed) ends it with everything unacked unacknowledged."""
        try:
            if on_ready is not None:
                on_ready(self.urls)
            self._serve()
            self._drain()
        except FatalError:
            self._transport.close(linger_ms=0)
            raise
        finally:
            if self._histories is not None:
                self._histories.close()
            self._link_sockets.close()
            self._committer.close()
            self._store.close()
            self._let_go_of_signals()
        self._transport.close(linger_ms=_LINGER_MS)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._committer.ready, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        listeners = self._transport.listeners
        for listener in listeners:
            poller.register(listener.socket, zmq.POLLIN)
            poller.register(listener.monitor, zmq.POLLIN)
        for dialled in self._link_sockets.dialled:
            poller.register(dialled.socket, zmq.POLLIN)
        listening = True
        held_back: float | None = None
        look_at_s = 0.0
        turned_s = time.monotonic()
        monitors = [listener.monitor for listener in listeners]
        sockets = [*(each.socket for each in listeners), *(each.socket for each in self._link_sockets.dialled)]
        while not self._stops:
            deadline_s = self._engine.next_deadline_s(may_commit=not self._again_s and not self._committer.busy)
            wait_s = min(deadline_s, look_at_s) - time.monotonic()
            if self._again_s:
                wait_s = min(wait_s, self._again_s - time.monotonic())
            if held_back is not None:
                wait_s = min(wait_s, held_back)
            if listening and any(listener.unbundled for listener in listeners):
                wait_s = 0.0
            if self._histories is not None:
                wait_s = min(wait_s, self._histories.next_deadline_s(turned_s) - turned_s)
            if self._links.is_on:
                wait_s = 0.0 if self._links.has_more else min(wait_s, self._links.next_deadline_s() - turned_s)
            ready = dict(poller.poll(math.ceil(1000 * min(max(0.0, wait_s), _LONGEST_SLEEP_S))))
            now = self._now()
            if not listening or now.monotonic_s - turned_s > _STALLED_S:  # nobody could be heard in that time
                self._engine.stalled(now.monotonic_s - turned_s)
            turned_s = now.monotonic_s
            if self._committer.ready.fileno() in ready:
                self._take_outcome(now)
            taken = 0
            is_heard = listening
            for listener in listeners:
                if listener.socket in ready or (listening and listener.unbundled):
                    count, is_all = self._take_requests(listener, now)
                    taken += count
                    is_heard = is_heard and is_all
            if now.monotonic_s >= look_at_s or not ready.keys().isdisjoint(monitors):
                look_at_s = self._transport.look(now.monotonic_s, is_heard=is_heard)
            if now.monotonic_s >= deadline_s:  # what was asked for just now may have an earlier one: at the next turn
                self._engine.tick(now)
            if self._histories is not None:
                self._histories.turn(now, is_awaited=self._links.waits_for_histories)
            if self._links.is_on:
                self._go_on_with_links(ready, now)
            self._submit(alone=taken <= _ALONE_REQUESTS)
            self._send_replies()
            held_back = self._transport.send_held_back()
            if (retry_s := self._link_sockets.send_waiting()) is not None:
                held_back = retry_s if held_back is None else min(held_back, retry_s)
            self._tell_notices(now)
            room = self._has_room()
            if room != listening:  # at the bound, publishers wait in their sockets until the disk has caught up
                listening = room
                for each in sockets:
                    poller.modify(each, zmq.POLLIN if room else 0)

    def _go_on_with_links(self, ready: dict[Any, int], now: Now) -> None:
        """Hear other brokers, and tell them what there is."""
        for dialled in self._link_sockets.dialled:
            if dialled.socket in ready and self._has_room():
                for frames in self._link_sockets.receive(dialled):
                    self._hear_dialled(dialled, frames, now)
                    if not self._has_room():
                        break
        self._link_sockets.look(self._links, now)
        self._links.turn(now)
        self._tell_paths()
        for send in self._links.take_sends():
            self._link_sockets.send(send)
        self._link_sockets.forget_waiting(self._links)

    def _hear_dialled(self, dialled: Dialled, frames: Frames, now: Now) -> None:
        try:
            request = parse_request(frames)
        except BadFrames:
            self._links.rejected(
                dialled, "it is no broker, or one of an older release; correct the address, or update it", now
            )
        else:
            if request.kind in LINK_KINDS:
                self._links.heard(dialled, request.kind, request.body, request.blob, now)

    def _take_requests(self, listener: Listener, now: Now) -> tuple[int, bool]:
        """Take what has come in at a listener; return how much that was, and whether it was all."""
        taken = 0
        for peer, frames in self._transport.receive(listener, _REQUESTS_A_TURN):
            taken += 1
            self._take_request(listener, peer, frames, now)
            if not self._has_room() or time.monotonic() - now.monotonic_s > _TURN_S:
                return taken, False  # the rest waits in the socket, and peers there take turns
        return taken, taken < _REQUESTS_A_TURN and not listener.unbundled

    def _take_request(self, listener: Listener, peer: Peer, frames: Frames, now: Now) -> None:
        try:
            request = parse_request(frames)
        except UnknownVersion as error:
            self._engine.refuse(peer, request_id_of(frames), Code.VERSION, str(error))
        except BadFrames as error:
            self._engine.refuse(peer, request_id_of(frames), Code.MALFORMED, str(error))
        else:
            if request.kind in listener.closed_to:
                self._engine.refuse(peer, request.request_id, Code.WRONG_SOCKET, _WRONG_LISTENER)
            elif request.kind in LINK_KINDS:
                self._take_of_links(peer, request, now)
            elif self._settings.follow and _puts(request):
                self._engine.refuse(peer, request.request_id, Code.READ_ONLY, _READ_ONLY)
            else:
                if isinstance(request.body, Subscribe) and self._links.is_on:
                    self._links.asked(peer, request.request_id, request.body.topic)
                self._engine.handle(peer, request, now)

    def _take_of_links(self, peer: Peer, request: Request, now: Now) -> None:
        """Take what another broker says, or answer who asks about links."""
        if isinstance(request.body, Trace):
            self._trace(peer, request.request_id, request.body.message, now)
            return
        if request.kind != Kind.LINKS:
            self._links.heard(peer, request.kind, request.body, request.blob, now)
            return
        assert isinstance(request.body, AskLinks)
        if not request.body.forget:
            self._tell_of_links(peer, request.request_id, now)
            return
        why_not = self._links.forget(request.body.forget, now, (peer, request.request_id))
        if why_not:
            self._engine.refuse(peer, request.request_id, Code.MALFORMED, why_not)
        self._tell_forgotten(now)

    def _tell_of_links(self, peer: Peer, request_id: int, now: Now) -> None:
        self._transport.send(peer, pack_frames(Kind.ACK, request_id, LinksAre(self._links.status(now))))
        self._transport.flush()

    def _tell_forgotten(self, now: Now) -> None:
        for (peer, request_id), why_not in self._links.take_forgotten():
            if why_not:
                self._engine.refuse(peer, request_id, Code.BUSY, f"{why_not}. Try again: it is forgotten in part")
            else:
                self._tell_of_links(peer, request_id, now)

    def _trace(self, peer: Peer, request_id: int, message: bytes, now: Now) -> None:
        try:
            wanted = MessageId.from_bytes(message)
        except ValueError as error:
            self._engine.refuse(peer, request_id, Code.MALFORMED, str(error))
            return
        if not self._links.trace(wanted, (peer, request_id), now):
            self._engine.refuse(peer, request_id, Code.BUSY, "too many paths are being looked for; try again")
        self._tell_paths()

    def _tell_paths(self) -> None:
        for (peer, request_id), traced in self._links.take_paths():
            self._transport.send(peer, pack_frames(Kind.ACK, request_id, traced))
            self._transport.flush()

    def _has_room(self) -> bool:
        return self._engine.uncommitted_bytes() < self._settings.max_uncommitted_bytes

    def _submit(self, *, alone: bool) -> None:
        """Have what was taken committed: by the thread, or here where little came `alone` and that is quick.

        The two changes of thread saved are a fifth of what a lone put takes. Meanwhile nobody else is heard, but no
        longer than one small commit: a disk that turns slow is left to the thread again.
        """
        if self._committer.busy or (self._again_s and time.monotonic() < self._again_s):
            return
        self._again_s = 0.0
        if self._waiting is None and self._engine.take_chore():
            self._committer.keep_house()
            return
        group = self._take_group()
        if group is not None and alone and self._committer.is_quick(group):
            self._send_replies()  # they need not wait for it
            self._end_commit(self._committer.commit_here(group), self._now())
            self._send_replies()  # the log has it, which is all that was promised
            self._crash_points("after-answers")
            group = None if self._again_s else self._take_group()  # what the commit itself gave rise to
        if group is not None:
            self._committer.submit(group)

    def _take_group(self) -> Group | None:
        """Return what is to be committed now; not yet, where what is noted has to be saved before."""
        if self._waiting is None:
            group = self._engine.take_group()
            if group is None or not group.notes_first or self._histories is None:
                return group
            self._waiting = (group, self._histories.ticket())
        group, ticket = self._waiting
        if self._histories is not None and not self._histories.is_saved(ticket):
            return None
        self._waiting = None
        return group

    def _take_outcome(self, now: Now) -> None:
        outcome = self._committer.take()
        if outcome is not None:
            self._end_commit(outcome, now)

    def _end_commit(self, outcome: Outcome, now: Now) -> None:
        group, error = outcome
        if error is not None and not isinstance(error, StoreFull | StoreUnavailable):
            raise error
        if group is None:
            return  # the store looked after itself; what it had no room for it tries again
        if error is None:
            self._engine.committed(group, now)
        else:
            code = Code.DISK_FULL if isinstance(error, StoreFull) else Code.BUSY
            self._engine.commit_failed(group, code, str(error))
            self._again_s = time.monotonic() + _AGAIN_S

    def _send_replies(self) -> None:
        replies = self._engine.take_replies()
        if self._links.is_on and (replies or self._links.is_holding):
            replies = self._without_links(replies)
        if not replies:
            return
        self._crash_points("before-replies")
        delivered = False
        for reply in replies:
            if delivered and reply.kind == Kind.ACK:
                self._crash_points("after-delivery")
                delivered = False
            self._send(reply)
            delivered = delivered or reply.kind == Kind.MESSAGES
        self._transport.flush()

    def _without_links(self, replies: list[Reply]) -> list[Reply]:
        """Return what clients are answered now: of links are the rest, or held until other brokers have confirmed."""
        now = self._now()
        ours = []
        while replies:
            for reply in replies:
                if isinstance(reply.peer, LinkPeer):
                    self._links.on_reply(reply, now)
                elif not self._links.hold(reply, now):
                    ours.append(reply)
            self._tell_forgotten(now)
            replies = self._engine.take_replies()
        return ours + self._links.take_held(now, all_of_them=bool(self._stops))

    def _send(self, reply: Reply) -> None:
        if isinstance(reply.body, TELLING):
            reply.body.sequence = self._store.sequence
        elif isinstance(reply.body, Stats):
            known = reply.body.values
            both = {name: count + known.get(name, 0) for name, count in self._links.counters.items()}
            reply.body.values |= self._stats() | both  # what is forged, or left out, both count
        self._transport.send(reply.peer, pack_frames(reply.kind, reply.request_id, reply.body, reply.blobs))

    def _drain(self) -> None:
        """Commit and answer what was taken; take nothing more."""
        poller = zmq.Poller()
        poller.register(self._committer.ready, zmq.POLLIN)
        patience_s = time.monotonic() + _LINGER_MS / 1000
        self._again_s = 0.0
        while True:
            self._engine.make_haste()
            if not self._again_s:  # else a commit failed, and with it everything that was taken
                self._submit(alone=False)
            self._send_replies()
            held_back = self._transport.send_held_back()
            is_idle = not self._committer.busy and self._waiting is None
            if is_idle and (held_back is None or time.monotonic() > patience_s):
                return
            poller.poll(None if held_back is None and self._waiting is None else 1)
            now = self._now()
            if self._histories is not None:
                self._histories.turn(now)
            self._take_outcome(now)
            self._tell_notices(now)

    def _now(self) -> Now:
        return self._clock.look(time.monotonic(), time.clock_gettime(_RUNNING), self._wall_us())

    def _tell_notices(self, now: Now) -> None:
        for notice in self._clock.take_notices():
            log.warning("%s", notice)
        for level, text in self._links.take_notices():
            log.log(level, "%s", text)
        for level, text in self._engine.take_notices(now.monotonic_s):
            log.log(level, "%s", text)


def _puts(request: Request) -> bool:
    """Return whether a request is to put messages, now or later."""
    body = request.body
    return request.kind in PUBLISHER_KINDS or (isinstance(body, Transact) and bool(body.puts))
