"""`clarion feeds` as people meet it: following, looking, watching, lists of other readers, and all on a laptop."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import free_url
from tests.integration.feed_nodes import NodesHere
from tests.integration.feed_server import FeedServer
from tests.integration.shell import Shell, one_line, read_line, run, running, stop
from tests.integration.waiting import eventually

from clarion.feeds.front_end import Feeds, NotFollowed
from clarion.model.errors import PermanentError

LOOPBACK = ("--allow", "127.0.0.0/8")


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    """A web server with a page that offers a feed."""
    with FeedServer() as server:
        link = '<link rel="alternate" type="application/rss+xml" href="/news.xml">'
        server.set_page("/news", f"<html><head><title>News</title>{link}</head><body><p>hello</p></body></html>")
        server.set_feed("/news.xml", ["one"], title="The [red]news[/red]")
        yield server


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Commands against a broker that the tests of this file share."""
    data = tmp_path_factory.mktemp("shared") / "data"
    with running("up", "--data", str(data), "--listen", free_url(), "--json") as broker:
        yield Shell(broker, json.loads(read_line(broker))["urls"][0], data)


@pytest.fixture
def shared(commands: Shell) -> Iterator[Shell]:
    """The same, where nobody follows anything before the test, and nobody does afterwards."""
    yield commands
    with Feeds(commands.url) as feeds:
        for one in feeds.channels():
            for name in one.names:
                feeds.unsubscribe(one.url, name)


def _lines(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


# Following.


def test_the_feed_of_a_page_is_followed_or_the_page_itself(shared: Shell, server: FeedServer) -> None:
    page, feed = server.url("/news"), server.url("/news.xml")
    made = shared.run("feeds", "subscribe", page, "--as", "me", "--json", *LOOPBACK)
    assert json.loads(made.stdout) == {"url": feed, "topic": f"feeds/{feed}", "name": "me", "is_new": True, "nodes": 0}
    assert f"{page} offers the feed {feed}" in json.loads(made.stderr)["note"]["message"]
    shown = shared.run("feeds", "subscribe", page, "--as", "me and you", "--page", "--keep", "p")
    assert shown.stdout.decode() == f"me and you follows {page}\n"
    assert b"no node polls now" in shown.stderr
    again = shared.run("feeds", "subscribe", page.replace("http", "HTTP") + "#part", "--page", "--as", "me and you")
    assert b"follows already" in again.stdout
    assert [one["url"] for one in _lines(shared.ok("feeds", "list", "--json"))] == [page, feed]
    assert [one["url"] for one in _lines(shared.ok("feeds", "list", "--as", "me", "--json"))] == [feed]
    assert shared.json("feeds", "show", page)["rules"] == {"keep": ["p"], "leave_out": []}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("http://user:word@example.org/",), "user's name or password"),
        (("ftp://example.org/",), "only http:// and https://"),
        (("http://exa mple.org/",), "names no host"),
        ((f"http://example.org/{'x' * 5000}",), "longer than"),
        (("http://example.org/", "--keep", "p[["), "is no CSS selector"),
    ],
)
def test_what_cannot_be_followed_is_refused(shared: Shell, words: tuple[str, ...], said: str) -> None:
    refused = shared.run("feeds", "subscribe", *words)
    assert refused.returncode == 1
    assert said in one_line(refused)


def test_odd_urls_are_followed_shown_and_forgotten(shared: Shell) -> None:
    odd = {
        f"http://example.org/{'x' * 3000}": f"http://example.org/{'x' * 3000}",
        "http://example.org/a/*/b": "http://example.org/a/*/b",
        "http://example.org/**": "http://example.org/**",
        "http://bücher.example/ä?q=ü&r=%20": "http://xn--bcher-kva.example/%C3%A4?q=%C3%BC&r=%20",
        "HTTP://Example.org.:80#there": "http://example.org/",
    }
    with Feeds(shared.url) as feeds:
        for url in odd:
            feeds.subscribe(url, "odd")
        assert {one.url for one in feeds.channels("odd")} == set(odd.values())
        assert all(len(line) < 200 for line in shared.ok("feeds", "list").decode().splitlines())
        for url, form in odd.items():
            assert feeds.show(url).status.url == form
            with pytest.raises(PermanentError, match="is followed by odd"):
                feeds.forget(url)
            assert feeds.unsubscribe(form, "odd")
            assert not feeds.unsubscribe(url, "odd")
            feeds.forget(url)
            with pytest.raises(NotFollowed):
                feeds.show(url)
            with pytest.raises(NotFollowed):
                feeds.forget(form)


def test_what_nobody_follows_is_told_with_an_exit_code(shared: Shell) -> None:
    shared.run("feeds", "subscribe", "example.org/this", "--page", "--as", "me")
    refused = shared.run("feeds", "unsubscribe", "http://example.org/that", "--as", "me")
    assert refused.returncode == 6
    assert "what is followed of that host: https://example.org/this" in one_line(refused)
    assert shared.run("feeds", "show", "http://example.org/that").returncode == 6
    assert shared.run("feeds", "nodes").returncode == 0


# What nodes find.


def test_what_is_found_is_listed_shown_and_watched_once(shared: Shell, server: FeedServer) -> None:
    url = server.url("/news.xml")
    shared.run("feeds", "subscribe", url, "--page", "--as", "me")
    with NodesHere(shared.url) as nodes:
        nodes.start("n1")
        for version, entries in ((1, ["one"]), (2, ["two", "one"])):
            server.set_feed("/news.xml", entries, title="The [red]news[/red]")
            eventually(lambda version=version: _version(shared.url) == version, "it is found")  # type: ignore[misc]
        (told,) = _lines(shared.ok("feeds", "nodes", "--json"))
        assert (told["node"], told["owned"]) == ("n1", 1)
        assert b"n1" in shared.ok("feeds", "nodes")
        shown = shared.json("feeds", "show", url)
        assert (shown["owner"], shown["pollers"], shown["nodes"]) == ("n1", ["n1"], 1)
        assert [one["kind"] for one in shown["deltas"]] == ["snapshot", "delta"]
    text = shared.ok("feeds", "show", url, "--deltas", "1").decode()
    assert "The [red]news[/red]: 1 new\n+ two\n" in text
    assert "nobody: no node runs" in text
    (listed,) = _lines(shared.ok("feeds", "list", "--as", "me", "--json"))
    assert (listed["version"], listed["waiting"], listed["title"]) == (2, 2, "The [red]news[/red]")
    watched = _lines(shared.ok("feeds", "watch", "--as", "me", "--wait", "100ms", "--json"))
    assert [(one["version"], one["changes"][0]["title"]) for one in watched] == [(1, "one"), (2, "two")]
    again = shared.run("feeds", "watch", "--as", "me", "--wait", "100ms")
    assert again.stdout == b""
    assert b"no node polls now" in again.stderr
    assert _lines(shared.ok("feeds", "list", "--as", "me", "--json"))[0]["waiting"] == 0


def _version(url: str) -> int:
    with Feeds(url) as feeds:
        head = feeds.channels()[0].head
    return head.version if head else 0


def test_watching_ends_by_ctrl_c_and_with_who_reads_it(shared: Shell, server: FeedServer) -> None:
    server.set_feed("/watched.xml", ["one"])
    with Feeds(shared.url) as feeds, NodesHere(shared.url) as nodes:
        feeds.subscribe(server.url("/watched.xml"), "me")
        nodes.start("n1", poll_interval_s=0.3)
        eventually(lambda: _version(shared.url), "it is found")
        with (
            running("feeds", "watch", "--json", CLARION_URL=shared.url) as watching,
            running("feeds", "watch", CLARION_URL=shared.url) as piped,
        ):
            entries = ["one"]

            def shown() -> bool:
                entries.insert(0, f"entry {len(entries)}")  # until both have begun to look
                server.set_feed("/watched.xml", entries)
                return all(
                    select.select([one.stdout.fileno()], [], [], 1.0)[0] for one in (watching, piped) if one.stdout
                )

            eventually(shown, "what changes is shown")
            assert json.loads(read_line(watching))["url"] == server.url("/watched.xml")
            code, _, err = stop(watching, signal.SIGINT)
            assert (code, err) == (130, b"")
            assert piped.stdout is not None
            piped.stdout.close()

            def ended() -> bool:
                entries.insert(0, f"entry {len(entries)}")
                server.set_feed("/watched.xml", entries)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    piped.wait(1.0)
                return piped.returncode is not None

            eventually(ended, "it ends when nobody reads")
            assert piped.returncode == 141


# Lists of other readers.


def test_a_list_of_subscriptions_is_taken_along(shared: Shell, tmp_path: Path) -> None:
    wanted = [f"http://host{number}.example/{number}.xml" for number in range(30)]
    outlines = "".join(f'<outline text="Feed" type="rss" xmlUrl="{url}"/>' for url in [*wanted, wanted[0], "ftp://x/"])
    file = tmp_path / "subscriptions.opml"
    file.write_text(f'<opml version="2.0"><body><outline text="Folder">{outlines}</outline></body></opml>')
    made = shared.run("feeds", "opml", "import", str(file), "--as", "me", "--json")
    assert json.loads(made.stdout) == {"subscribed": 30, "already": 0, "refused": 1}
    assert "ftp://x/" in json.loads(made.stderr)["note"]["message"]
    again = shared.run("feeds", "opml", "import", "-", "--as", "me", "--json", stdin=file.read_bytes())
    assert json.loads(again.stdout) == {"subscribed": 0, "already": 30, "refused": 1}
    other = tmp_path / "others.opml"
    assert shared.json("feeds", "opml", "export", str(other), "--as", "me")["channels"] == 30
    assert b"30 channels followed, 0 before already, 0 refused" in shared.ok(
        "feeds", "opml", "import", str(other), "--as", "other"
    )
    exported = shared.ok("feeds", "opml", "export", "--as", "other")
    assert all(url.encode() in exported for url in wanted)
    assert {one["subscribers"] for one in _lines(shared.ok("feeds", "list", "--json"))} == {2}
    for data, said in ((b"<html/>", "no OPML"), (b"", "no XML")):
        refused = shared.run("feeds", "opml", "import", "-", stdin=data)
        assert (refused.returncode, said in one_line(refused)) == (1, True)
    assert "cannot be read" in one_line(shared.run("feeds", "opml", "import", str(tmp_path / "none")))


# A laptop.


def test_a_laptop_needs_one_command_and_two_of_them_share_the_work(server: FeedServer, tmp_path: Path) -> None:
    server.set_feed("/laptop.xml", ["one"], title="Laptop")
    url, more = server.url("/laptop.xml"), {"CLARION_URL": free_url()}
    common = ("--data", str(tmp_path / "data"), "--poll-interval", "500ms", "--beat", "500ms", "--json", *LOOPBACK)
    with running("feeds", "run", url, "--as", "me", *common, **more) as first:
        assert json.loads(read_line(first))["channels"] == 1
        assert json.loads(read_line(first))["kind"] == "snapshot"
        with running("feeds", "run", url, "--as", "you", *common, **more) as second:
            assert json.loads(read_line(second))["channels"] == 1
            server.set_feed("/laptop.xml", ["two", "one"], title="Laptop")
            for one in (first, second):
                assert [change["title"] for change in json.loads(read_line(one))["changes"]] == ["two"]
            nodes = run("feeds", "nodes", "--json", **more)
            assert len(nodes.stdout.splitlines()) == 2
            refused = run("feeds", "run", "--data", str(tmp_path / "data"), "--poll-interval", "7s", "--json", **more)
            assert "is on this ring with" in json.loads(refused.stderr)["error"]["message"]
            assert stop(second, signal.SIGINT)[0] == 0
        assert stop(first, signal.SIGINT)[0] == 0
    server.set_feed("/laptop.xml", ["three", "two", "one"], title="Laptop")
    with running("feeds", "run", "--as", "me", *common, **more) as later:
        read_line(later)
        assert [change["title"] for change in json.loads(read_line(later))["changes"]] == ["three"]
