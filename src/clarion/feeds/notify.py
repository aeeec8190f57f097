"""Notifications: the differences of channels sent to mailboxes, messengers and web hooks, by Apprise.

A target is an Apprise URL (mailto://, tgram://, ntfy://, json://, …), often with a secret in it. So the subscription is
named by a hash, `notify/<hash>`, and the target itself is a named state of the broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import apprise

from clarion.admin import Admin
from clarion.feeds.addresses import AddressRules
from clarion.feeds.channels import PREFIX as CHANNELS
from clarion.feeds.deltas import Delta, readable_together
from clarion.feeds.feed_deliveries import Deliveries, DeliveryFailed, DeliverySettings
from clarion.model.errors import PermanentError, VersionConflict
from clarion.subscriber import Subscriber

log = logging.getLogger("clarion.feeds.notify")
PREFIX = "notify/"
_TARGETS = "clarion/feeds/targets/"
_TARGET_MOST_CHARS = 4096
_TEXT_MOST_CHARS = 20_000
_TITLE_MOST_CHARS = 120
_SOCKET_S = 15.0  # the longest that a target may have Apprise wait for an answer
_SENDING_MOST = 128  # threads, those that hang included
_OF_THIS_MACHINE = frozenset({"dbus", "glib", "gnome", "kde", "macosx", "qt", "syslog", "windows", "blink1"})
_MENTION = re.compile("@(?=everyone|here|channel|all)", re.IGNORECASE)


class BadTarget(PermanentError):
    """This is no target of notifications, or none that is allowed; nothing was done."""


def target_name(target: str) -> str:
    """Return the name of the subscription by which a target follows a channel."""
    return PREFIX + hashlib.sha256(target.strip().encode()).hexdigest()[:40]


def _state_name(name: str) -> str:
    return _TARGETS + name.removeprefix(PREFIX)


def shown_target(target: str) -> str:
    """Return a target as it may be shown and logged: without its secrets."""
    return _shown(open_target(target))


def _shown(service: Any) -> str:
    return str(service.url(privacy=True)).partition("?")[0]


class _Watch:
    """What Apprise may reach and has said while it works for one target."""

    def __init__(self, rules: AddressRules) -> None:
        self.rules = rules
        self.refused = ""
        self.said = ""


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)  # Apprise takes it along into threads of its own


def _hear(record: logging.LogRecord) -> bool:
    """Keep what Apprise would log while it works for us: some of it names the target, secrets and all."""
    watch = _watch.get()
    if watch is not None and record.levelno >= logging.WARNING:
        watch.said = record.getMessage()
    return watch is None


logging.getLogger("apprise").addFilter(_hear)


def _without_secrets(text: str, target: str) -> str:
    """Return a text without anything that stands in a target."""
    for part in sorted(set(re.split(r"[:/@?&=#]+", f"{target}/{unquote(target)}")), key=len, reverse=True):
        text = text.replace(part, "…") if len(part) > 3 else text
    return text[:200]


def open_target(target: str) -> Any:
    """Return Apprise's service for a target; BadTarget where there is none. No error tells the target's secrets."""
    target = target.strip()
    kind = target.partition("://")[0][:20]
    if len(target) > _TARGET_MOST_CHARS:
        raise BadTarget(f"a target of more than {_TARGET_MOST_CHARS} characters is not taken")
    try:
        options = parse_qsl(urlsplit(target).query)
    except ValueError:
        raise BadTarget(f"this {kind}:// target is no URL") from None
    for key, value in options:
        if value.startswith(("/", "~", "file:", "..")) and not key.startswith(("+", "-", ":")):
            raise BadTarget(
                f"the target's {key!r} names a file of the machine that notifies, and no such target is taken"
            )
    asset = apprise.AppriseAsset(http_redirects=False, storage_mode="memory", async_mode=False, service_timeout=0)
    quiet = _watch.set(_Watch(AddressRules()))
    try:
        service = apprise.Apprise.instantiate(target, asset=asset, suppress_exceptions=True)
    finally:
        _watch.reset(quiet)
    if service is None:
        raise BadTarget(
            f"this {kind}:// target is none that Apprise knows, or lacks something. Forms are like"
            " mailto://user:password@example.org, tgram://token/chat, ntfy://topic or jsons://example.org/hook"
        )
    service.socket_connect_timeout = min(float(service.socket_connect_timeout), _SOCKET_S)
    service.socket_read_timeout = min(float(service.socket_read_timeout), _SOCKET_S)
    if service.overflow_mode == apprise.OverflowMode.UPSTREAM:
        service.overflow_mode = apprise.OverflowMode.SPLIT
    return service


def keep_target(broker: str | None, target: str) -> str:
    """Have the broker keep a target, before anything is followed for it; return the name that it follows by, with a
    shared subscription of `ATTEMPTS` attempts."""
    open_target(target)
    name = target_name(target)
    with Subscriber(broker, name) as client, client.transaction() as tx:
        tx.set(_state_name(name), target.strip())
    return name


def forget_target(broker: str | None, target: str) -> bool:
    """Have the broker forget a target for which nothing is followed any more; return whether it did."""
    name = target_name(target)
    with Admin(broker) as admin, Subscriber(broker, name) as client:
        version = client.state(_state_name(name)).version
        if any(name.encode() == one for row in admin.topics(CHANNELS) for one, _, _ in row.subscriptions):
            return False
        try:
            with client.transaction() as tx:
                tx.set(_state_name(name), None, expect=version)
        except VersionConflict:  # somebody keeps it anew just now
            return False
    return True


# What a notification may reach.


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what a send that is watched must not reach. Python tells of every connection before it is made, with the
    address itself: so neither a name that resolves differently the next time nor a redirect leads around this."""
    if event not in ("socket.connect", "socket.sendto") or (watch := _watch.get()) is None:
        return
    address = arguments[1]
    reason: str | None = "a socket of this machine"
    if isinstance(address, tuple) and len(address) >= 2:
        reason = watch.rules.forbidden(str(address[0]).partition("%")[0], address[1])
    elif watch.rules.forbidden("127.0.0.1") is None:
        reason = None
    if reason is not None:
        watch.refused = f"it leads to an address that is not allowed ({reason})"
        raise PermissionError(watch.refused)


_watching = threading.Lock()
_watched = False


def _watch_connections() -> None:
    global _watched
    with _watching:
        if not _watched:
            sys.addaudithook(_on_audit)
            _watched = True


# Sending.


def composed(deltas: Sequence[Delta], attempt: int, most_chars: int) -> tuple[str, str]:
    """Return the title and the text of a notification, both plain: Apprise escapes them for HTML and Markdown."""
    channels = len({delta.url for delta in deltas})
    title = deltas[0].readable().partition("\n")[0]
    if len(deltas) > 1:
        title = (
            f"{len(deltas)} updates of {channels} channels" if channels > 1 else f"{title} (and {len(deltas) - 1} more)"
        )
    again = f"\n\n(attempt {attempt}: some of this may have come before)" if attempt > 1 else ""
    text = readable_together(deltas, max(100, min(most_chars, _TEXT_MOST_CHARS) - len(again))) + again
    return _MENTION.sub("@\u200b", title)[:_TITLE_MOST_CHARS], _MENTION.sub("@\u200b", text)


class Notifier:
    """Sends to all targets what their channels found. Several may run: they share the work.

    A delta is acked once its target took it, so it is sent at least once; a target that fails is tried again, later
    and later, and after eight attempts what it did not take lies among the dead letters of the channel's topic.
    """

    def __init__(
        self, url: str | None = None, rules: AddressRules | None = None, settings: DeliverySettings | None = None
    ) -> None:
        self._url = url
        self._rules = rules or AddressRules()
        self._sending: dict[str, threading.Thread] = {}
        self.deliveries = Deliveries(url, PREFIX, self._deliver, settings, shared=True)

    async def run(self) -> None:
        """Send until this is cancelled."""
        _watch_connections()
        self._admin = Admin(self._url, timeout_s=self.deliveries.settings.timeout_s)
        try:
            await self.deliveries.run()
        finally:
            await asyncio.to_thread(self._admin.close)

    async def _deliver(self, recipient: str, deltas: Sequence[Delta], attempt: int) -> None:
        self._sending = {who: thread for who, thread in self._sending.items() if thread.is_alive()}
        if recipient in self._sending:
            raise DeliveryFailed("the last attempt has not ended yet")
        if len(self._sending) >= _SENDING_MOST:
            raise DeliveryFailed(f"{_SENDING_MOST} targets take their time already")
        kept = await asyncio.to_thread(self._admin.state, _TARGETS + recipient)
        if kept.value is None:
            raise DeliveryFailed("its target is not kept any more: subscribe again with --notify, or unsubscribe it")
        try:
            target = kept.value.decode()
            service = open_target(target)
        except (BadTarget, UnicodeDecodeError) as error:
            raise DeliveryFailed(str(error)) from None
        if service.schemas() & _OF_THIS_MACHINE and self._rules.forbidden("127.0.0.1") is not None:
            raise DeliveryFailed("it shows something on the notifier's own machine, which is not allowed")
        title, text = composed(deltas, attempt, int(service.body_maxlen) or _TEXT_MOST_CHARS)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def send() -> None:
            problem = self._send(target, service, title, text)
            with suppress(RuntimeError):  # the loop is over: nobody waits
                loop.call_soon_threadsafe(_settle, done, problem)

        # A thread of its own, and none that the end of the process waits for: what hangs holds nobody up.
        thread = self._sending[recipient] = threading.Thread(target=send, name=f"notify {recipient[:8]}", daemon=True)
        thread.start()
        if problem := await done:
            raise DeliveryFailed(f"{_shown(service)}: {problem}")

    def _send(self, target: str, service: Any, title: str, text: str) -> str:
        """Send, and return what went wrong, or nothing."""
        watch = _Watch(self._rules)
        _watch.set(watch)  # of this thread, which ends with it
        try:
            notifier = apprise.Apprise(asset=service.asset)
            notifier.add(service)
            sent = notifier.notify(
                text, title if service.title_maxlen > 0 else "", body_format=apprise.NotifyFormat.TEXT
            )
            said = _without_secrets(watch.said, target) or "no reason told"
            return "" if sent else watch.refused or f"it did not take it: {said}"
        except Exception as error:  # noqa: BLE001 of a hundred plug-ins, any may raise anything
            return watch.refused or f"{type(error).__name__} while sending"


def _settle(done: asyncio.Future[str], problem: str) -> None:
    if not done.done():  # nobody waits any more
        done.set_result(problem)
