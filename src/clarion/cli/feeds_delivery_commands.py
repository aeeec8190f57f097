"""`clarion feeds notify` and `clarion feeds chat`: the services that tell people what changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import typer

from clarion.cli.command_errors import announce_ready, needing, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option
from clarion.cli.feeds_commands import Allow
from clarion.cli.long_running import log_to_stderr, on_stop_signals
from clarion.model.errors import BadSettings


@tells_errors
def notify(
    url: Url = DEFAULT_URL,
    allow: Allow = None,
    at_once: int = option("32", "--at-once N", "Targets that are sent to at a time."),
    limit_s: float = option("60s", "--limit TIME", "The longest that one notification may take."),
    look_every_s: float = option("2s", "--look-every TIME", "Time between two looks for what is to be sent."),
    as_json: AsJson = False,
) -> None:
    """Send what changed to mailboxes, messengers and web hooks, until it is told to stop.

    One sends for all targets of `clarion feeds subscribe URL --notify TARGET`;
    several share the work. A target that fails is tried eight times, later and
    later; then what it did not take is among the dead letters of the channel's
    topic (`clarion dead list feeds/URL`).

    No notification reaches a private address or this machine, unless
    --allow names it: targets come from whoever may subscribe.

    \b
    Examples:
      clarion feeds notify
      clarion feeds notify --url tcp://10.0.0.5:5590 --allow 10.0.0.0/8
    """
    with needing("notifications need Apprise", "notify"):
        from clarion.feeds.addresses import AddressRules
        from clarion.feeds.feed_deliveries import DeliverySettings
        from clarion.feeds.notify import Notifier
    rules = AddressRules(allow or ())
    settings = DeliverySettings(at_once=at_once, limit_s=limit_s, look_every_s=look_every_s)

    async def serve() -> None:
        notifier = Notifier(url, rules, settings)
        announce_ready({"url": url, "pid": os.getpid()}, f"clarion: notifies for {url}", as_json=as_json)
        await notifier.run()

    _serve(serve())


@tells_errors
def chat(
    jid: str = option(..., "--jid NAME", "The account, as corona@example.org."),
    password_file: Path = option(..., "--password-file FILE", "The file whose first line is the account's password."),
    server: str = option("", "--server HOST:PORT", "The chat server.", show_default="as the account's domain says"),
    plaintext: bool = option(False, "--plaintext", "Talk without TLS; only to a server on this machine."),
    people: list[str] = option(
        [], "--people NAME", "A domain or account that may send commands; may be repeated.", show_default="everybody"
    ),
    most_channels: int = option("100", "--most-channels N", "Channels that one person may follow."),
    look_every_s: float = option("2s", "--look-every TIME", "Time between two looks for what is to be sent."),
    allow: Allow = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Be the XMPP account to which people send `subscribe URL`, until it is told to stop.

    They send `subscribe URL`, `unsubscribe URL`, `list` or `help`, and get the
    differences of what they follow. What waits for them is kept at the broker
    until the chat server has taken it, which keeps it for who is away. Of two
    that run for one account the later stays.

    \b
    Examples:
      clarion feeds chat --jid corona@example.org --password-file corona.password
      clarion feeds chat --jid corona@example.org --password-file secret --people example.org
    """
    with needing("chat needs slixmpp", "chat"):
        from clarion.feeds.chat import ChatBot, ChatSettings
        from clarion.feeds.feed_deliveries import DeliverySettings
        from clarion.feeds.fetcher import Fetcher, FetchSettings
        from clarion.feeds.front_end import Feeds
    host, port = _read_server(server)
    settings = ChatSettings(
        jid=jid, password=_read_password(password_file), host=host, port=port, plaintext=plaintext,
        allow=tuple(people), most_channels=most_channels,
    )  # fmt: skip

    async def serve() -> None:
        import asyncio

        fetcher = Fetcher(FetchSettings(allow=tuple(allow or ())))
        with Feeds(url) as feeds:
            bot = ChatBot(settings, url, feeds, DeliverySettings(look_every_s=look_every_s), fetcher=fetcher)
            running = asyncio.create_task(bot.run())
            online = asyncio.create_task(bot.online.wait())
            await asyncio.wait([running, online], return_when=asyncio.FIRST_COMPLETED)
            if online.done():
                facts = {"jid": settings.account, "url": url, "pid": os.getpid()}
                announce_ready(facts, f"clarion: {settings.account} is online", as_json=as_json)
            online.cancel()
            try:
                await running
            finally:
                running.cancel()
                await fetcher.close()

    _serve(serve())


def _serve(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until SIGTERM or Ctrl-C; the second ends the program at once."""
    import asyncio

    log_to_stderr()
    for name in ("apprise", "slixmpp"):  # what they would say is said by us, without secrets
        logging.getLogger(name).setLevel(logging.CRITICAL)

    async def until_stopped() -> None:
        running, stopping = asyncio.ensure_future(service), False

        def stop() -> None:
            nonlocal stopping
            stopping = True
            running.cancel()

        on_stop_signals(stop)
        try:
            await running
        except asyncio.CancelledError:
            if not stopping:
                raise

    asyncio.run(until_stopped())


def _read_password(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadSettings(
            f"the password cannot be read from {file}: {why}; choose another for --password-file"
        ) from None
    if not lines or not lines[0]:
        raise BadSettings(f"{file} has no password in its first line")
    return lines[0]


def _read_server(text: str) -> tuple[str, int]:
    if not text:
        return "", 5222
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise typer.BadParameter(f"it is HOST:PORT, as xmpp.example.org:5222, not {text!r}", param_hint="--server")
    return host.strip("[]"), int(port)
