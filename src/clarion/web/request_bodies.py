"""Bodies of requests, read within a gateway's bounds, and answers whose body is JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from clarion.web.gateway_buffer import Reservation
from clarion.web.gateway_settings import GatewaySettings
from clarion.web.post_queue import PostQueue
from clarion.web.post_requests import Refusal, too_large


def json_answer(status: int, told: Any, headers: dict[str, str] | None = None) -> web.Response:
    """Return an answer whose body is JSON in one line, so that it ends well in a terminal."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(told, enc_hook=str) + b"\n",
        content_type="application/json",
        headers={"Server": "clarion", **(headers or {})},
    )


def refused(refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    """Return the answer that a refusal is."""
    return json_answer(refusal.status, refusal.told(), refusal.headers() | (headers or {}))


class RequestBodies:
    """Reads bodies; what has come of one takes room in the gateway's buffer."""

    def __init__(self, settings: GatewaySettings, posts: PostQueue) -> None:
        self._settings = settings
        self._posts = posts

    @property
    def largest_bytes(self) -> int:
        """How large one may be."""
        return min(self._settings.body_bytes, self._settings.buffer_bytes)

    def check_size(self, size: int) -> None:
        """Refuse a body that is larger than any may be."""
        if size > self.largest_bytes:
            raise too_large(f"this gateway takes bodies of at most {self.largest_bytes} bytes; nothing was queued")

    async def read(self, request: web.Request, reservation: Reservation) -> bytes:
        """Return the body, with room for it reserved; where it is refused, the room is given back."""
        pieces: list[bytes] = []
        size = 0
        # A small body is all there by now, as a rule; then there is nothing to wait for.
        patience_s = None if request.content.is_eof() else self._settings.read_timeout_s
        try:
            async with asyncio.timeout(patience_s):
                while piece := await request.content.readany():
                    size += len(piece)
                    self.check_size(size)
                    if not reservation.grow_to(0, size):
                        raise self._posts.full(0, len(piece))
                    pieces.append(piece)
        except BaseException as error:
            reservation.leave()
            if isinstance(error, TimeoutError):
                limit = f"{self._settings.read_timeout_s:g} s"
                raise Refusal(408, "TooSlow", f"the body did not come within {limit}; nothing was queued") from None
            if isinstance(error, (web.RequestPayloadError, ConnectionError)):  # the latter where the client is gone
                raise Refusal(400, "BadRequest", f"the body is broken: {error}; nothing was queued") from None
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
