"""`clarion feeds`: follow web pages and feeds, see what is followed and how, and run the nodes that poll."""

from __future__ import annotations

import asyncio
import getpass
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import confirm, naming_option, needing, note
from clarion.cli.command_options import ListsByDefault, Yes, option
from clarion.cli.output import age, console, counted, one_line, print_json, readable_duration, table_of
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.feeds.channels import Rules
    from clarion.feeds.front_end import ChannelDetail, ChannelStatus, Feeds, Subscribed
    from clarion.feeds.ring_view import NodeStatus

_HELP = """Follow web pages and feeds: nodes poll them together, and tell what changed.

A URL that somebody follows is a channel, and each channel is a topic: what
changed comes as messages, for people, programs, workflows and Spark alike.

\b
On a laptop, a broker and a node in one:
  clarion feeds run https://example.org/news
Where a broker runs, nodes (as many as you like), and who follows:
  clarion feeds node --name n1
  clarion feeds subscribe https://example.org/news
  clarion feeds watch --as me
"""
_URL_SHOWN = 100  # characters in a list
_TROUBLE_SHOWN = 60
_LOOK_FOR_FEED_S = 10.0  # somebody waits for it
feeds_app = typer.Typer(cls=ListsByDefault, help=_HELP)


def login_name() -> str:
    """Return who sits here: the subscriber where none is named."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # nobody knows
        return "me"


def with_scheme(url: str) -> str:
    """Return a URL as people mean it who leave out https://."""
    return url if "://" in url else f"https://{url}"


_ONE_FOLLOWER = "a target follows by a name of its own: give --as or --notify"
WebUrl = Annotated[
    str, typer.Argument(..., metavar="URL", help="The page or feed: http:// or https://.", callback=with_scheme)
]
As = Annotated[str, option(..., "--as NAME", "Name of the subscriber.", show_default="your login name")]
Notify = Annotated[
    str | None,
    option(..., "--notify URL", "A target of notifications, as Apprise names it: mailto://…, tgram://…, ntfy://…"),
]
Allow = Annotated[
    list[str] | None,
    option(
        ..., "--allow NETWORK", "A network beside public ones that may be asked: 10.1.0.0/16; may be repeated."
    ),
]  # fmt: skip


def needing_feeds() -> Any:
    """Say what to install where feeds cannot be had."""
    return needing("feeds need aiohttp, feedparser, lxml and more", "feeds")


@contextmanager
def feeds_at(call: BrokerCall) -> Iterator[Feeds]:
    """Yield a front end; where no broker answers, say so meanwhile and at last."""
    with needing_feeds():
        from clarion.feeds.front_end import Feeds
    with call.admin() as admin:
        admin.hello()
    with Feeds(call.url, timeout_s=call.timeout_s) as feeds:
        yield feeds


# Following.


@feeds_app.command("subscribe")
@broker_command
def subscribe(
    call: BrokerCall,
    page_url: WebUrl,
    name: As = "",
    page: bool = option(False, "--page", "Follow the page itself, though it offers a feed."),
    keep: list[str] = option([], "--keep", "Of a page, only this counts: a CSS selector, or an XPath (//…)."),
    leave_out: list[str] = option([], "--leave-out", "Of a page, this does not count; as --keep."),
    no_rules: bool = option(False, "--no-rules", "Take back the rules of --keep and --leave-out."),
    notify: Notify = None,
    allow: Allow = None,
) -> None:
    """Follow a page or a feed: what changes comes as messages on its topic.

    Where a page offers a feed, that is followed; --page follows the page itself.
    Rules are the channel's: they hold for all who follow it.

    With --notify a mailbox, messenger or web hook follows it instead of you, and
    is told by `clarion feeds notify`. The broker keeps the target, secrets and
    all, until nothing is followed for it any more.

    \b
    Examples:
      clarion feeds subscribe https://example.org/news
      clarion feeds subscribe https://example.org/news --notify ntfys://ntfy.sh/my-topic
      clarion feeds subscribe https://example.org/prices --page --keep '#prices'
    """
    with needing_feeds():
        from clarion.feeds.channels import Rules
        from clarion.feeds.page_text import check_rules
    if no_rules and (keep or leave_out):
        raise typer.BadParameter("rules are either given or taken back", param_hint="--no-rules")
    rules = Rules(keep=tuple(keep), leave_out=tuple(leave_out)) if keep or leave_out or no_rules else None
    if rules is not None:
        check_rules(rules)
    with feeds_at(call) as feeds:
        who, attempts = (name or login_name(), None) if notify is None else _kept_target(call, name, notify)
        made = follow(feeds, page_url, who, allow or [], page=page, rules=rules, max_attempts=attempts)
        found = feeds.nodes()
    running = len(found) - len(_silent(found))
    if not running and not call.as_json:
        note("no node polls now: clarion feeds node --name n1")
    if notify is not None and made.is_new:
        note("it is told while this runs: clarion feeds notify")
    shown = {"url": made.url, "topic": made.topic, "name": made.name, "is_new": made.is_new, "nodes": running}
    shown_name = made.name if notify is None else _shown_target(notify)
    call.print(shown, f"{shown_name} {'follows' if made.is_new else 'follows already'} {made.url}")


def _silent(nodes: dict[str, NodeStatus]) -> list[str]:
    now_us = time.time_ns() // 1000
    return [name for name, one in nodes.items() if one.is_silent(now_us)]


def _shown_target(target: str) -> str:
    from clarion.feeds.notify import shown_target

    return shown_target(target)


def _kept_target(call: BrokerCall, name: str, target: str) -> tuple[str, int]:
    """Have the broker keep a target of notifications; return the name that it follows by, and its attempts."""
    if name:
        raise typer.BadParameter(_ONE_FOLLOWER, param_hint="--notify")
    with needing("notifications need Apprise", "notify"):
        from clarion.feeds.feed_deliveries import ATTEMPTS
        from clarion.feeds.notify import keep_target
    return keep_target(call.url, target), ATTEMPTS


def follow(
    feeds: Feeds,
    url: str,
    name: str,
    allow: list[str],
    *,
    page: bool = False,
    rules: Rules | None = None,
    max_attempts: int | None = None,
) -> Subscribed:
    """Subscribe to a page, or to the feed that it offers, and say which."""
    from clarion.feeds.channels import normalise_url

    wanted = normalise_url(url)
    found = wanted if page or rules is not None else _feed_of(wanted, allow)
    made = feeds.subscribe(found, name, rules=rules, max_attempts=max_attempts)
    if found != wanted:
        note(f"{wanted} offers the feed {found}, which is followed; --page follows the page itself")
    if rules is not None and made.others:
        note(f"rules are the channel's: these hold for {counted(made.others, 'other follower')}, too")
    return made


def _feed_of(url: str, allow: list[str]) -> str:
    """Return the feed that a page offers, or the page where it offers none or cannot be had now."""
    from clarion.feeds.fetcher import Fetcher, FetchFailed, FetchSettings
    from clarion.feeds.front_end import feed_of

    async def look() -> str:
        fetcher = Fetcher(FetchSettings(allow=tuple(allow), total_s=_LOOK_FOR_FEED_S))
        try:
            return await feed_of(url, fetcher)
        except FetchFailed as error:
            why = one_line(str(error))
            if error.kind == "address":
                why += "; --allow names networks beside public ones, for each node as well as here"
            note(f"whether it offers a feed could not be seen from here ({why}); it is followed itself")
            return url
        finally:
            await fetcher.close()

    return asyncio.run(look())


@feeds_app.command("unsubscribe")
@broker_command
def unsubscribe(call: BrokerCall, page_url: WebUrl, name: As = "", notify: Notify = None) -> None:
    """Follow a page or feed no longer. When nobody follows it, nobody polls it.

    \b
    Examples:
      clarion feeds unsubscribe https://example.org/news.xml
      clarion feeds unsubscribe https://example.org/news.xml --notify ntfys://ntfy.sh/my-topic
    """
    who = shown_name = name or login_name()
    with feeds_at(call) as feeds:
        from clarion.feeds.front_end import NotFollowed, alike

        if notify is not None:
            if name:
                raise typer.BadParameter(_ONE_FOLLOWER, param_hint="--notify")
            with needing("notifications need Apprise", "notify"):
                from clarion.feeds.notify import forget_target, target_name
            who, shown_name = target_name(notify), _shown_target(notify)
        ended = feeds.unsubscribe(page_url, who)
        if notify is not None:
            forget_target(call.url, notify)
        if not ended:
            followed = [one.url for one in feeds.channels(who)]
            raise NotFollowed(f"{shown_name} does not follow {page_url}{alike(page_url, followed)}")
    call.print({"url": page_url, "name": who}, f"{shown_name} no longer follows {page_url}")


@feeds_app.command("forget")
@broker_command
def forget(call: BrokerCall, page_url: WebUrl, yes: Yes = False) -> None:
    """Delete what is kept of a channel that nobody follows: deltas and versions.

    \b
    Example:
      clarion feeds forget https://example.org/news.xml --yes
    """
    confirm(f"Delete all that is kept of {page_url}?", yes=yes)
    with feeds_at(call) as feeds:
        feeds.forget(page_url)
    call.print({"url": page_url}, f"nothing is kept of {page_url} any more")


# Looking.


@feeds_app.command("list")
@broker_command
def list_channels(
    call: BrokerCall, name: str | None = option(None, "--as NAME", "Only what this subscriber follows.")
) -> None:
    """List what is followed: title, last change, and what is wrong with it.

    \b
    Examples:
      clarion feeds
      clarion feeds list --as me --json
    """
    with feeds_at(call) as feeds:
        found = feeds.channels(name)
    if call.as_json:
        for one in found:
            print_json(one.told())
        return
    if not found:
        note("nothing is followed yet: clarion feeds subscribe URL")
        return
    heads = ["url", "title", "followers", "version", "changed", "trouble"]
    heads += ["unread"] if name else []
    console().print(
        table_of(heads, [_row(one, with_unread=bool(name)) for one in found], ("followers", "version", "unread"))
    )


def _row(one: ChannelStatus, *, with_unread: bool) -> list[str]:
    head = one.head
    cells = [
        one.url if len(one.url) <= _URL_SHOWN else one.url[:_URL_SHOWN] + "…",
        head.title if head else "",
        str(len(one.names)),
        str(head.version) if head else "none yet",
        f"{_ago(head.found_at_us)} ago" if head else "",
        _short_trouble(one) if one.trouble else "",
    ]
    return [*cells, str(one.waiting or 0)] if with_unread else cells


def _short_trouble(one: ChannelStatus) -> str:
    """Return what is wrong with a channel, without its URL, which stands beside it."""
    assert one.trouble is not None
    text = one_line(one.trouble.text).removeprefix(one.url).removeprefix(" was not fetched").lstrip(": ")
    return text if len(text) <= _TROUBLE_SHOWN else text[: _TROUBLE_SHOWN - 1] + "…"


def _ago(at_us: int) -> str:
    from datetime import UTC, datetime

    return age(datetime.fromtimestamp(at_us / 1e6, UTC)) or "0s"


@feeds_app.command("show")
@broker_command
def show(
    call: BrokerCall,
    page_url: WebUrl,
    deltas: int = option(5, "--deltas N", "How many of the last versions to show."),
) -> None:
    """Show a channel: its last versions, who polls it, and how fast it is noticed.

    Detection is the expected time from a change to its delta: half of what lies
    between two polls, which its pollers space evenly.

    \b
    Examples:
      clarion feeds show https://example.org/news.xml
      clarion feeds show https://example.org/news.xml --json | jq .detection_s
    """
    with feeds_at(call) as feeds:
        found = feeds.show(page_url, deltas)
        silent = sorted({*_silent(feeds.nodes())} & {*found.pollers})
    if call.as_json:
        print_json({**found.told(), "silent": silent})
    else:
        _print_detail(found, silent)


def _print_detail(found: ChannelDetail, silent: list[str]) -> None:
    status, head = found.status, found.status.head
    rows = [("title", head.title), ("form", head.form)] if head else []
    rows += [("topic", status.topic), ("followers", str(len(status.names)))]
    if head:
        rows.append(("version", f"{head.version}, found {_ago(head.found_at_us)} ago by {head.node}"))
    for kind, rules in (("keep", found.rules.keep), ("leave out", found.rules.leave_out)):
        if rules:
            rows.append((kind, ", ".join(rules)))
    if not found.nodes:
        rows.append(("polled by", "nobody: no node runs (clarion feeds node --name n1)"))
    elif found.pollers:
        shown = ", ".join(found.pollers[:8]) + (" …" if len(found.pollers) > 8 else "")
        rows.append(
            ("polled by", f"{len(found.pollers)} of {counted(found.nodes, 'node')}, level {found.level}: {shown}")
        )
        if silent:
            shown = ", ".join(silent[:8]) + (" …" if len(silent) > 8 else "")
            rows.append(("silent", f"{len(silent)} of these, dead or without the broker: {shown}"))
        rows.append(("each polls", f"every {readable_duration(found.interval_s or 0)}, evenly spaced"))
        rows.append(("detection", f"{readable_duration(found.detection_s or 0)} expected"))
    if status.trouble:
        trouble = f"{status.trouble.kind}: {one_line(status.trouble.text)} ({status.trouble.failures} times running)"
        rows.append(("trouble", trouble))
    screen = console()
    screen.print(status.url, markup=False)
    screen.print(table_of(("what", "is"), rows, show_header=False))
    for delta in found.deltas:
        screen.print(f"\nversion {delta.version}, {_ago(delta.found_at_us)} ago, found by {delta.node}", markup=False)
        screen.print(delta.readable(), markup=False)


@feeds_app.command("nodes")
@broker_command
def nodes(call: BrokerCall) -> None:
    """List the nodes on the ring, and how the polls are shared.

    \b
    Example:
      clarion feeds nodes
    """
    with feeds_at(call) as feeds:
        found = feeds.nodes()
    silent = _silent(found)
    if call.as_json:
        for name, one in found.items():
            print_json({**msgspec.to_builtins(one.beat), "at_us": one.at_us, "silent": name in silent})
        return
    if not found:
        note("no node runs: clarion feeds node --name n1")
        return
    heads = ("node", "polls channels", "owns", "polls made", "changes found", "failures", "last beat")
    rows = []
    for name, one in found.items():
        beat = one.beat
        numbers = (beat.channels, beat.owned, beat.polls, beat.changes, beat.failures)
        rows.append((name, *(f"{number:,}" for number in numbers), f"{_ago(one.at_us)} ago"))
    console().print(table_of(heads, rows, heads[1:]))
    print(f"each channel every {readable_duration(beat.poll_interval_s)} by each of its pollers, scheme {beat.scheme}")
    if silent:
        note(f"silent, so that it is dead or cannot reach the broker: {', '.join(silent)}")


@feeds_app.command("watch")
@broker_command
def watch(
    call: BrokerCall,
    name: str | None = option(None, "--as NAME", "What this subscriber has not read yet, and then what comes."),
    wait_s: float | None = option(None, "--wait TIME", "End when nothing came for so long."),
) -> None:
    """Show what changes, as it is found.

    Without --as it is what is found on all channels from now on, and nothing is
    marked as read. With --as it begins with what the subscriber has not read, and
    what was shown counts as read.

    \b
    Examples:
      clarion feeds watch
      clarion feeds watch --as me
      clarion feeds watch --json | jq .url
    """
    with feeds_at(call) as feeds:
        if not feeds.channels(name):
            note("nothing is followed yet" if name is None else f"{name} follows nothing yet")
        elif not call.as_json and len(_silent(found := feeds.nodes())) == len(found):
            note("no node polls now: clarion feeds node --name n1")
        print_deltas(feeds, name, as_json=call.as_json, wait_s=wait_s)


def print_deltas(
    feeds: Feeds,
    name: str | None,
    *,
    as_json: bool,
    wait_s: float | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Print deltas as they come."""
    for found in feeds.watch(name, wait_s=wait_s):
        if found is not None and as_json:
            print_json(msgspec.to_builtins(found[1]))
        elif found is not None:
            print(found[1].readable() + "\n", flush=True)
        elif until():
            return


# OPML.

opml_app = typer.Typer(help="Bring subscriptions from another reader, or take them along: OPML.", no_args_is_help=True)
feeds_app.add_typer(opml_app, name="opml")


@opml_app.command("import")
@broker_command
def opml_import(
    call: BrokerCall,
    file: Path = typer.Argument(
        ..., metavar="FILE", help="An OPML file, as other readers export it; - is standard input."
    ),
    name: As = "",
) -> None:
    """Follow everything that an OPML file lists.

    \b
    Example:
      clarion feeds opml import subscriptions.opml
    """
    with needing_feeds():
        from clarion.feeds.channels import BadUrl, normalise_url
        from clarion.feeds.opml import read_opml
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise PermanentError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error
    entries = read_opml(data)
    good: set[str] = set()
    bad: list[str] = []
    for entry in entries:
        try:
            good.add(normalise_url(entry.url))
        except BadUrl as error:
            bad.append(str(error))
    with feeds_at(call) as feeds:
        made = feeds.subscribe_many(sorted(good), name or login_name())
    for text in bad:
        note(text)
    already = len(good) - made
    shown = {"subscribed": made, "already": already, "refused": len(bad)}
    call.print(shown, f"{counted(made, 'channel')} followed, {already} before already, {len(bad)} refused")


@opml_app.command("export")
@broker_command
def opml_export(
    call: BrokerCall,
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="Where to; without, standard output."),
    name: As = "",
) -> None:
    """Write what a subscriber follows as an OPML file.

    \b
    Example:
      clarion feeds opml export subscriptions.opml
    """
    with needing_feeds():
        from clarion.feeds.opml import OpmlEntry, write_opml
    with feeds_at(call) as feeds:
        found = feeds.channels(name or login_name())
    data = write_opml([OpmlEntry(one.url, (one.head.title if one.head else "") or one.url, "") for one in found])
    if file is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with naming_option(file, "FILE"):
        file.write_bytes(data)
    call.print({"channels": len(found), "file": str(file)}, f"{counted(len(found), 'channel')} written to {file}")
