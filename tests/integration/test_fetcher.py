"""The fetcher against a real web server that behaves, misbehaves and tries to lead it astray."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from typing import TypeVar

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from tests.integration.feed_server import FeedServer, Misbehaviour, rss

from clarion.feeds.fetcher import Fetched, Fetcher, FetchFailed, FetchSettings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    """A server for all tests of this file; each has paths of its own."""
    with FeedServer() as server:
        yield server


class Resolver(AbstractResolver):
    """Knows every host by the addresses it is given, one list a question, and the last of them for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the next answer."""
        self.asked += 1
        addresses = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not addresses:
            raise OSError(f"{host} is not known")
        kind = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            ResolveResult(hostname=host, host=one, port=port, family=kind[":" in one], proto=0, flags=0)
            for one in addresses
        ]

    async def close(self) -> None:
        """Do nothing."""


def using(
    work: Callable[[Fetcher], Awaitable[T]],
    *,
    settings: FetchSettings | None = None,
    resolver: AbstractResolver | None = None,
) -> T:
    """Return what some work with a fetcher comes to."""

    async def run() -> T:
        fetcher = Fetcher(settings or FetchSettings(allow=LOOPBACK), resolver=resolver)
        try:
            return await work(fetcher)
        finally:
            await fetcher.close()

    return asyncio.run(run())


def fetch(url: str, *, settings: FetchSettings | None = None, resolver: AbstractResolver | None = None) -> Fetched:
    """Return what is at a URL."""
    return using(lambda fetcher: fetcher.fetch(url), settings=settings, resolver=resolver)


def failure(
    url: str, *, settings: FetchSettings | None = None, resolver: AbstractResolver | None = None
) -> FetchFailed:
    """Return why a URL is not fetched."""
    with pytest.raises(FetchFailed) as told:
        fetch(url, settings=settings, resolver=resolver)
    return told.value


# What it is for.


def test_what_did_not_change_is_not_sent_again(server: FeedServer) -> None:
    server.set_feed("/same.xml", ["one"])

    async def twice(fetcher: Fetcher) -> tuple[Fetched, Fetched]:
        first = await fetcher.fetch(server.url("/same.xml"), subscribers=7)
        return first, await fetcher.fetch(server.url("/same.xml"), first.etag)

    first, second = using(twice)
    assert (first.status, first.body, first.not_modified) == (200, rss(["one"]), False)
    assert first.content_type.startswith("application/rss+xml")
    assert first.received_bytes == len(first.body)
    assert (second.status, second.body, second.not_modified, second.etag) == (304, b"", True, first.etag)
    assert len(server.conditional("/same.xml")) == 1
    said = server.requests("/same.xml")[0].headers["User-Agent"]
    assert said.startswith("Clarion/")
    assert "7 subscribers" in said


def test_a_304_nobody_asked_for_is_a_failure(server: FeedServer) -> None:
    server.fail("/strange-304", 304)
    assert failure(server.url("/strange-304")).kind == "status"


@pytest.mark.parametrize("packed", ["gzip", "x-gzip", "deflate", "bare deflate", "zstd", "two members", "padded"])
def test_packed_bodies_are_unpacked(server: FeedServer, packed: str) -> None:
    plain = rss(["packed"] * 1000)
    bare = zlib.compressobj(wbits=-15)
    body = {
        "gzip": gzip.compress(plain),
        "x-gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "bare deflate": bare.compress(plain) + bare.flush(),
        "zstd": zstd.compress(plain),
        "two members": gzip.compress(plain[:10]) + gzip.compress(plain[10:]),
        "padded": gzip.compress(plain) + bytes(100),
    }[packed]
    encoding = packed.split()[-1] if packed not in ("two members", "padded") else "gzip"
    server.set_body(f"/{packed}", body, "text/xml", {"Content-Encoding": encoding})
    fetched = fetch(server.url(f"/{packed}"))
    assert fetched.body == plain
    assert fetched.received_bytes == len(body)


def test_headers_tell_hubs_age_and_time(server: FeedServer) -> None:
    headers = {
        "Link": '<https://hub.example/>; rel="hub", </told.xml>; rel=self',
        "Cache-Control": "public, max-age=600",
        "Age": "100",
        "Last-Modified": "Mon, 16 Nov 2026 10:00:00 GMT",
    }
    server.set_feed("/told.xml", ["one"], headers=headers)
    fetched = fetch(server.url("/told.xml"))
    assert fetched.hubs == ("https://hub.example/",)
    assert fetched.self_url == server.url("/told.xml")
    assert fetched.max_age_s == 500
    assert fetched.last_modified == "Mon, 16 Nov 2026 10:00:00 GMT"


def test_connections_to_a_host_are_few_and_used_again(server: FeedServer) -> None:
    server.set_feed("/busy.xml", ["one"])

    async def many(fetcher: Fetcher) -> None:
        await asyncio.gather(*(fetcher.fetch(server.url("/busy.xml")) for _ in range(20)))

    using(many)
    assert len(server.requests("/busy.xml")) == 20
    assert len({request.peer for request in server.requests("/busy.xml")}) <= 2


# Redirects.


def test_permanent_redirects_tell_where_it_moved_and_others_do_not(server: FeedServer) -> None:
    server.set_feed("/new.xml", ["one"])
    server.redirect("/old.xml", "/newer.xml", 301)
    server.redirect("/newer.xml", server.url("/new.xml"), 308)
    server.redirect("/today.xml", "/old.xml", 302)
    server.redirect("/half.xml", "/today.xml", 301)
    moved, today, half = (fetch(server.url(path)) for path in ("/old.xml", "/today.xml", "/half.xml"))
    assert moved.url == moved.moved_to == server.url("/new.xml")
    assert (today.url, today.moved_to) == (server.url("/new.xml"), "")
    assert (half.url, half.moved_to) == (server.url("/new.xml"), server.url("/today.xml"))


@pytest.mark.parametrize("how", ["redirect-loop", "redirect-endless"])
def test_redirects_without_end_are_given_up(server: FeedServer, how: Misbehaviour) -> None:
    server.misbehave(f"/{how}", how)
    assert failure(server.url(f"/{how}")).kind == "redirects"
    assert len(server.requests(f"/{how}")) == 1


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "javascript:alert(1)",
        "http://user:secret@127.0.0.1/",
        "http://[/",
    ],
)
def test_a_redirect_to_anything_but_a_plain_web_address_is_refused(server: FeedServer, target: str) -> None:
    server.redirect("/elsewhere", target)
    assert failure(server.url("/elsewhere")).kind == "scheme"


def test_a_redirect_from_https_to_http_is_refused_unless_it_is_wanted() -> None:
    refuses, follows = Fetcher(), Fetcher(FetchSettings(downgrade=True))
    with pytest.raises(FetchFailed) as told:
        refuses._checked("http://example.org/", "https://example.org/")
    assert told.value.kind == "redirects"
    assert str(follows._checked("http://example.org/", "https://example.org/")) == "http://example.org/"


# Where it does not go.


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[::7f00:1]",
        "\u2460\u2461\u2466.0.0.1",  # digits in circles
    ],
)
def test_loopback_is_not_reached_by_any_of_its_names(server: FeedServer, host: str) -> None:
    server.set_feed("/inside.xml", ["secret"])
    port = server.url("").rpartition(":")[2]
    told = failure(f"http://{host}:{port}/inside.xml", settings=FetchSettings(connect_s=5.0, total_s=10.0))
    assert told.kind in ("address", "dns", "scheme")
    assert not server.requests("/inside.xml")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://:x[]::1@", "scheme"),
        ("http://[%00::0%zz]", "scheme"),
        ("http://xn--a/", "dns"),
        ("//a.example", "scheme"),
    ],
)
def test_what_is_hardly_a_url_is_told(url: str, kind: str) -> None:
    assert failure(url, resolver=Resolver([])).kind == kind


def test_there_is_no_port_0() -> None:
    assert failure("http://127.0.0.1:0/").kind == "address"


def test_a_name_that_resolves_to_something_else_the_second_time_gains_nothing(server: FeedServer) -> None:
    server.set_feed("/rebound.xml", ["secret"])
    port = server.url("").rpartition(":")[2]
    # The first answer is allowed, and leads to the server; the second is not, and would lead there as well.
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
    settings = FetchSettings(allow=("127.0.0.1",))

    async def again(fetcher: Fetcher) -> tuple[Fetched, FetchFailed]:
        first = await fetcher.fetch(f"http://changes.example:{port}/rebound.xml")
        with pytest.raises(FetchFailed) as told:
            await fetcher.fetch("http://changes.example:1/rebound.xml")
        return first, told.value

    first, second = using(again, settings=settings, resolver=resolver)
    assert first.status == 200
    assert second.kind == "address"
    assert resolver.asked == 2
    assert "127.0.0.2" in str(second)


def test_a_redirect_to_loopback_is_refused(server: FeedServer) -> None:
    server.set_feed("/inner.xml", ["secret"])
    port = server.url("").rpartition(":")[2]
    server.redirect("/outer", f"http://inner.example:{port}/inner.xml")
    resolver = Resolver(["127.0.0.1"], ["127.0.0.3", "::1", "::ffff:127.0.0.1"])
    told = failure(
        f"http://outer.example:{port}/outer", settings=FetchSettings(allow=("127.0.0.1",)), resolver=resolver
    )
    assert told.kind == "address"
    assert server.requests("/outer")
    assert not server.requests("/inner.xml")


def test_of_several_addresses_only_an_allowed_one_is_connected_to(server: FeedServer) -> None:
    server.set_feed("/several.xml", ["one"])
    port = server.url("").rpartition(":")[2]
    resolver = Resolver(["10.0.0.1", "::1", "169.254.169.254", "127.0.0.1"])
    settings = FetchSettings(allow=(f"127.0.0.1:{port}",))
    assert fetch(f"http://several.example:{port}/several.xml", settings=settings, resolver=resolver).status == 200


def test_settings_of_this_machine_and_cookies_do_not_go_along(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.set_feed("/cookies.xml", ["one"], headers={"Set-Cookie": "id=1; Path=/"})

    async def twice(fetcher: Fetcher) -> None:
        for _ in range(2):
            await fetcher.fetch(server.url("/cookies.xml"))

    using(twice)
    for request in server.requests("/cookies.xml"):
        assert not {"Cookie", "Authorization", "Referer"} & {*request.headers}


# Limits.


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("silent", "timeout"),
        ("drip", "timeout"),
        ("huge", "too-large"),
        ("huge-length", "too-large"),
        ("gzip-bomb", "too-large"),
        ("gzip-members", "encoding"),
        ("gzip-twice", "encoding"),
        ("gzip-cut", "encoding"),
        ("cut", "connection"),
        ("garbage", "connection"),
        ("dropped", "connection"),
        ("huge-header", "too-large"),
        ("many-headers", "too-large"),
        ("split-header", "connection"),
    ],
)
def test_misbehaviour_is_a_failure_with_a_name(server: FeedServer, how: Misbehaviour, kind: str) -> None:
    server.misbehave(f"/{how}", how)
    total_s = 0.5 if kind == "timeout" else 30.0
    told = failure(server.url(f"/{how}"), settings=FetchSettings(allow=LOOPBACK, total_s=total_s))
    assert told.kind == kind, str(told)
    assert server.url(f"/{how}") in str(told)


def test_what_follows_a_body_is_not_taken_for_the_next_answer(server: FeedServer) -> None:
    server.misbehave("/overlong", "overlong")
    server.set_feed("/after.xml", ["one"])

    async def both(fetcher: Fetcher) -> list[bytes]:
        return [(await fetcher.fetch(server.url(path))).body for path in ("/overlong", "/after.xml", "/after.xml")]

    assert using(both) == [b"<rss>", rss(["one"]), rss(["one"])]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "throttled"), (503, "throttled"), (403, "forbidden"), (410, "gone"), (404, "status"), (500, "status")],
)
def test_a_status_is_told_with_its_meaning(server: FeedServer, status: int, kind: str) -> None:
    server.fail(f"/{status}", status, "120")
    told = failure(server.url(f"/{status}"))
    for error in (told, told.again()):
        assert (error.kind, error.status, error.retry_after_s) == (kind, status, 120)
        assert str(error) == f"{server.url(f'/{status}')} answered {status}, to be asked again in 120 s"


def test_retry_after_may_be_a_time(server: FeedServer) -> None:
    server.fail("/later", 429, formatdate(4_000_000_000, usegmt=True))
    assert (failure(server.url("/later")).retry_after_s or 0) > 1e9


def test_nobody_there_no_name_and_no_certificate_are_told_apart(server: FeedServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert failure(f"http://127.0.0.1:{taken.getsockname()[1]}/").kind == "connection"
    assert failure(f"http://{'a' * 70}.example/").kind == "dns"
    assert failure(server.url("/").replace("http:", "https:")).kind == "tls"


@pytest.mark.parametrize("etag", ['"a"\r\nX-Evil: 1', '"\udcff"', "x" * 5000, "\x00"])
def test_an_etag_that_is_none_is_not_sent(server: FeedServer, etag: str) -> None:
    server.set_feed("/etag.xml", ["one"])
    assert using(lambda fetcher: fetcher.fetch(server.url("/etag.xml"), etag, etag)).status == 200
    assert not server.conditional("/etag.xml")


# By choice.


def test_robots_are_respected_where_that_is_chosen() -> None:
    with FeedServer() as server:
        rules = b"User-agent: *\nDisallow: /\n\nUser-agent: clarion\nDisallow: /private*.xml$\nAllow: /\n"
        server.set_body("/robots.txt", rules, "text/plain")
        server.set_feed("/private/a.xml", ["one"])
        server.set_feed("/open.xml", ["one"])
        server.redirect("/way", "/private/a.xml")

        async def several(fetcher: Fetcher) -> list[str]:
            found = []
            for path in ("/private/a.xml", "/open.xml", "/way"):
                try:
                    await fetcher.fetch(server.url(path))
                    found.append("fetched")
                except FetchFailed as error:
                    found.append(error.kind)
            return found

        assert using(several, settings=FetchSettings(allow=LOOPBACK, robots=True)) == ["robots", "fetched", "robots"]
        assert len(server.requests("/robots.txt")) == 1
        assert not server.requests("/private/a.xml")
        assert using(several)[0] == "fetched"


@pytest.mark.parametrize(("status", "allowed"), [(404, True), (403, True), (500, False), (429, False)])
def test_robots_that_are_not_there_allow_and_those_that_cannot_be_had_do_not(status: int, allowed: bool) -> None:
    with FeedServer() as server:
        server.fail("/robots.txt", status)

        async def at_once(fetcher: Fetcher) -> list[bool]:
            return await asyncio.gather(*(fetcher.robots_allow(server.url("/a.xml")) for _ in range(10)))

        assert using(at_once) == [allowed] * 10
        assert len(server.requests("/robots.txt")) == 1


def test_a_host_that_cannot_be_found_is_not_told_as_robots() -> None:
    settings = FetchSettings(robots=True)
    assert failure("http://nobody.example/", settings=settings, resolver=Resolver([])).kind == "dns"
    assert failure("http://127.0.0.1/", settings=settings).kind == "address"
