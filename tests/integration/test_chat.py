"""Chat, against a real Prosody: people follow pages by writing to an account, and get what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from slixmpp import ClientXMPP
from tests.integration.broker_process import BrokerProcess
from tests.integration.prosody import PASSWORD, Prosody
from tests.integration.shell import read_line, start
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher
from clarion.feeds.channels import channel_topic
from clarion.feeds.chat import HELP, ChatBot, ChatSettings
from clarion.feeds.deltas import Change, Delta, encode_delta
from clarion.feeds.feed_deliveries import DeliverySettings
from clarion.feeds.front_end import Feeds
from clarion.model.errors import BadSettings, TakenOver


@pytest.fixture(scope="module")
def prosody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prosody]:
    server = Prosody(tmp_path_factory.mktemp("prosody"), "corona", "alice", "bob", "carol").start()
    yield server
    server.close()


class Person:
    """Somebody with a chat program."""

    def __init__(self, server: Prosody, name: str) -> None:
        config = {"feature_mechanisms": {"unencrypted_plain": True, "unencrypted_scram": True}}
        self._client: Any = ClientXMPP(f"{name}@localhost/test", PASSWORD, plugin_config=config)
        self._client.enable_plaintext = True
        self._client.enable_starttls = self._client.enable_direct_tls = False
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._there = asyncio.Event()
        self._client.add_event_handler("session_start", self._on_session)
        self._client.add_event_handler("message", lambda message: self._heard.put_nowait(message["body"]))
        self._client.connect("127.0.0.1", server.port)

    def _on_session(self, _event: object) -> None:
        self._client.send_presence()
        self._there.set()

    async def say(self, text: str) -> None:
        """Write to the account."""
        await asyncio.wait_for(self._there.wait(), DEADLINE_S)
        self._client.send_message(mto="corona@localhost", mbody=text, mtype="chat")

    async def hear(self) -> str:
        """Return the next message."""
        return await asyncio.wait_for(self._heard.get(), DEADLINE_S)

    async def ask(self, text: str) -> str:
        """Write, and return the answer."""
        await self.say(text)
        return await self.hear()

    async def leave(self) -> None:
        """Go offline."""
        await self._client.disconnect()


@asynccontextmanager
async def _bot(server: Prosody, url: str, *, timeout_s: float = DEADLINE_S, **more: Any) -> Any:
    settings = ChatSettings(
        jid="corona@localhost", password=PASSWORD, host="127.0.0.1", port=server.port, plaintext=True, **more
    )
    with Feeds(url, timeout_s=timeout_s) as feeds:
        bot = ChatBot(settings, url, feeds, DeliverySettings(look_every_s=0.2, timeout_s=timeout_s))
        running = asyncio.create_task(bot.run())
        online = asyncio.create_task(bot.online.wait())
        await asyncio.wait([running, online], return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S)
        online.cancel()
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _put(url: str, page: str, version: int, *titles: str) -> None:
    changes = tuple(Change(kind="new", title=title, link=f"{page}#{title}") for title in titles)
    delta = Delta(url=page, version=version, kind="delta", form="feed", title="A page", changes=changes)
    with Publisher(url) as publisher:
        publisher.put(channel_topic(page), encode_delta(delta)).result(DEADLINE_S)


def _followers(url: str, page: str) -> Sequence[bytes]:
    with Admin(url) as admin:
        return [one.name for one in admin.describe_topic(channel_topic(page)).subscriptions]


def test_a_person_follows_a_page_gets_what_changes_and_gives_it_up(prosody: Prosody, url: str) -> None:
    page = "http://example.org/news"

    async def talk() -> None:
        async with _bot(prosody, url, most_channels=1):
            alice = Person(prosody, "alice")
            assert await alice.ask("  HELP me") == HELP
            assert "nothing yet" in await alice.ask("list")
            assert "You follow http://example.org/news now" in await alice.ask("Sub   HTTP://Example.org/news#top")
            assert "already" in await alice.ask(page)
            assert (await alice.ask("/list")).splitlines() == ["You follow 1 of at most 1:", page]
            assert "more are not possible" in await alice.ask("subscribe http://example.org/other")
            assert "only http" in await alice.ask("subscribe ftp://example.org/")
            assert _followers(url, page) == [b"chat/corona@localhost/alice@localhost"]
            await asyncio.to_thread(_put, url, page, 2, "Rain & <wind>", "a\x00b")
            told = await alice.hear()
            assert told.splitlines()[:2] == ["A page: 2 new", "+ Rain & <wind>"]
            assert "no longer" in await alice.ask(f"unsubscribe {page}")
            assert "do not follow" in await alice.ask(f"unsub {page}")
            assert _followers(url, page) == []
            await alice.leave()

    asyncio.run(talk())


def test_what_is_found_while_bot_and_person_are_away_is_not_lost(prosody: Prosody, url: str, tmp_path: Path) -> None:
    page = "http://127.0.0.1:1/away"
    (tmp_path / "password").write_text(PASSWORD + "\n")
    command = (
        "feeds", "chat", "--jid", "corona@localhost", "--password-file", str(tmp_path / "password"), "--url", url,
        "--server", f"127.0.0.1:{prosody.port}", "--plaintext", "--look-every", "200ms", "--json",
    )  # fmt: skip

    async def subscribe() -> None:
        bob = Person(prosody, "bob")
        assert "You follow" in await bob.ask(f"subscribe {page}")
        await bob.leave()

    async def read() -> None:
        bob = Person(prosody, "bob")
        assert "first" in await bob.hear()
        assert "second" in await bob.hear()
        await asyncio.to_thread(_put, url, page, 3, "third")
        assert "third" in await bob.hear()  # and nothing twice in between
        await bob.leave()

    bot = start(*command)
    try:
        assert b'"ready"' in read_line(bot)
        asyncio.run(subscribe())
        bot.kill()
        bot.communicate()
        _put(url, page, 1, "first")
        bot = start(*command)
        assert b'"ready"' in read_line(bot)
        _wait_until_read(url, page)  # the server keeps it, and bob is not there
        _put(url, page, 2, "second")
        asyncio.run(read())
        bot.terminate()
        _, said = bot.communicate(timeout=DEADLINE_S)
        assert (bot.returncode, PASSWORD.encode() in said) == (0, False), said
    finally:
        bot.kill()
        bot.communicate()


def _wait_until_read(url: str, page: str) -> None:
    with Admin(url) as admin:
        eventually(
            lambda: all(one.lag == 0 for one in admin.describe_topic(channel_topic(page)).subscriptions),
            "the bot has delivered all",
        )


def test_the_bot_comes_back_to_a_server_that_was_away(prosody: Prosody, url: str) -> None:
    page = "http://example.org/restart"

    async def talk() -> None:
        async with _bot(prosody, url):
            carol = Person(prosody, "carol")
            assert "You follow" in await carol.ask(f"subscribe {page}")
            await carol.leave()
            await asyncio.to_thread(prosody.stop)
            await asyncio.to_thread(_put, url, page, 1, "meanwhile")
            await asyncio.to_thread(prosody.start)
            carol = Person(prosody, "carol")
            assert "meanwhile" in await carol.hear()
            await carol.leave()

    asyncio.run(talk())


def test_where_the_broker_is_away_people_are_told_and_what_they_want_later_is_done(
    prosody: Prosody, broker: BrokerProcess
) -> None:
    page = "http://example.org/later"

    async def talk() -> None:
        async with _bot(prosody, broker.url, timeout_s=1.0):
            alice = Person(prosody, "alice")
            assert "nothing yet" in await alice.ask("list")
            await asyncio.to_thread(broker.kill)
            assert "cannot reach my broker" in await alice.ask(f"subscribe {page}")
            await asyncio.to_thread(broker.start)
            while "You follow" not in await alice.ask(f"subscribe {page}"):
                pass
            await asyncio.to_thread(_put, broker.url, page, 1, "Rain")
            while "+ Rain" not in await alice.hear():
                pass
            await alice.leave()

    asyncio.run(talk())


def test_the_later_of_two_bots_of_an_account_stays(prosody: Prosody, url: str) -> None:
    async def talk() -> None:
        async with _bot(prosody, url) as earlier, _bot(prosody, url) as later:
            with pytest.raises(TakenOver, match="another bot"):
                await asyncio.wait_for(asyncio.shield(earlier), DEADLINE_S)
            alice = Person(prosody, "alice")
            assert await alice.ask("?") == HELP
            assert not later.done()
            await alice.leave()

    asyncio.run(talk())


def test_strangers_are_not_served_and_a_wrong_password_ends_it(prosody: Prosody, url: str) -> None:
    async def talk() -> None:
        async with _bot(prosody, url, allow=("example.org", "bob@localhost")):
            alice, bob = Person(prosody, "alice"), Person(prosody, "bob")
            assert "not here for you" in await alice.ask("help")
            assert await bob.ask("help") == HELP
            await alice.leave()
            await bob.leave()
        settings = ChatSettings(
            jid="corona@localhost", password="wrong", host="127.0.0.1", port=prosody.port, plaintext=True
        )
        with Feeds(url) as feeds, pytest.raises(BadSettings, match="is the password right"):
            await asyncio.wait_for(ChatBot(settings, url, feeds).run(), DEADLINE_S)

    asyncio.run(talk())


def test_a_server_without_tls_is_told_no_password_unless_that_was_asked_for(prosody: Prosody, url: str) -> None:
    async def talk() -> None:
        settings = ChatSettings(jid="corona@localhost", password=PASSWORD, host="127.0.0.1", port=prosody.port)
        with Feeds(url) as feeds, pytest.raises(BadSettings, match="without TLS none is told"):
            await asyncio.wait_for(ChatBot(settings, url, feeds).run(), DEADLINE_S)

    asyncio.run(talk())


def test_without_tls_only_this_machine_is_talked_to() -> None:
    with pytest.raises(BadSettings, match="without TLS"):
        ChatSettings(jid="corona@example.org", password="x", host="xmpp.example.org", plaintext=True)
