"""Chat: an XMPP account to which people send `subscribe URL`, and which sends them the differences, readable.

Each person's subscription is durable: `chat/<account>/<person>` on the channel's topic. A delta is acked once the chat
server has taken the message: a server handles what it gets on one connection in order, so its answer to a ping that was
sent behind the message tells. From then on it is the server's, which keeps it for a person who is not there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from slixmpp import JID, ClientXMPP
from slixmpp.exceptions import IqTimeout
from slixmpp.jid import InvalidJID

from clarion.admin import Admin
from clarion.feeds.channels import PREFIX as CHANNELS
from clarion.feeds.channels import channel_hash, channel_topic, normalise_url, record_name
from clarion.feeds.deltas import Delta, readable_together
from clarion.feeds.feed_deliveries import Deliveries, DeliveryFailed, DeliverySettings
from clarion.feeds.fetcher import Fetcher, FetchFailed
from clarion.feeds.front_end import Feeds, feed_of
from clarion.feeds.registry import kept_record
from clarion.model.errors import BadSettings, ClarionError, RetryableError, TakenOver, Unreachable

log = logging.getLogger("clarion.feeds.chat")
_RESOURCE = "clarion-feeds"  # one bot of an account: the server ends the session that had it before
_NAME_MOST_BYTES = 1024
_COMMAND_MOST_CHARS = 8192
_ANSWER_S = 30.0  # for the chat server
_PING_EVERY_S = 60.0
_RECONNECT_MOST_S = 60.0
_WORKERS = 8
_QUEUED_MOST = 100  # commands of a worker
_RATES_KEPT = 10_000  # people
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LONG = re.compile(r"/~[0-9a-f]{40}$")

HELP = """I tell you what changes on the web. Send me:
subscribe URL - follow a feed or a page
unsubscribe URL - no longer follow it
list - what you follow
help - this"""


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The account, and what people may do with it."""

    jid: str
    password: str
    host: str = ""  # of the server; none: as the domain's DNS says
    port: int = 5222
    plaintext: bool = False  # without TLS: only to a server on this machine
    allow: tuple[str, ...] = ()  # domains and JIDs; none: everybody
    most_channels: int = 100  # of a person
    most_chars: int = 3000  # of a message
    commands_per_minute: int = 20  # of a person

    def __post_init__(self) -> None:
        try:
            account = JID(self.jid)
        except InvalidJID:
            raise BadSettings(f"{self.jid!r} is no account of a chat: it is like corona@example.org") from None
        if not account.user or not account.domain:
            raise BadSettings(f"{self.jid!r} is no account of a chat: it is like corona@example.org")
        if self.plaintext and self.host not in _LOOPBACK:
            raise BadSettings("without TLS only a server on this machine is talked to: --server 127.0.0.1:5222")

    @property
    def account(self) -> str:
        """The account, without a resource."""
        return str(JID(self.jid).bare)

    def allows(self, person: str) -> bool:
        """Tell whether somebody may send commands."""
        return not self.allow or person in self.allow or person.partition("@")[2] in self.allow


class Command(NamedTuple):
    """What somebody wants."""

    verb: Literal["subscribe", "unsubscribe", "list", "help", "unknown"]
    argument: str = ""


_VERBS: dict[str, Literal["subscribe", "unsubscribe", "list", "help"]] = {
    **dict.fromkeys(("subscribe", "sub", "follow", "add", "watch"), "subscribe"),
    **dict.fromkeys(("unsubscribe", "unsub", "unfollow", "remove", "stop"), "unsubscribe"),
    **dict.fromkeys(("list", "ls", "show"), "list"),
    **dict.fromkeys(("help", "?", "hi", "hello", "start"), "help"),
}


def read_command(text: str) -> Command:
    """Return what a message asks for, however it is written: case, spaces, a slash before it or a bare URL."""
    words = text.strip()[:_COMMAND_MOST_CHARS].split()
    if not words:
        return Command("unknown")
    verb = _VERBS.get(words[0].lower().lstrip("/!").rstrip(":,.!") or words[0])
    argument = (words[1] if len(words) > 1 else "").strip("<>\"'")
    if verb is None and len(words) == 1 and words[0].strip("<>").lower().startswith(("http://", "https://")):
        return Command("subscribe", words[0].strip("<>"))
    if verb is None or (verb in ("list", "help") and len(words) > 3):
        return Command("unknown", words[0])
    if verb in ("subscribe", "unsubscribe"):
        if "://" not in argument and "." in argument:
            argument = "https://" + argument
        return Command(verb, argument)
    return Command(verb)


class Rates:
    """How many commands each person may still send: so many a minute, and as many at once."""

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, person: str, now_s: float) -> Literal["yes", "told", "no"]:
        """Return whether a command is taken; "told" for the first that is not, which is answered."""
        left, at_s = self._left.pop(person, (self._most, now_s))
        left = min(self._most, left + (now_s - at_s) * self._most / 60)
        self._left[person] = (max(left - 1, -1.0), now_s)  # the last who wrote comes last
        while len(self._left) > _RATES_KEPT:
            del self._left[next(iter(self._left))]
        return "yes" if left >= 1 else "told" if left > 0 else "no"


class ChatBot:
    """The account at work. `run` it on one event loop; it reconnects by itself, to the server and to the broker."""

    def __init__(
        self,
        settings: ChatSettings,
        url: str | None,
        feeds: Feeds,
        delivery: DeliverySettings | None = None,
        *,
        fetcher: Fetcher | None = None,  # by which the feed of a page is found; none: the page itself is followed
        dice: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.online = asyncio.Event()
        self._gone = asyncio.Event()  # the connection
        self.deliveries = Deliveries(url, f"chat/{settings.account}/", self._deliver, delivery)
        self.deliveries.paused = True
        self._url = url
        self._feeds = feeds
        self._fetcher = fetcher
        self._dice = dice or random.Random()
        self._rates = Rates(settings.commands_per_minute)
        self._bounced: dict[str, str] = {}  # what became of messages under way, by id
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues: list[asyncio.Queue[tuple[str, str]]] = [asyncio.Queue(_QUEUED_MOST) for _ in range(_WORKERS)]
        self._failures = 0
        self._reconnecting: asyncio.TimerHandle | None = None
        self._client = self._make_client()

    def _make_client(self) -> Any:
        settings = self.settings
        plain = {f"unencrypted_{kind}": True for kind in ("plain", "scram")} if settings.plaintext else {}
        client = ClientXMPP(
            f"{settings.account}/{_RESOURCE}", settings.password, plugin_config={"feature_mechanisms": plain}
        )
        client.enable_plaintext = settings.plaintext
        client.enable_starttls = client.enable_direct_tls = not settings.plaintext
        client.auto_authorize, client.auto_subscribe = None, False
        client.register_plugin("xep_0199")
        for event, handler in (
            ("session_start", self._on_session),
            ("disconnected", self._on_disconnected),
            ("connection_failed", self._on_unreachable),
            ("failed_all_auth", self._on_refused),
            ("stream_error", self._on_stream_error),
            ("message", self._on_message),
            ("message_error", self._on_bounce),
            ("presence_subscribe", self._on_presence),
        ):
            client.add_event_handler(event, handler)
        return client

    async def run(self) -> None:
        """Answer and deliver until this is cancelled; raise where it makes no sense to go on."""
        admin = Admin(self._url, timeout_s=self.deliveries.settings.timeout_s)
        self._admin = admin
        self._connect()
        works = [
            asyncio.create_task(work) for work in (self.deliveries.run(), self._watch(), *map(self._work, self._queues))
        ]
        try:
            await asyncio.wait([self._ended, *works], return_when=asyncio.FIRST_COMPLETED)
            for done in (self._ended, *works):
                if done.done():
                    done.result()
        finally:
            self._ended.cancel()
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self._client.cancel_connection_attempt()
            await self._client.disconnect(1.0)
            await asyncio.to_thread(admin.close)

    # The connection.

    def _connect(self) -> None:
        self._reconnecting = None
        if not self._ended.done():
            if self.settings.host:
                self._client.connect(self.settings.host, self.settings.port)
            else:
                self._client.connect()

    async def _on_session(self, _event: object) -> None:
        if self._client.boundjid.resource != _RESOURCE:
            log.info("the server calls this session %s: another bot of the account may run", self._client.boundjid)
        self._failures = 0
        self._client.send_presence(pstatus="send me: subscribe URL")
        self._client.get_roster()
        log.info("online as %s", self._client.boundjid)
        self._gone.clear()
        self.online.set()
        self.deliveries.paused = False
        self.deliveries.look_soon()

    def _on_disconnected(self, reason: object) -> None:
        self.online.clear()
        self._gone.set()
        self.deliveries.paused = True
        if self._ended.done() or self._reconnecting is not None:
            return
        self._failures += 1
        wait_s = min(_RECONNECT_MOST_S, 2.0**self._failures) * self._dice.uniform(0.5, 1.0)
        log.warning("the chat server is gone (%s); connecting again in %.0f s", reason or "no reason told", wait_s)
        self._reconnecting = asyncio.get_running_loop().call_later(wait_s, self._connect)

    def _on_unreachable(self, reason: object) -> None:
        log.info("no connection to the chat server this way, which is tried again: %s", reason)  # or with another TLS

    def _on_refused(self, _event: object) -> None:
        self._end(
            BadSettings(
                f"the server does not let {self.settings.account} in: is the password right? (Over a connection without"
                " TLS none is told.) What waits for people is kept at the broker"
            )
        )

    def _on_stream_error(self, error: Any) -> None:
        if error["condition"] == "conflict":
            self._end(
                TakenOver(f"another bot has taken {self.settings.account} over; this one ends, and nothing is lost")
            )
        else:
            log.warning("the chat server says: %s %s", error["condition"], error["text"])

    def _end(self, error: ClarionError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _confirm(self) -> None:
        """Wait until the server has handled all that was sent before; Unreachable where it does not answer."""
        answered = self._client.plugin["xep_0199"].send_ping(self._client.boundjid.host, timeout=_ANSWER_S)
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait([answered, gone], timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not answered.done():
                answered.cancel()
        if answered.cancelled() or isinstance(answered.exception(), IqTimeout):
            raise Unreachable("the chat server does not answer; what was sent is sent again")
        # An error is an answer, too, of a server that knows no pings.

    async def _watch(self) -> None:
        """End a connection that is dead and does not show it."""
        while True:
            await asyncio.sleep(_PING_EVERY_S)
            await self.online.wait()
            try:
                await self._confirm()
            except RetryableError as error:
                log.warning("%s", error)
                self._client.abort()

    # What goes out.

    async def _deliver(self, person: str, deltas: Sequence[Delta], attempt: int) -> None:
        if not self.online.is_set():
            raise Unreachable("the chat server is not connected")
        again = "\n(This may have come before.)" if attempt > 1 else ""
        text = readable_together(deltas, self.settings.most_chars - len(again)) + again
        versions = "\n".join(f"{delta.url} {delta.version}" for delta in deltas)
        number = hashlib.sha256(f"{person}\n{versions}".encode()).hexdigest()[:32]  # the same when it is sent again
        self._bounced[number] = ""
        try:
            self._say(person, text, number)
            await self._confirm()
            if reason := self._bounced[number]:
                raise DeliveryFailed(f"the chat server does not take it: {reason}")
        finally:
            del self._bounced[number]

    def _say(self, person: str, text: str, number: str = "") -> None:
        message = self._client.make_message(mto=person, mbody=text, mtype="chat")
        if number:
            message["id"] = number
        message.send()

    def _on_bounce(self, message: Any) -> None:
        number = message["id"]
        reason = f"{message['error']['condition']} {message['error']['text']}".strip()
        if number in self._bounced:
            self._bounced[number] = reason
        else:
            log.warning("%s did not get a message: %s", message["from"].bare, reason)

    # What comes in.

    def _on_presence(self, presence: Any) -> None:
        """Let who may send commands see that the bot is there."""
        person = presence["from"].bare
        self._client.send_presence(pto=person, ptype="subscribed" if self.settings.allows(person) else "unsubscribed")

    def _on_message(self, message: Any) -> None:
        person, text = str(message["from"].bare), str(message["body"])
        if message["type"] not in ("chat", "normal") or not text.strip() or person == self.settings.account:
            return
        taken = self._rates.take(person, time.monotonic())
        if taken == "told":
            self._say(person, "That is more than I can do at once. Try again in a minute.")
        elif taken == "yes" and not self.settings.allows(person):
            self._say(person, "I am not here for you: whoever runs me has named who may write to me.")
        elif taken == "yes":
            try:
                self._queues[hash(person) % _WORKERS].put_nowait((person, text))
            except asyncio.QueueFull:
                self._say(person, "Too many people write to me just now, and this was not done. Try again in a minute.")

    async def _work(self, queue: asyncio.Queue[tuple[str, str]]) -> None:
        """Do commands, those of one person in their order."""
        while True:
            person, text = await queue.get()
            try:
                answer = await self._answer(person, read_command(text))
            except RetryableError:
                answer = "I cannot reach my broker just now. What you follow is kept; please try again in a minute."
            except ClarionError as error:
                answer = f"That cannot be done: {error}"
            await self.online.wait()
            self._say(person, answer[: self.settings.most_chars])

    async def _answer(self, person: str, command: Command) -> str:
        """Do a command; return what is said to it."""
        if command.verb == "help":
            return HELP
        if command.verb == "list":
            return await self._list(person)
        if command.verb == "unknown":
            return f"I do not know “{command.argument[:40]}”.\n{HELP}"
        if not command.argument:
            return f"Which URL? As in: {command.verb} https://example.org/feed"
        name = f"chat/{self.settings.account}/{person}"
        if len(name.encode()) > _NAME_MOST_BYTES:
            return "Your address is too long for me."
        url = normalise_url(command.argument)
        if command.verb == "unsubscribe":
            ended = await asyncio.to_thread(self._feeds.unsubscribe, url, name)
            self.deliveries.note(person, channel_topic(url).encode(), follows=False)
            return f"You no longer follow {url}" if ended else f"You do not follow {url}. What you follow: list"
        followed = self.deliveries.followed.get(person, {})
        if len(followed) >= self.settings.most_channels and channel_topic(url).encode() not in followed:
            return f"You follow {self.settings.most_channels} channels, and more are not possible. Give one up first."
        found = await self._feed_of(url)
        made = await asyncio.to_thread(self._feeds.subscribe, found, name)
        self.deliveries.note(person, made.topic.encode(), follows=True)
        if not made.is_new:
            return f"You follow {found} already."
        which = found if found == url else f"{found}, the feed of that page,"
        return f"You follow {which} now. I write when it changes."

    async def _feed_of(self, url: str) -> str:
        if self._fetcher is None:
            return url
        try:
            return await feed_of(url, self._fetcher)
        except FetchFailed:  # those who poll it will tell what is wrong
            return url

    async def _list(self, person: str) -> str:
        if not self.deliveries.reachable:
            raise Unreachable("the broker did not answer the last time")
        topics = [topic.decode() for topic in self.deliveries.followed.get(person, {})]
        if not topics:
            return "You follow nothing yet. Send me: subscribe URL"
        urls = await asyncio.to_thread(lambda: sorted(map(self._url_of, topics)))
        lines = [f"You follow {len(urls)} of at most {self.settings.most_channels}:"]
        room = self.settings.most_chars - 80
        for url in urls:
            room -= len(url) + 1
            if room < 0:
                lines.append(f"… and {len(urls) - len(lines) + 1} more")
                break
            lines.append(url)
        return "\n".join(lines)

    def _url_of(self, topic: str) -> str:
        """Return the URL of a channel's topic, which names it unless it is very long."""
        record = kept_record(self._admin.state(record_name(channel_hash(topic)))) if _LONG.search(topic) else None
        return record.url if record else topic.removeprefix(CHANNELS)
