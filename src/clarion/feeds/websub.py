"""WebSub: being told by a feed's hub that it changed, instead of asking (W3C Recommendation, 2018; the subscriber).

A notice makes the node poll at once and is believed no further: what changed is fetched like ever. So polls go on, more
rarely if the node likes, and a hub that dies, lies or floods costs nothing but that. `WebSubTable` decides, from
questions and the time; `WebSubCallback` is the small server to which hubs talk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import web

from clarion.feeds.discovery import find_hubs
from clarion.feeds.fetcher import Fetched, Fetcher, FetchFailed
from clarion.model.errors import BadSettings

log = logging.getLogger("clarion.feeds")
_METHODS = ("sha1", "sha256", "sha384", "sha512")
_LEASE_S = 10 * 86_400  # asked for
_LEASE_MOST_S = 30 * 86_400.0  # believed
_RENEWED_LEAST_S = 300.0
_AGAIN_S, _AGAIN_MOST_S = 900.0, 86_400.0  # until a request is confirmed, doubled each time
_PUSHES_APART_S = 10.0  # of one channel
_CHALLENGE_MOST = 4096  # characters
_NOTICE_MOST_BYTES = 16 << 20
_NOTICE_WITHIN_S = 30.0
_WAITING_MOST = 10_000  # notices that the node did not yet take
_LOOKED_EVERY_S = 30.0
_POSTS_AT_ONCE = 8


class HubOffer(NamedTuple):
    """A hub that tells of changes, and the name under which it knows the feed."""

    hub: str
    topic: str


class HubRequest(NamedTuple):
    """What is to be posted to a hub."""

    url: str  # of the channel
    hub: str
    form: dict[str, str]


class Answer(NamedTuple):
    """What a hub that asks is told."""

    status: int
    text: str = ""


@dataclass(slots=True)
class _Subscription:
    url: str
    offer: HubOffer
    token: str = field(repr=False)
    secret: str = field(repr=False)
    wanted: bool = True
    until_s: float = 0.0  # while it is leased
    ask_at_s: float = 0.0  # the next request, if nothing happens before
    failures: int = 0
    pushed_s: float = float("-inf")


def offer_of(fetched: Fetched) -> HubOffer | None:
    """Return the hub that a resource names, in its headers or else in its body, or None."""
    hubs, self_url = fetched.hubs, fetched.self_url
    if not hubs:
        hubs, self_url = find_hubs(fetched.body, fetched.content_type, fetched.url)
    return HubOffer(hubs[0], self_url or fetched.url) if hubs else None


class SignatureCheck:
    """Whether a body, given piece by piece, is signed with a secret as the header X-Hub-Signature says."""

    def __init__(self, secret: str, header: str) -> None:
        method, _, self._claimed = header.strip().partition("=")
        known = method.lower() in _METHODS
        self._hmac = hmac.new(secret.encode(), digestmod=getattr(hashlib, method.lower())) if known else None

    def update(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._hmac is not None:
            self._hmac.update(piece)

    def holds(self) -> bool:
        """Return whether the signature is that of what came."""
        claimed = self._claimed.strip().lower().encode("utf-8", "replace")
        return self._hmac is not None and hmac.compare_digest(self._hmac.hexdigest().encode(), claimed)


class WebSubTable:
    """The subscriptions of a node at hubs: what is asked for when, and what hubs that call are told.

    Each has a token, which is the last part of its callback's path and known to its hub only, and a secret.
    """

    def __init__(self, callback_url: str) -> None:
        if not callback_url.startswith(("http://", "https://")):
            raise BadSettings(f"{callback_url!r} is no URL at which a hub could reach this node, as https://HOST/PATH")
        self._callback_url = callback_url.rstrip("/")
        self._by_url: dict[str, _Subscription] = {}
        self._by_token: dict[str, _Subscription] = {}

    def want(self, url: str, offer: HubOffer, token: str, secret: str, now_s: float) -> None:
        """Be told of changes of a channel from now on; `due` has the request. The same offer again changes nothing."""
        known = self._by_url.get(url)
        if known is not None and known.offer == offer:
            return
        if known is not None:
            self.leave(url, now_s)
        self._by_url[url] = self._by_token[token] = _Subscription(url, offer, token, secret, ask_at_s=now_s)

    def leave(self, url: str, now_s: float) -> None:
        """Be told no more; `due` has the request that says so, where the hub knows of it."""
        known = self._by_url.pop(url, None)
        if known is None:
            return
        known.wanted, known.ask_at_s, known.failures = False, now_s, 0
        if now_s >= known.until_s:
            del self._by_token[known.token]

    def covered(self, url: str, now_s: float) -> bool:
        """Return whether a hub has promised to tell of a channel's changes."""
        known = self._by_url.get(url)
        return known is not None and now_s < known.until_s

    def due(self, now_s: float) -> list[HubRequest]:
        """Return what is to be posted to hubs now: first requests, renewals, second attempts, farewells."""
        requests = []
        for one in list(self._by_token.values()):
            if now_s < one.ask_at_s:
                continue
            if not one.wanted and one.failures:  # one farewell is enough: the lease ends by itself
                del self._by_token[one.token]
                continue
            one.ask_at_s = now_s + min(_AGAIN_S * 2.0 ** min(one.failures, 10), _AGAIN_MOST_S)
            one.failures += 1  # until the hub confirms it
            requests.append(HubRequest(one.url, one.offer.hub, self._form(one)))
        return requests

    def on_verification(self, token: str, query: Mapping[str, str], now_s: float) -> Answer:
        """Return the answer to a hub that asks whether a request is ours: its challenge, if so."""
        one = self._by_token.get(token)
        mode, challenge = query.get("hub.mode", ""), query.get("hub.challenge", "")
        if one is None or query.get("hub.topic") != one.offer.topic:
            return Answer(404)
        if mode == "denied":
            one.until_s, one.ask_at_s = 0.0, now_s + _AGAIN_MOST_S
            return Answer(200)
        if mode != ("subscribe" if one.wanted else "unsubscribe") or not 0 < len(challenge) <= _CHALLENGE_MOST:
            return Answer(404)
        if not one.wanted:
            del self._by_token[token]
            return Answer(200, challenge)
        lease = query.get("hub.lease_seconds", "")
        granted_s = float(lease[:9]) if lease.isascii() and lease.isdecimal() else float(_LEASE_S)
        lease_s = min(granted_s, _LEASE_MOST_S)
        one.until_s, one.failures = now_s + lease_s, 0
        one.ask_at_s = now_s + max(lease_s * 2 / 3, _RENEWED_LEAST_S)
        return Answer(200, challenge)

    def check(self, token: str, header: str) -> SignatureCheck | None:
        """Return what is to check a notice, or None where nobody wants it."""
        one = self._by_token.get(token)
        return SignatureCheck(one.secret, header) if one is not None and one.wanted else None

    def on_notice(self, token: str, now_s: float) -> tuple[str, float] | None:
        """Return which channel to poll, and in how many seconds, after a signed notice; None where nobody wants it or
        a poll that is still to come does for this one as well."""
        one = self._by_token.get(token)
        if one is None or not one.wanted or now_s < one.pushed_s:
            return None
        one.pushed_s = max(now_s, one.pushed_s + _PUSHES_APART_S)
        return one.url, one.pushed_s - now_s

    def _form(self, one: _Subscription) -> dict[str, str]:
        form = {
            "hub.mode": "subscribe" if one.wanted else "unsubscribe",
            "hub.topic": one.offer.topic,
            "hub.callback": f"{self._callback_url}/{one.token}",
        }
        return form | ({"hub.lease_seconds": str(_LEASE_S), "hub.secret": one.secret} if one.wanted else {})


class WebSubCallback:
    """The server to which hubs talk. Channels to poll at once come out of `pushed`; for one event loop.

    `callback_url` is how hubs reach it: that of `host` and `port`, or of a proxy before them.
    """

    def __init__(self, fetcher: Fetcher, callback_url: str, host: str, port: int) -> None:
        self.pushed: asyncio.Queue[str] = asyncio.Queue(_WAITING_MOST)
        self.counts: Counter[str] = Counter()  # of notices: pushed, unsigned, dropped; and of requests that failed
        self._table = WebSubTable(callback_url)
        self._fetcher = fetcher
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._asking: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._slots = asyncio.Semaphore(_POSTS_AT_ONCE)

    async def start(self) -> int:
        """Listen, and return the port."""
        application = web.Application()
        application.router.add_get("/{path:.*}", self._verify)
        application.router.add_post("/{path:.*}", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._asking = asyncio.create_task(self._ask())
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Listen no more. Hubs that still call are not answered, and forget us when their leases end."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    def subscribe(self, url: str, fetched: Fetched) -> bool:
        """Ask to be told of changes of a channel, soon, where what was fetched names a hub; return whether it does."""
        if offer := offer_of(fetched):
            self._table.want(url, offer, secrets.token_urlsafe(32), secrets.token_urlsafe(32), time.monotonic())
            self._wanted.set()
        return offer is not None

    def unsubscribe(self, url: str) -> None:
        """Ask to be told no more."""
        self._table.leave(url, time.monotonic())
        self._wanted.set()

    async def _ask(self) -> None:
        while True:
            self._wanted.clear()
            await asyncio.gather(*map(self._post, self._table.due(time.monotonic())))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOKED_EVERY_S):  # `wait_for` of Python 3.11 may lose a cancellation
                    await self._wanted.wait()

    async def _post(self, request: HubRequest) -> None:
        async with self._slots:
            try:
                status = await self._fetcher.post_form(request.hub, request.form)
                refused = "" if 200 <= status < 300 else f"it answered {status}"
            except FetchFailed as error:
                refused = str(error)
        if refused:
            self.counts["failed"] += 1
            log.info("the hub %s does not take a request about %s: %s", request.hub, request.url, refused)

    async def _verify(self, request: web.Request) -> web.Response:
        answer = self._table.on_verification(_token(request), request.query, time.monotonic())
        return web.Response(status=answer.status, text=answer.text, headers={"X-Content-Type-Options": "nosniff"})

    async def _take(self, request: web.Request) -> web.Response:
        """Take a notice. Whether its signature held is not told, as the recommendation asks."""
        check = self._table.check(_token(request), request.headers.get("X-Hub-Signature", ""))
        if check is None:
            return web.Response(status=410)
        received = 0
        try:
            async with asyncio.timeout(_NOTICE_WITHIN_S):
                async for piece in request.content.iter_any():
                    check.update(piece)
                    received += len(piece)
                    if received > _NOTICE_MOST_BYTES:
                        return web.Response(status=413)
        except TimeoutError:
            return web.Response(status=408)
        if not check.holds():
            self.counts["unsigned"] += 1
        elif notice := self._table.on_notice(_token(request), time.monotonic()):
            url, wait_s = notice
            asyncio.get_running_loop().call_later(wait_s, self._push, url)
        return web.Response(status=202)

    def _push(self, url: str) -> None:
        try:
            self.pushed.put_nowait(url)
            self.counts["pushed"] += 1
        except asyncio.QueueFull:  # the next poll finds it
            self.counts["dropped"] += 1


def _token(request: web.Request) -> str:
    return request.path.rpartition("/")[2]
