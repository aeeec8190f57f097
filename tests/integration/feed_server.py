"""A web server of the tests' own, on loopback: feeds and pages that change, all kinds of misbehaviour, a WebSub hub.
It counts requests.

    with FeedServer() as server:
        server.set_feed("/a.xml", ["first", "second"])
        node.watch(server.url("/a.xml"))
        server.misbehave("/a.xml", "drip")
        server.requests("/a.xml")
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import count
from types import TracebackType
from typing import Literal

import aiohttp
from aiohttp import web

FeedForm = Literal["rss", "atom"]
Misbehaviour = Literal[
    "silent",  # takes the request and says nothing
    "drip",  # a byte of the body at a time, for ever
    "huge",  # a body without end
    "huge-length",  # a body that says that it is large
    "redirect-loop",
    "redirect-endless",  # to another path each time
    "gzip-bomb",
    "gzip-members",  # very many empty ones
    "gzip-twice",  # Content-Encoding: gzip, gzip
    "gzip-cut",  # its end is missing
    "cut",  # Content-Length is more than what comes
    "overlong",  # Content-Length is less than what comes
    "garbage",  # no HTTP
    "dropped",  # the connection ends without an answer
    "huge-header",
    "many-headers",
    "split-header",  # a carriage return alone within a header
    "wrong-charset",  # Latin-1 that says that it is UTF-8
    "entity-bomb",
    "outer-entity",  # an entity that is a file of the reader's machine
]
_RSS, _ATOM = "application/rss+xml; charset=utf-8", "application/atom+xml; charset=utf-8"
_ANSWERED_S = 30.0


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a feed."""

    title: str
    text: str = ""
    id: str = ""  # the title, if there is none
    link: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that came."""

    at_s: float  # of the epoch
    method: str
    path: str
    headers: Mapping[str, str]
    status: int  # 0 where the answer was no proper one
    peer: str  # the address and port it came from: a connection
    sent: int = 0  # bytes of the body

    @property
    def conditional(self) -> bool:
        """Return whether it asked for a change only."""
        return "If-None-Match" in self.headers or "If-Modified-Since" in self.headers


@dataclass(frozen=True, slots=True)
class Resource:
    """What is at a path: a body by version, and the version by time."""

    body: Callable[[int], bytes]
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    etags: bool = True
    since_s: float = 0.0
    every_s: float | None = None  # between versions that come by themselves

    def version(self, now_s: float) -> int:
        """Return which version there is."""
        return int((now_s - self.since_s) / self.every_s) if self.every_s else 0


@dataclass(slots=True)
class HubSubscription:
    """A subscriber of the hub."""

    topic: str
    callback: str
    secret: str
    lease_s: int
    verified: bool = False


def rss(entries: Iterable[Entry | str], title: str = "A feed", links: str = "") -> bytes:
    """Return a feed in RSS 2.0."""
    items = "".join(
        f"<item><title>{escape(entry.title)}</title><guid isPermaLink='false'>{escape(entry.id or entry.title)}</guid>"
        f"<link>{escape(entry.link)}</link><description>{escape(entry.text)}</description></item>"
        for entry in map(_entry, entries)
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?><rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom">'
        f"<channel><title>{escape(title)}</title><link>http://example.org/</link>"
        f"<description>a feed of tests</description>{links}{items}</channel></rss>"
    ).encode()


def atom(entries: Iterable[Entry | str], title: str = "A feed", links: str = "") -> bytes:
    """Return a feed in Atom 1.0."""
    items = "".join(
        f"<entry><title>{escape(entry.title)}</title><id>{escape(entry.id or entry.title)}</id>"
        f"<link href='{escape(entry.link)}'/><updated>2026-01-01T00:00:00Z</updated>"
        f"<content>{escape(entry.text)}</content></entry>"
        for entry in map(_entry, entries)
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom"><id>urn:tests</id>'
        f"<title>{escape(title)}</title><updated>2026-01-01T00:00:00Z</updated>{links}{items}</feed>"
    ).encode()


def _entry(entry: Entry | str) -> Entry:
    return Entry(entry) if isinstance(entry, str) else entry


class FeedServer:
    """Serves from a thread, until the block ends; everything but the server itself may be used from other threads."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = 0
        self._resources: dict[str, Resource] = {}
        self._misbehaving: dict[str, Misbehaviour] = {}
        self._answers: dict[str, tuple[int, Mapping[str, str]]] = {}  # of paths that answer with a status only
        self._arrivals: list[Arrival] = []
        self._hub: dict[tuple[str, str], HubSubscription] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="feed server", daemon=True)
        self.lease_s: int | None = None  # that the hub grants, whatever was asked for

    def __enter__(self) -> FeedServer:
        self._thread.start()
        assert self._ready.wait(_ANSWERED_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_ANSWERED_S)

    # What is served.

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"http://{self._host}:{self._port}{path}"

    def set_feed(
        self,
        path: str,
        entries: Iterable[Entry | str],
        *,
        form: FeedForm = "rss",
        title: str = "A feed",
        hub: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Serve a feed, or another version of it; with `hub` it names the server's own hub."""
        body = _feed(entries, form, title, self._hub_links(path) if hub else "")
        self.set_body(path, body, _ATOM if form == "atom" else _RSS, headers)

    def set_page(self, path: str, html: str, headers: Mapping[str, str] | None = None) -> None:
        """Serve a page, or another version of it."""
        self.set_body(path, html.encode(), "text/html; charset=utf-8", headers)

    def set_body(
        self,
        path: str,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        etags: bool = True,
    ) -> None:
        """Serve these bytes."""
        self._resources[path] = Resource(lambda _: body, content_type, headers or {}, etags, time.time())

    def set_schedule(
        self,
        path: str,
        body: Callable[[int], bytes],
        every_s: float,
        content_type: str = _RSS,
        *,
        since_s: float | None = None,
    ) -> None:
        """Serve `body(0)`, and from then on another version every so many seconds."""
        since_s = time.time() if since_s is None else since_s
        self._resources[path] = Resource(body, content_type, since_s=since_s, every_s=every_s)

    def version(self, path: str) -> int:
        """Return which version of a schedule is served now."""
        return self._resources[path].version(time.time())

    def changed_at_s(self, path: str, version: int) -> float:
        """Return when a version of a schedule came, in seconds of the epoch."""
        resource = self._resources[path]
        return resource.since_s + version * (resource.every_s or 0.0)

    def redirect(self, path: str, target: str, status: int = 302) -> None:
        """Redirect a path, whatever is there, to a URL."""
        self._answers[path] = (status, {"Location": target})

    def fail(self, path: str, status: int, retry_after: str = "") -> None:
        """Answer with this status, whatever is there."""
        self._answers[path] = (status, {"Retry-After": retry_after} if retry_after else {})

    def misbehave(self, path: str, how: Misbehaviour) -> None:
        """Answer in this way, whatever is there."""
        self._misbehaving[path] = how

    def behave(self, path: str) -> None:
        """Serve what is at a path again."""
        self._misbehaving.pop(path, None)
        self._answers.pop(path, None)

    # What came.

    def requests(self, path: str | None = None) -> list[Arrival]:
        """Return the requests of a path, or all, in the order in which they were answered."""
        return [arrival for arrival in list(self._arrivals) if path in (None, arrival.path)]

    def conditional(self, path: str | None = None) -> list[Arrival]:
        """Return those that asked for a change only."""
        return [arrival for arrival in self.requests(path) if arrival.conditional]

    def forget_requests(self) -> None:
        """Count from zero again."""
        self._arrivals.clear()

    # The hub.

    def hub_subscriptions(self, path: str) -> list[HubSubscription]:
        """Return who is subscribed to a path at the hub, and has confirmed that."""
        return [one for one in list(self._hub.values()) if one.topic == self.url(path) and one.verified]

    def push(self, path: str, *, body: bytes | None = None, secret: str | None = None, method: str = "sha256") -> int:
        """Have the hub post what is at a path, or this body, to its subscribers; return how many took it."""
        done = asyncio.run_coroutine_threadsafe(self._push(path, body, secret, method), self._loop)
        return done.result(_ANSWERED_S)

    def _hub_links(self, path: str) -> str:
        return (
            f"<atom:link xmlns:atom='http://www.w3.org/2005/Atom' rel='hub' href='{self.url('/hub')}'/>"
            f"<atom:link xmlns:atom='http://www.w3.org/2005/Atom' rel='self' href='{self.url(path)}'/>"
        )

    async def _push(self, path: str, body: bytes | None, secret: str | None, method: str) -> int:
        if body is None:
            body = self._resources[path].body(self._resources[path].version(time.time()))
        taken = 0
        async with aiohttp.ClientSession() as session:
            for one in self.hub_subscriptions(path):
                key = one.secret if secret is None else secret
                signed = hmac.new(key.encode(), body, method).hexdigest()
                headers = {"X-Hub-Signature": f"{method}={signed}", "Content-Type": _RSS} if key else {}
                async with session.post(one.callback, data=body, headers=headers) as answer:
                    taken += answer.status // 100 == 2
        return taken

    async def _verify(self, mode: str, one: HubSubscription) -> None:
        """Ask the subscriber whether it wants this, as a hub must."""
        challenge = hashlib.sha256(one.callback.encode()).hexdigest()
        query = {"hub.mode": mode, "hub.topic": one.topic, "hub.challenge": challenge}
        if mode == "subscribe":
            query["hub.lease_seconds"] = str(one.lease_s)
        with contextlib.suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(one.callback, params=query) as answer,
            ):
                if answer.status // 100 == 2 and await answer.text() == challenge:
                    one.verified = mode == "subscribe"

    async def _hub_asked(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        topic, callback, mode = (form.get(f"hub.{name}", "") for name in ("topic", "callback", "mode"))
        self._note(request, 202)
        lease_s = self.lease_s or int(form.get("hub.lease_seconds", "86400"))
        if mode == "subscribe":
            one = HubSubscription(topic, callback, form.get("hub.secret", ""), lease_s)
            self._hub[topic, callback] = one
        else:
            one = self._hub[topic, callback]
        self._verifying.add(task := asyncio.create_task(self._verify(mode, one)))
        task.add_done_callback(self._verifying.discard)
        return web.Response(status=202)

    # How it is served.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._verifying: set[asyncio.Task[None]] = set()
        application = web.Application()
        application.router.add_post("/hub", self._hub_asked)
        application.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, self._host, 0)
        await site.start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self._stopping.wait()
        await runner.cleanup()

    def _note(self, request: web.Request, status: int, sent: int = 0) -> None:
        peer = str(request.transport.get_extra_info("peername")) if request.transport else ""
        headers = dict(request.headers)
        self._arrivals.append(Arrival(time.time(), request.method, request.path, headers, status, peer, sent))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if how := self._misbehaving.get(path) or ("redirect-endless" if path.startswith("/endless/") else None):
            self._note(request, 0)
            return await self._misbehaved(request, how)
        if path in self._answers:
            status, headers = self._answers[path]
            self._note(request, status)
            return web.Response(status=status, headers=headers)
        resource = self._resources.get(path)
        if resource is None:
            self._note(request, 404)
            return web.Response(status=404)
        body = resource.body(resource.version(time.time()))
        headers = dict(resource.headers)
        if resource.etags:
            headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            if request.headers.get("If-None-Match") == headers["ETag"]:
                self._note(request, 304)
                return web.Response(status=304, headers=headers)
        self._note(request, 200, len(body))
        return web.Response(body=body, headers={"Content-Type": resource.content_type, **headers})

    async def _misbehaved(self, request: web.Request, how: Misbehaviour) -> web.StreamResponse:
        if how == "redirect-loop":
            return web.Response(status=302, headers={"Location": request.path})
        if how == "redirect-endless":
            return web.Response(status=302, headers={"Location": f"/endless/{next(_numbers)}"})
        if how in _BODIES:
            encoding, body, content_type = _BODIES[how]()
            headers = {"Content-Type": content_type, **({"Content-Encoding": encoding} if encoding else {})}
            return web.Response(body=body, headers=headers)
        if how == "silent":
            await self._stopping.wait()
        elif how in ("drip", "huge"):
            return await self._without_end(request, how)
        elif how in _RAW and request.transport is not None:
            request.transport.write(_RAW[how])
            if how == "overlong":
                await self._stopping.wait()
            request.transport.close()
        elif request.transport is not None:
            request.transport.close()
        return web.Response()  # nobody hears it

    async def _without_end(self, request: web.Request, how: Misbehaviour) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": _RSS})
        await answer.prepare(request)
        await answer.write(b"<rss>")
        while not self._stopping.is_set():
            await answer.write(b" " if how == "drip" else bytes(65536))
            if how == "drip":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), 0.05)
        return answer


_numbers = count()


def _feed(entries: Iterable[Entry | str], form: FeedForm, title: str, links: str) -> bytes:
    return (atom if form == "atom" else rss)(entries, title, links)


@cache
def _bomb() -> bytes:
    """Return 1 GiB of zeros in gzip, cheaply: the same packed megabyte over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    start = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + again * 1023


def _entity_bomb() -> bytes:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    return (
        f'<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY e0 "ha">{entities}]>'
        '<rss version="2.0"><channel><title>&e9;</title></channel></rss>'
    ).encode()


_OUTER = (
    b'<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    b'<rss version="2.0"><channel><title>&x;</title></channel></rss>'
)
_LATIN = rss(["caf\u00e9 \u00fc"]).decode().encode("latin-1")
_BODIES: dict[Misbehaviour, Callable[[], tuple[str, bytes, str]]] = {
    "gzip-bomb": lambda: ("gzip", _bomb(), _RSS),
    "gzip-members": lambda: ("gzip", gzip.compress(b"") * 20_000, _RSS),
    "gzip-twice": lambda: ("gzip, gzip", gzip.compress(gzip.compress(rss(["a"]))), _RSS),
    "gzip-cut": lambda: ("gzip", gzip.compress(rss(["a"]))[:-12], _RSS),
    "wrong-charset": lambda: ("", _LATIN, _RSS),
    "entity-bomb": lambda: ("", _entity_bomb(), _RSS),
    "outer-entity": lambda: ("", _OUTER, _RSS),
}
_RAW: dict[Misbehaviour, bytes] = {
    "huge-length": b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n<rss>",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<rss>",
    "overlong": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<rss>HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    "garbage": b"\x00\xff\xfe this is not the web \r\n\r\n" * 10,
    "huge-header": b"HTTP/1.1 200 OK\r\nX-Large: " + b"a" * 1_000_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"X-Many: a\r\n" * 10_000 + b"Content-Length: 0\r\n\r\n",
    "split-header": b'HTTP/1.1 200 OK\r\nETag: "a"\rX-Evil: 1\r\nContent-Length: 5\r\n\r\n<rss>',
}
