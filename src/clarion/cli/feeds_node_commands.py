"""`clarion feeds node` and `clarion feeds run`: the nodes that poll, alone or with all that a laptop needs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.command_errors import announce_ready, needing, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, option, with_options
from clarion.cli.feeds_commands import Allow, As, follow, login_name, needing_feeds, print_deltas, with_scheme
from clarion.cli.feeds_plan_command import SchemeName
from clarion.cli.long_running import broker_where_none_answers, log_to_stderr, on_stop_signals, stop_signals
from clarion.cli.output import readable_duration
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.feeds.node import Node
    from clarion.feeds.node_settings import NodeSettings
    from clarion.feeds.notify import Notifier

_BrokerUrl = Annotated[str, option(..., "--url --broker URL", "Address of the broker.", envvar="CLARION_URL")]
_SAME = "; the same for all nodes of a ring"
_OPTIONS: list[tuple[str, Any, Any]] = [
    (name, Annotated[kind, option(..., names, told)], default)
    for name, kind, default, names, told in (
        ("scheme", SchemeName, SchemeName.LITE, "--scheme", f"What is optimised{_SAME}."),
        ("target_s", float | None, None, "--target-s --target TIME", "Mean detection that fast aims at."),
        ("base", int, 16, "--base", f"Of the ring's digits: 2, 4, 16, 32 or 256{_SAME}."),
        ("host_limit_per_s", float, 1.0, "--host-limit", f"Polls of one host a second, by all nodes{_SAME}."),
        ("beat_s", float, "2s", "--beat TIME", f"Between two heartbeats{_SAME}."),
        ("maintenance_s", float, "5m", "--maintenance TIME", "Between two rounds of deciding."),
        ("polls_at_once", int, 64, "--polls-at-once N", "Most requests under way."),
        ("robots", bool, False, "--robots", "Respect robots.txt."),
        ("cache_control", bool, False, "--cache-control", "Poll no earlier than an answer is stale."),
        ("contact", str, "", "--contact", "A URL or mail address, for those who find us in their logs."),
        ("websub_callback", str, "", "--websub-callback", "URL by which hubs reach this node, to tell of news."),
        ("websub_listen", str, "127.0.0.1:0", "--websub-listen HOST:PORT", "Where it listens for them."),
        ("poll_log", bool, True, "--poll-log/--no-poll-log", "Tell of each poll, for `pipeline channels`."),
    )
]
_OPTIONS.append(("allow", Allow, None))


def _settings(
    poll_interval_s: float,
    *,
    scheme: SchemeName,
    allow: list[str] | None,
    robots: bool,
    contact: str,
    websub_listen: str,
    **own: Any,
) -> NodeSettings:
    with needing_feeds():
        from clarion.feeds.fetcher import FetchSettings
        from clarion.feeds.honeycomb import Scheme
        from clarion.feeds.node_settings import NodeSettings
    fetch = FetchSettings(allow=tuple(allow or ()), robots=robots, contact=contact)
    host, _, port = websub_listen.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"where to listen is like 127.0.0.1:8080, not {websub_listen!r}")
    return NodeSettings(
        poll_interval_s=poll_interval_s,
        scheme=Scheme(scheme.value),
        fetch=fetch,
        websub_listen=(host, int(port)),
        **own,
    )


@tells_errors
@with_options(_OPTIONS)
def node(
    url: _BrokerUrl = DEFAULT_URL,
    name: str = option("", "--name NAME", "The node's name, its own on the ring.", show_default="the host's"),
    poll_interval_s: float = option(
        "10m", "--poll-interval TIME", f"Between two polls of a channel by one node{_SAME}."
    ),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Run a node: it polls its share of what is followed, until it is told to stop.

    Start as many as you like, anywhere that reaches the broker: they meet there,
    share the polls, and take over from one that dies. No address is asked that
    is not public, unless --allow names it.

    \b
    Examples:
      clarion feeds node --name n1
      clarion feeds node --name n2 --broker tcp://10.0.0.5:5590 --poll-interval 10m
      clarion feeds node --name n3 --scheme fast --target-s 30
    """
    settings = _settings(poll_interval_s, **options)
    from clarion.feeds.node import Node

    log_to_stderr()
    logging.getLogger("trafilatura").setLevel(logging.ERROR)
    own_name = name or socket.gethostname()

    async def run() -> None:
        made = Node(url, own_name, settings)
        on_stop_signals(made.stop)
        facts = {"node": own_name, "url": url, "pid": os.getpid()}
        await made.run(lambda: announce_ready(facts, f"clarion: node {own_name} polls for {url}", as_json=as_json))

    asyncio.run(run())


@tells_errors
@with_options(_OPTIONS)
def run(
    urls: list[str] = typer.Argument(None, metavar="[URL]...", help="Pages and feeds to follow from now on."),
    url: _BrokerUrl = DEFAULT_URL,
    name: As = "",
    page: bool = option(False, "--page", "Follow the pages themselves, though they offer feeds."),
    poll_interval_s: float = option("10m", "--poll-interval TIME", "Between two polls of a channel."),
    data: Path = option(Path("clarion-data"), "--data DIR", "Folder of the broker that is started where none answers."),
    notify: bool = option(False, "--notify", "Tell targets of notifications, too, as `clarion feeds notify`."),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Follow pages on a laptop: a broker where none answers, a node, and what changes.

    What was found while it did not run is there at the next start: it begins with
    what you have not read. Ctrl-C ends it.

    \b
    Examples:
      clarion feeds run https://example.org/news
      clarion feeds run --poll-interval 1m --notify
    """
    settings = _settings(poll_interval_s, **options)
    from clarion.feeds.front_end import Feeds

    who = name or login_name()
    notifier = None
    if notify:
        with needing("notifications need Apprise", "notify"):
            from clarion.feeds.addresses import AddressRules
            from clarion.feeds.notify import Notifier
        notifier = Notifier(url, AddressRules(settings.fetch.allow))
    log_to_stderr()
    logging.getLogger("trafilatura").setLevel(logging.ERROR)
    logging.getLogger("clarion.feeds").setLevel(logging.WARNING)  # what is found is printed
    with (
        stop_signals() as stopping,
        broker_where_none_answers(url, data, stopping),
        _Background(url, settings, stopping, notifier) as one,
        Feeds(url) as feeds,
    ):
        for wanted in urls or ():
            follow(feeds, with_scheme(wanted), who, options["allow"] or [], page=page)
        count = len(feeds.channels(who))
        facts = {"node": one.name, "url": url, "channels": count, "pid": os.getpid()}
        told = f"clarion: {who} follows {count}, polled every {readable_duration(poll_interval_s)}"
        announce_ready(facts, told, as_json=as_json)
        print_deltas(feeds, who, as_json=as_json, until=lambda: stopping.is_set() or one.check())


class _Background:
    """A node, and perhaps a notifier, on an event loop of its own, in a thread."""

    def __init__(self, url: str, settings: NodeSettings, stopping: threading.Event, notifier: Notifier | None) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}"  # several may run on one laptop
        self._url = url
        self._settings = settings
        self._stopping = stopping
        self._notifier = notifier
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clarion-feeds-node", daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - it is told by who waits for the thread
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        from clarion.feeds.node import Node

        self._loop = asyncio.get_running_loop()
        self._node = Node(self._url, self.name, self._settings)
        notifying = asyncio.create_task(self._notifier.run()) if self._notifier else None
        await self._node.run(self._ready.set)
        if notifying is not None:
            notifying.cancel()
            await asyncio.gather(notifying, return_exceptions=True)

    def check(self) -> bool:
        """Raise what the node failed with; False while it runs."""
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
            raise PermanentError("the node ended by itself; see above")
        return False

    def __enter__(self) -> _Background:
        self._thread.start()
        while not self._ready.wait(0.1) and not self._stopping.is_set():
            pass
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._node is not None and self._thread.is_alive():
            note("stopping")
            self._loop.call_soon_threadsafe(self._node.stop)
            self._thread.join(10.0)
