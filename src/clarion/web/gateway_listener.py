"""Accepts the gateway's connections: bounded in number, and answered in JSON even where they bring no HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import msgspec
from aiohttp import web

log = logging.getLogger("clarion.web")
_FULL_BODY = (
    b'{"error":"TooManyConnections","message":"this gateway has as many connections as it takes; come again"}\n'
)

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)

_FAREWELL_S = 1.0  # that whoever was turned away has to read why
_FAREWELLS = 64  # at one time; who comes beyond is not told
BACKLOG = (
    64  # that wait to be accepted; asyncio takes as many at one time, and a few times as many before it closes one
)

SPARE_DESCRIPTORS = 4 * BACKLOG + _FAREWELLS + 48  # for these, the broker's connection, the outbox and the log


def json_answer(status: int, told: Any, headers: dict[str, str] | None = None) -> web.Response:
    """Return an answer whose body is JSON in one line, so that it ends well in a terminal."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(told, enc_hook=str) + b"\n",
        content_type="application/json",
        headers={"Server": "clarion", **(headers or {})},
    )


class GatewayListener:
    """Makes the protocol of each new connection, and says which are beyond the bound."""

    def __init__(self, server: web.Server, max_connections: int, **options: Any) -> None:
        self._server = server
        self._max_connections = max_connections
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.turned_away = 0
        self.farewells = 0  # to those who were turned away and are still there

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol for a connection that is about to be made."""
        return _Connection(self, self._server, loop=self._loop, **self._options)

    def lets_in(self) -> bool:
        """Whether there is room for one more connection; counts those for which there is none."""
        if len(self._server.connections) < self._max_connections:
            return True
        self.turned_away += 1
        return False

    def close_idle(self) -> None:
        """Close connections on which no request is under way."""
        for connection in self._server.connections:
            if isinstance(connection, _Connection) and not connection.is_busy:
                connection.close()


class _Connection(web.RequestHandler):
    """One connection; it must bring a request in time and read its answers in time, and errors that no handler saw
    are JSON, too."""

    __slots__ = ("_listener", "_patience")

    def __init__(self, listener: GatewayListener, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._listener = listener
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or turn it away. Only now is it known how many there are: many may be accepted at one time."""
        if not self._listener.lets_in():
            turned_away = _RefusedConnection(self._listener)
            transport.set_protocol(turned_away)
            turned_away.connection_made(transport)
            return
        super().connection_made(transport)
        _cut_if_unread(transport, self.keepalive_timeout)
        # Before 3.14.4 aiohttp does not close a connection on which the first request never comes.
        self._patience = self._loop.call_later(self.keepalive_timeout, self._close_if_silent)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if not self._request_count:
            self.force_close()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._request_in_progress

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is no HTTP, and what went wrong here; the connection ends."""
        if status >= 500:
            log.error("a request could not be answered: this is a mistake in Clarion", exc_info=exc)
            told = {"error": "InternalError", "message": "this is a mistake in Clarion; its log says more"}
        else:
            log.debug("a request from %s was not understood: %s", request.remote, exc)
            first = (message or str(exc)).strip().partition("\n")[0].rstrip(": ")
            told = {"error": "BadRequest", "message": f"this is not HTTP as it should be: {first}"}
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun already")
        answer = json_answer(status, told)
        answer.force_close()
        return answer


def _cut_if_unread(transport: asyncio.BaseTransport, patience_s: float) -> None:
    """Have the kernel end a connection that takes nothing of what was sent for so long."""
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
    if option is not None:
        opened: socket.socket = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, option, max(1, min(int(patience_s * 1000), 2**31 - 1)))


class _RefusedConnection(asyncio.Protocol):
    """Says that there is no room, and closes. What came in is read, or the answer would be lost with a reset."""

    def __init__(self, listener: GatewayListener) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._listener.farewells += 1
        if self._listener.farewells > _FAREWELLS:
            transport.abort()
            return
        transport.write(_FULL)
        try:
            transport.write_eof()
        except OSError:  # it has gone by itself
            transport.abort()
            return
        asyncio.get_running_loop().call_later(_FAREWELL_S, transport.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.farewells -= 1
