"""The HTTP gateway: POST /topics/NAME puts messages, POST /jobs/TYPE asks for jobs, GET /health and /stats tell how it
is doing; `serve` runs it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

from aiohttp import HttpVersion11, web

from clarion.model.errors import BadSettings, Busy, ClarionError, TimedOut, TopicFull
from clarion.model.names import to_text
from clarion.session.service_process import StopSignals, connections_possible, raise_descriptor_limit
from clarion.web.gateway_buffer import Reservation
from clarion.web.gateway_settings import GatewaySettings
from clarion.web.job_requests import JOBS_PATH, JobRequests
from clarion.web.post_queue import GatewayPublisher, PostQueue, TakenPost
from clarion.web.post_requests import (
    PATH,
    PostOptions,
    Refusal,
    check_encoding,
    check_origin,
    read_options,
    read_topic,
)
from clarion.web.request_bodies import RequestBodies, json_answer, refused

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
# Connections that wait to be accepted; asyncio takes as many at one time, and a few times as many before it closes one.
_BACKLOG = 64
_SPARE_DESCRIPTORS = 4 * _BACKLOG + _FAREWELLS + 48  # for these, the broker's connection, the outbox and the log
_LOOK_S = 0.5  # how often it looks whether the broker is there
_LINGER_S = 2.0  # that the rest of a refused body is read, so that the client sees the answer
_LAST_WORDS_S = 1.0  # in which answers leave before connections are cut
_TUNED_MAX = 100  # topics whose tuner the counters show
_TOLD = {
    "service": "clarion gateway",
    "POST /topics/NAME": "the body is a message; with Content-Type: application/x-ndjson each line is one",
    "POST /jobs/TYPE?workflow=NAME": "asks for a job whose input is the body; an Idempotency-Key is its id",
    "GET /jobs/ID": "what became of a job; DELETE cancels it",
    "GET /jobs/ID/result?wait=5": "its result",
    "GET /jobs?limit=100&status=failed": "the newest jobs",
    "GET /health": "200 while the broker is connected",
    "GET /stats": "counters",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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


class Gateway:
    """Serves HTTP for one publisher; made, started and stopped on one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._max_connections = min(settings.max_connections, connections_possible(_SPARE_DESCRIPTORS))
        self._publisher = GatewayPublisher(
            settings.url,
            buffer_bytes=2 * settings.buffer_bytes,  # half of it for what is read back from an outbox
            compression="zstd" if settings.compress else None,
            outbox=settings.outbox,
            outbox_bytes=settings.outbox_bytes,
            tuning=settings.tuning,
            batch_size=settings.batch_size,
        )
        self._posts = PostQueue(settings, self._publisher)
        self._bodies = RequestBodies(settings, self._posts)
        self._jobs = JobRequests(settings, self._posts, self._bodies)
        self._begin_s = time.monotonic()
        self._answers: Counter[int] = Counter()
        self._requests = 0  # that are under way
        self._quiet = asyncio.Event()  # set when there are none any more, once it is stopping
        self._stopping = False
        self._connected: bool | None = None
        app = web.Application(middlewares=[self._answer_refusals])
        app.router.add_get("/", self._root)
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._stats)
        app.router.add_post(PATH + "{topic:.*}", self._post, expect_handler=self._expect)
        app.router.add_post(JOBS_PATH + "/{rest:.*}", self._jobs.submit, expect_handler=self._expect)
        app.router.add_get(JOBS_PATH, self._jobs.list)
        app.router.add_get(JOBS_PATH + "/{id}", self._jobs.status)
        app.router.add_get(JOBS_PATH + "/{id}/result", self._jobs.result)
        app.router.add_delete(JOBS_PATH + "/{id}", self._jobs.cancel)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)

    async def start(self) -> str:
        """Begin to listen, and return the address. BadSettings where that is not possible."""
        settings = self._settings
        await self._runner.setup()
        assert self._runner.server is not None
        self._server = self._runner.server
        self._listener = GatewayListener(
            self._server,
            self._max_connections,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=settings.idle_timeout_s,
            lingering_time=_LINGER_S,
        )
        loop = asyncio.get_running_loop()
        try:
            self._asyncio_server = await loop.create_server(
                self._listener, settings.host, settings.port, backlog=_BACKLOG
            )
        except (OSError, UnicodeError) as error:  # the latter where the host cannot be a name
            with contextlib.suppress(ClarionError):  # an outbox keeps what it has
                await self._publisher.close(0.0)
            number = getattr(error, "errno", None) or 0
            why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
            raise BadSettings(f"cannot listen at {settings.host}:{settings.port}: {why}") from error
        self._watch = loop.create_task(self._watch_broker())
        host, port = self._asyncio_server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Take no more, answer who waits, and send what was accepted; TimedOut if that could not be done in time."""
        until_s = time.monotonic() + self._settings.stop_timeout_s
        self._stopping = True
        self._jobs.stop_waiting()
        self._watch.cancel()
        self._asyncio_server.close()
        self._listener.close_idle()
        try:
            await self._finish_requests(self._settings.stop_timeout_s)
            await self._publisher.close(max(0.0, until_s - time.monotonic()))
        except TimedOut:
            if self._settings.outbox is not None:
                raise  # and it says what is kept there
            raise TimedOut(
                f"{self._posts.waiting} messages were accepted and not confirmed by the broker at {self._settings.url}"
                f" within {self._settings.stop_timeout_s:g} s; those that it does not have are lost with this process"
            ) from None
        finally:
            self._posts.log_failures()
            await self._publisher.close(0.0)
            await self._jobs.close()
            await self._runner.cleanup()

    async def _finish_requests(self, timeout_s: float) -> None:
        """Answer every request that was begun: as soon as its messages are stored, or when the time is over."""
        if self._requests:
            waiter = asyncio.get_running_loop().create_task(self._quiet.wait())
            if not (await asyncio.wait([waiter], timeout=timeout_s))[0]:
                self._posts.abandon()
            waiter.cancel()
        await self._server.shutdown(_LAST_WORDS_S)

    @property
    def waiting(self) -> int:
        """Messages that were accepted and are not known to be stored."""
        return self._posts.waiting

    async def _post(self, request: web.Request) -> web.Response:
        topic, options = self._read_head(request)
        reservation = Reservation(self._posts.buffer)
        body = await self._bodies.read(request, reservation)
        taken = await self._posts.take(topic, options, body, reservation)
        return await self._tell(taken, options)

    def _read_head(self, request: web.Request) -> tuple[bytes, PostOptions]:
        """Read and check what can be known before the body has come."""
        if self._stopping:
            raise Refusal(503, "Stopping", "this gateway is stopping; nothing was queued", retry_after_s=1)
        check_origin(request.headers.items())
        url = request.rel_url
        topic = read_topic(url.raw_path, url.raw_query_string or url.raw_fragment)
        if not self._settings.allows(topic):
            raise Refusal(
                403, "Forbidden", f"this gateway does not take messages for {to_text(topic)}; nothing was queued"
            )
        options = read_options(request.headers.items())
        check_encoding(request.headers)
        self._bodies.check_size(request.content_length or 0)
        if not self._posts.knows(options.idempotency_key) and any(
            self._posts.buffer.lacks(1, request.content_length or 0)
        ):
            raise self._posts.full(1, request.content_length or 0)
        return topic, options

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Let a client that asks first send its body only where it would be taken."""
        if request.version < HttpVersion11:
            return None  # it knows no such thing, and would take a 100 for the answer
        try:
            if request.headers.get("Expect", "").lower() != "100-continue":
                raise Refusal(417, "ExpectationFailed", "the one expectation known here is 100-continue")
            (self._jobs.read_head if request.path.startswith(JOBS_PATH + "/") else self._read_head)(request)
        except Refusal as refusal:
            return self._counted(request, refused(refusal))
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself was not begun
        return None

    async def _tell(self, taken: TakenPost, options: PostOptions) -> web.Response:
        accepted = taken.accepted
        headers = {"Idempotent-Replayed": "true"} if taken.repeated else {}
        told: dict[str, Any] = {"topic": to_text(accepted.topic)}
        await self._posts.save(accepted)
        if options.respond_async and not accepted.ended:
            return json_answer(
                202, told | {"accepted": accepted.count}, headers | {"Preference-Applied": "respond-async"}
            )
        if not await self._posts.wait(accepted):
            raise self._posts.late(accepted.topic, options)
        if accepted.refusal is not None:
            # Raised, it would hold this request, with its body, for as long as the key is known.
            return refused(accepted.refusal, headers)
        assert accepted.outcome is not None
        offsets = accepted.outcome.offsets
        if accepted.many:
            return json_answer(201, told | {"count": accepted.count, "offsets": offsets}, headers)
        offset = offsets[0][0] if offsets else None
        return json_answer(201, told | {"id": accepted.outcome.id, "offset": offset}, headers)

    async def _root(self, _request: web.Request) -> web.Response:
        return json_answer(200, _TOLD)

    async def _health(self, _request: web.Request) -> web.Response:
        told = {"broker": self._settings.url, "waiting": self._posts.waiting}
        why = self._trouble()
        if why is None:
            return json_answer(200, {"status": "ok"} | told)
        return json_answer(503, {"status": "unavailable", "message": why} | told, {"Retry-After": "1"})

    def _trouble(self) -> str | None:
        stats = self._publisher.stats
        if self._stopping:
            return "this gateway is stopping"
        if self._publisher.broken is not None:
            return f"the broker cannot be used: {self._publisher.broken}"
        if not stats["connected"]:
            return f"no broker answers at {self._settings.url}; messages are accepted until the buffer is full"
        refusal = stats.get("refusal")
        if refusal is None or isinstance(refusal, TopicFull | Busy):  # whoever posts to that topic is told
            return None
        return f"the broker takes nothing just now: {refusal}"

    async def _stats(self, _request: web.Request) -> web.Response:
        tuned = itertools.islice(self._publisher.tuning.items(), _TUNED_MAX)
        answers = {str(status): count for status, count in sorted(self._answers.items())}
        told = {
            "broker": self._settings.url,
            "uptime_s": round(time.monotonic() - self._begin_s, 1),
            **self._posts.stats(),
            "refused_429": self._answers[429],
            "answers": answers,
            "waiting_for_jobs": self._jobs.waited_for,
            "connections": len(self._server.connections),
            "connections_turned_away": self._listener.turned_away,
            "publisher": self._publisher.stats,
            "tuning": {to_text(topic): sample._asdict() for topic, sample in tuned},
        }
        return json_answer(200, told)

    @web.middleware
    async def _answer_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._requests += 1
        try:
            answer = await handler(request)
        except Refusal as refusal:
            answer = refused(refusal)
        except web.HTTPException as error:
            path = request.rel_url.raw_path
            told = {
                "error": (error.reason or "Error").replace(" ", ""),
                "message": f"{request.method} {path} is nothing here; messages go by POST to {PATH}NAME,"
                f" jobs to {JOBS_PATH}/TYPE",
            }
            answer = json_answer(error.status, told, {"Allow": error.headers["Allow"]} if error.status == 405 else None)
        finally:
            self._requests -= 1
            if self._stopping and not self._requests:
                self._quiet.set()
        return self._counted(request, answer)

    def _counted(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        if self._stopping or not request.content.is_eof():
            answer.force_close()  # the rest of a body is no next request
        self._answers[answer.status] += 1
        return answer

    async def _watch_broker(self) -> None:
        """Log when the broker comes and goes, and what it refused."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._posts.log_failures()
            connected = bool(self._publisher.stats["connected"])
            if connected != self._connected:
                self._connected = connected
                facts = {"broker": self._settings.url, "waiting": self._posts.waiting}
                if connected:
                    log.info("connected to the broker", extra=facts)
                else:
                    log.warning("no broker answers; messages are accepted until the buffer is full", extra=facts)


async def serve(settings: GatewaySettings, on_ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then finish what was accepted; TimedOut where that could not be done.

    A second signal ends it at once. Returns how many messages were then left behind: 0 after a clean end.
    """
    signals: asyncio.Queue[None] = asyncio.Queue()
    stops = StopSignals()
    loop = asyncio.get_running_loop()

    def hear(number: int, _frame: FrameType | None) -> None:
        if not (stops.is_echo(number, time.monotonic()) or loop.is_closed()):  # closed: everything is done
            loop.call_soon_threadsafe(signals.put_nowait, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)  # the loop's own handlers would end with it, before the process does
    raise_descriptor_limit()
    gateway = Gateway(settings)
    on_ready(await gateway.start())
    await signals.get()
    log.info("stopping: taking no more, finishing what was accepted", extra={"waiting": gateway.waiting})
    stopping, hurry = loop.create_task(gateway.stop()), loop.create_task(signals.get())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        left = gateway.waiting
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        log.error("stopped at once; messages that were accepted are not confirmed", extra={"waiting": left})
        return left
    hurry.cancel()
    stopping.result()
    log.info("stopped; everything that was accepted is stored or was answered")
    return 0
