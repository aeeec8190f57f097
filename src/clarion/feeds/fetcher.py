"""The fetcher: gets web resources for nodes, within limits, and only from addresses that may be connected to.

The address is checked where the socket is made, for the very address it will connect to, so a name that resolves to
something else a moment later gains nothing; redirects are followed here, one at a time, each like a first request.
Nothing of this machine goes along: no proxy settings, no cookies, no credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver
from protego import Protego
from yarl import URL

from clarion.feeds.addresses import AddressRules
from clarion.feeds.channels import BadUrl, normalise_url
from clarion.feeds.discovery import joined, read_link_headers
from clarion.feeds.politeness import read_max_age_s, read_retry_after_s
from clarion.model.errors import BadSettings, RetryableError
from clarion.version import __version__

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Kind: TypeAlias = Literal[
    "timeout",
    "too-large",
    "address",
    "redirects",
    "scheme",
    "throttled",
    "forbidden",
    "gone",
    "status",
    "dns",
    "tls",
    "connection",
    "encoding",
    "robots",
]
PRODUCT = "Clarion"  # by which robots.txt knows this client
_ACCEPT = "application/atom+xml, application/rss+xml, application/xml;q=0.9, text/html;q=0.8, */*;q=0.5"
_PERMANENT = (301, 308)
_REDIRECTS = (*_PERMANENT, 302, 303, 307)
_THROTTLED = (429, 503)
_REFUSED = "must not be connected to"  # in the text of the error: many become one on the way up
_TOLD_MOST = 300  # characters of what a server or a library says about a failure
_VALIDATOR_MOST = 1024  # characters
_GZIP_START = b"\x1f"
_ZSTD_START = b"\x28"
_MEMBERS_MOST = 100  # of one body: an empty one costs more to open than to send
_ZSTD_WINDOW_LOG = 23  # RFC 9659
_ROBOTS_MOST_BYTES = 512 * 1024  # RFC 9309
_ROBOTS_USUAL_BYTES = 4096
_ROBOTS_KEPT = 1000  # of the usual size
_ROBOTS_KEPT_S = 6 * 3600.0
_ROBOTS_AGAIN_S = 300.0  # where it could not be had


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Limits of one request, and what is respected by choice."""

    allow: tuple[str, ...] = ()  # addresses and networks beside the public ones, as of AddressRules
    total_s: float = 30.0  # with all redirects
    connect_s: float = 10.0
    silence_s: float = 15.0  # between two pieces of an answer
    redirects: int = 5
    received_bytes: int = 8 << 20  # of a body, as it travels
    body_bytes: int = 16 << 20  # of a body, unpacked
    header_bytes: int = 8190  # of a line; at most 128 lines
    connections: int = 100  # requests at once
    connections_per_host: int = 2
    robots: bool = False  # respect robots.txt
    downgrade: bool = False  # follow a redirect from https to http
    contact: str = ""  # a URL or an address of mail for those who find us in their logs

    def __post_init__(self) -> None:
        """Refuse what cannot be said in a header."""
        if not (self.contact.isascii() and self.contact.isprintable() and len(self.contact) <= 200):
            raise BadSettings("contact: at most 200 printable ASCII characters, as a URL or an address of mail")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a server answered."""

    status: int
    url: str  # that answered, after redirects
    body: bytes = b""  # unpacked; empty where it was not modified
    content_type: str = ""
    etag: str = ""
    last_modified: str = ""
    max_age_s: float | None = None  # Cache-Control, where it says so
    received_bytes: int = 0  # of bodies, as they travelled
    hubs: tuple[str, ...] = ()  # of Link headers (WebSub)
    self_url: str = ""  # by which the hubs know it
    not_modified: bool = False
    moved_to: str = ""  # where it is from now on, after permanent redirects only


class FetchFailed(RetryableError):
    """A resource could not be fetched; nothing was changed by it, and what is known of it stays. `kind` says why."""

    kind: Kind = "connection"
    status: int | None = None
    retry_after_s: float | None = None


def _failed(kind: Kind, text: str, *, status: int | None = None, retry_after_s: float | None = None) -> FetchFailed:
    error = FetchFailed(text)
    error.kind, error.status, error.retry_after_s = kind, status, retry_after_s
    return error


class Fetcher:
    """Fetches resources over connections that are shared; for one event loop.

    `resolver` is for tests: another source of addresses. What it says is checked like anything else.
    """

    def __init__(self, settings: FetchSettings | None = None, *, resolver: AbstractResolver | None = None) -> None:
        self._settings = settings or FetchSettings()
        self._rules = AddressRules(self._settings.allow)
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(self._settings.connections)
        self._robots: dict[str, _KnownRobots] = {}  # by origin, the oldest first

    async def fetch(self, url: str, etag: str = "", last_modified: str = "", *, subscribers: int = 0) -> Fetched:
        """Return what is at a URL, or that it is as it was when it had this ETag or time; FetchFailed otherwise."""
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip, deflate, zstd", "User-Agent": self._name(subscribers)}
        if validator(etag):
            headers["If-None-Match"] = etag
        if validator(last_modified):
            headers["If-Modified-Since"] = last_modified
        async with self._slots:  # outside the time limit: a crowd of slow servers does not make others time out
            return await self._get(url, headers, robots=self._settings.robots, most=self._settings.received_bytes)

    async def robots_allow(self, url: str) -> bool:
        """Return whether the robots.txt of a URL's host allows us to fetch it (RFC 9309); asked for a few times a day.

        One that is not there allows everything; one that cannot be had just now (timeouts, 5xx, 429) nothing.
        """
        origin = str(URL(url).origin())
        known = self._robots.get(origin)
        if known is None or time.monotonic() > known.until_s:
            self._robots.pop(origin, None)
            reading = asyncio.create_task(self._read_robots(origin))
            known = self._robots[origin] = _KnownRobots(reading, time.monotonic() + _ROBOTS_KEPT_S)
            while len(self._robots) > 1 and sum(one.weight for one in self._robots.values()) > _ROBOTS_KEPT:
                self._robots.pop(next(iter(self._robots)))
        allowed, rules = await asyncio.shield(known.reading)
        return allowed if rules is None else bool(rules.can_fetch(url, PRODUCT))

    async def post_form(self, url: str, form: Mapping[str, str]) -> int:
        """Return the status of posting a form; no redirect is followed. FetchFailed where there was no answer."""
        async with self._slots, self._told(url):
            here = self._checked(url, "")
            async with self._open().post(
                here, data=form, headers={"User-Agent": self._name(0)}, allow_redirects=False
            ) as response:
                return response.status

    async def close(self) -> None:
        """Close all connections."""
        for known in self._robots.values():
            known.reading.cancel()
        self._robots.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _name(self, subscribers: int) -> str:
        told = [f"+{self._settings.contact}"] if self._settings.contact else []
        told += [f"{subscribers} subscribers"] if subscribers else []
        return f"{PRODUCT}/{__version__} ({'; '.join(['feeds', *told])})"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings = self._settings
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    limit_per_host=settings.connections_per_host,
                    resolver=self._resolver,
                    use_dns_cache=self._resolver is None,
                    socket_factory=self._make_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(
                    total=settings.total_s, sock_connect=settings.connect_s, sock_read=settings.silence_s
                ),
                max_line_size=settings.header_bytes,
                max_field_size=settings.header_bytes,
            )
        return self._session

    def _make_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """Return a socket for the address it is about to be connected to, unless that is forbidden."""
        family, kind, protocol, _, address = info
        if reason := self._rules.forbidden(str(address[0]), int(address[1])):
            raise OSError(errno.EACCES, f"{address[0]} {_REFUSED} ({reason})")
        return socket.socket(family, kind, protocol)

    def _checked(self, url: str, before: str) -> URL:
        """Return a URL that may be asked for, after the one before it."""
        try:
            found = URL(normalise_url(url))
        except BadUrl as error:
            raise _failed("scheme", str(error)) from None
        if found.port == 0:
            raise _failed("address", f"{url} is not fetched: there is no port 0")
        if before.startswith("https:") and found.scheme == "http" and not self._settings.downgrade:
            raise _failed(
                "redirects", f"{before} leads from https to {found}, which anybody on the way can change; not followed"
            )
        return found

    @contextlib.asynccontextmanager
    async def _told(self, url: str) -> AsyncIterator[None]:
        """Tell whatever goes wrong within as a FetchFailed, and let it take only so long."""

        def failed(kind: Kind, error: BaseException | str) -> FetchFailed:
            text = " ".join(str(error).split()) or type(error).__name__
            return _failed(kind, f"{url} was not fetched: {text[:_TOLD_MOST]}")

        try:
            async with asyncio.timeout(self._settings.total_s):
                yield
        except TimeoutError as error:
            raise failed("timeout", str(error) or f"it took longer than {self._settings.total_s:g} s") from None
        except (aiohttp.ClientConnectorDNSError, UnicodeError) as error:
            raise failed("dns", error) from error
        except aiohttp.ClientSSLError as error:
            raise failed("tls", error) from error
        except aiohttp.InvalidURL as error:  # an IPv4 address in another form than four numbers
            raise failed("address", error) from error
        except aiohttp.ClientResponseError as error:  # what came is not HTTP as it should be
            large = error.message.startswith(("Got more than", "Too many"))
            raise failed("too-large" if large else "connection", error.message) from error
        except aiohttp.ServerDisconnectedError as error:  # its text may be the whole answer so far
            raise failed("connection", "the server closed the connection within its answer") from error
        except (aiohttp.ClientError, OSError) as error:
            raise failed("address" if _REFUSED in str(error) else "connection", error) from error

    async def _get(self, url: str, headers: dict[str, str], *, robots: bool, most: int) -> Fetched:
        seen: list[str] = []
        moved_to, permanent = "", True
        async with self._told(url):
            here = self._checked(url, "")
            while True:
                seen.append(str(here))
                if robots and not await self.robots_allow(seen[-1]):
                    raise _failed("robots", f"{here} is not fetched: robots.txt forbids it, or cannot be had")
                async with self._open().get(here, headers=headers, allow_redirects=False) as response:
                    target = response.headers.get("Location", "") if response.status in _REDIRECTS else ""
                    if not target:
                        return await self._answer(response, seen[-1], moved_to, most)
                    permanent = permanent and response.status in _PERMANENT
                here = self._checked(joined(seen[-1], target) or target, seen[-1])
                moved_to = str(here) if permanent else moved_to
                if str(here) in seen:
                    raise _failed("redirects", f"{url} was not fetched: its redirects go round in a circle")
                if len(seen) > self._settings.redirects:
                    raise _failed("redirects", f"{url} was not fetched: more than {self._settings.redirects} redirects")

    async def _answer(self, response: aiohttp.ClientResponse, url: str, moved_to: str, most: int) -> Fetched:
        """Return what a response says, with its whole body, or raise what its status means."""
        headers, status = response.headers, response.status
        asked = response.request_info.headers
        not_modified = status == 304 and ("If-None-Match" in asked or "If-Modified-Since" in asked)
        if status not in (200, 203) and not not_modified:
            raise _status_failed(url, status, read_retry_after_s(headers.get("Retry-After", ""), time.time()))
        body, received = b"", 0
        if not not_modified:
            body, received = await _read_body(response, url, most, self._settings.body_bytes)
        links = read_link_headers(headers.getall("Link", ()), url)
        return Fetched(
            status=status,
            url=url,
            body=body,
            content_type=headers.get("Content-Type", ""),
            etag=validator(headers.get("ETag", "")),
            last_modified=validator(headers.get("Last-Modified", "")),
            max_age_s=read_max_age_s(headers.get("Cache-Control", ""), headers.get("Age", "")),
            received_bytes=received,
            hubs=tuple(dict.fromkeys(target for rel, target in links if rel == "hub")),
            self_url=next((target for rel, target in links if rel == "self"), ""),
            not_modified=not_modified,
            moved_to=moved_to,
        )

    async def _read_robots(self, origin: str) -> tuple[bool, Protego | None]:
        """Return the rules of a host, or without any whether everything is allowed."""
        headers = {"Accept": "text/plain, */*;q=0.5", "Accept-Encoding": "gzip", "User-Agent": self._name(0)}
        known = self._robots.get(origin)
        try:
            fetched = await self._get(f"{origin}/robots.txt", headers, robots=False, most=_ROBOTS_MOST_BYTES)
        except FetchFailed as error:
            there_is_none = 400 <= (error.status or 0) < 500 and error.kind != "throttled"
            if not there_is_none and known is not None:
                known.until_s = time.monotonic() + _ROBOTS_AGAIN_S
            # Where not even its host can be reached, the request itself says better why.
            return there_is_none or error.kind not in ("timeout", "connection", "throttled", "status"), None
        body = fetched.body[:_ROBOTS_MOST_BYTES]
        if known is not None:
            known.weight += len(body) // _ROBOTS_USUAL_BYTES
        return True, await asyncio.to_thread(Protego.parse, body.decode("utf-8", "replace"))  # a second, at worst


@dataclass(slots=True)
class _KnownRobots:
    """The rules of a host, or that they are being read."""

    reading: asyncio.Task[tuple[bool, Protego | None]]
    until_s: float
    weight: int = 1  # how many usual ones it is as large as


class _Opener(Protocol):
    """What zlib and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class UnpackedBody:
    """A body that is unpacked as it comes, and refused as soon as it is more than it may be; a pure value."""

    def __init__(self, encoding: str, url: str, most: int) -> None:
        codings = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
        if len(codings) > 1 or not {*codings} <= {"gzip", "x-gzip", "deflate", "zstd"}:
            raise _failed("encoding", f"{url} was not fetched: its Content-Encoding {encoding[:100]!r} is not read")
        self._coding = codings[0].removeprefix("x-") if codings else ""
        self._url, self._most = url, most
        self._body = bytearray()
        self._opener: _Opener | None = None
        self._members = 0
        self._ended = False  # what follows is no part of it

    def take(self, data: bytes) -> None:
        """Add what came; FetchFailed where that is too much, or not what it says it is."""
        if not self._coding:
            self._body += data
        while self._coding and data and not self._ended:
            if self._opener is None or self._opener.eof:
                self._open_member(data)
                continue
            room = self._most - len(self._body) + 1
            try:
                self._body += self._opener.decompress(data, room)
            except (zlib.error, zstd.ZstdError) as error:
                raise _failed("encoding", f"{self._url} was not fetched: {self._coding}: {error}") from None
            data = self._opener.unused_data if self._opener.eof else b""
            if len(self._body) > self._most:
                break
        if len(self._body) > self._most:
            raise _failed("too-large", f"{self._url} was not fetched: more than {self._most:,} bytes unpacked")

    def whole(self) -> bytes:
        """Return the body; FetchFailed where its end did not come."""
        if self._opener is not None and not self._opener.eof:
            raise _failed("encoding", f"{self._url} was not fetched: its {self._coding} was cut short")
        return bytes(self._body)

    def _open_member(self, data: bytes) -> None:
        again = self._opener is not None
        start = {"gzip": _GZIP_START, "zstd": _ZSTD_START}.get(self._coding, b"")
        if again and not (start and data.startswith(start)):
            self._ended = True
            return
        self._members += 1
        if self._members > _MEMBERS_MOST:
            raise _failed("encoding", f"{self._url} was not fetched: packed in more than {_MEMBERS_MOST} pieces")
        if self._coding == "zstd":
            self._opener = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})
        elif self._coding == "gzip":
            self._opener = zlib.decompressobj(16 + zlib.MAX_WBITS)
        else:  # "deflate" is zlib's form, and from some servers the bare one, which never starts with its first byte
            self._opener = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)


def validator(text: str) -> str:
    """Return an ETag or a time as it may be sent back, or an empty text where it may not."""
    return text if text.isprintable() and len(text) <= _VALIDATOR_MOST else ""


async def _read_body(response: aiohttp.ClientResponse, url: str, most: int, unpacked_most: int) -> tuple[bytes, int]:
    """Return the body of a response and how many bytes of it travelled."""
    if (response.content_length or 0) > most:
        raise _failed(
            "too-large", f"{url} was not fetched: {response.content_length:,} bytes, more than {most:,} are not read"
        )
    body = UnpackedBody(", ".join(response.headers.getall("Content-Encoding", ())), url, unpacked_most)
    received = 0
    async for piece in response.content.iter_any():
        received += len(piece)
        if received > most:
            raise _failed("too-large", f"{url} was not fetched: more than {most:,} bytes are not read")
        body.take(piece)
    return body.whole(), received


def _status_failed(url: str, status: int, retry_after_s: float | None) -> FetchFailed:
    kind: Kind = "status"
    if status in _THROTTLED:
        kind = "throttled"
    elif status == 403:
        kind = "forbidden"
    elif status == 410:
        kind = "gone"
    later = f", to be asked again in {retry_after_s:g} s" if retry_after_s else ""
    return _failed(kind, f"{url} answered {status}{later}", status=status, retry_after_s=retry_after_s)
