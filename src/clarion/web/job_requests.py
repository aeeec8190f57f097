"""Jobs by HTTP: POST /jobs/TYPE asks for one, GET /jobs/ID and /jobs/ID/result tell what became of it.

`Jobs` is for threads, so each of its calls runs in one of a few; how many requests wait for one of these is bounded by
the gateway's connections, and their bodies by its buffer. Connections to the broker are made with the first request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec
from aiohttp import web

from clarion.model.errors import ClarionError, PermanentError, RetryableError
from clarion.model.names import to_bytes
from clarion.web.gateway_buffer import Reservation
from clarion.web.gateway_settings import GatewaySettings
from clarion.web.post_queue import PostQueue
from clarion.web.post_requests import Refusal, bad, check_encoding, check_origin, status_of
from clarion.web.request_bodies import RequestBodies, json_answer
from clarion.workflow.job_messages import ENDED, STATUSES, check_job_id, jobs_topic
from clarion.workflow.jobs import JobCancelled, JobFailed, Jobs, JobStatus, NoJob, NoJobType

log = logging.getLogger("clarion.web")
JOBS_PATH = "/jobs"
_THREADS = 8
_WAIT_MOST_S = 300.0
_LIST_MOST = 1000
_LOOK_LEAST_S, _LOOK_MOST_S = 0.002, 0.25  # between looks whether jobs are over
_LOOK_AT = 500  # jobs at one time
_WORKFLOWS_KNOWN = 100
_NAME_MOST = 200
_LAST_S = 1.0  # that each connection has to close
_RESULT = "/result"
_JSON = "application/json"
_KINDS: tuple[tuple[type[ClarionError], int], ...] = (
    (NoJob, 404),
    (NoJobType, 404),
    (JobFailed, 409),
    (JobCancelled, 410),
)
T = TypeVar("T")


class JobRequests:
    """Answers requests about jobs; made and used on a gateway's event loop."""

    def __init__(self, settings: GatewaySettings, posts: PostQueue, bodies: RequestBodies) -> None:
        self._settings = settings
        self._posts = posts
        self._bodies = bodies
        self._jobs: dict[str, Jobs] = {}  # by workflow, all over the same connections
        self._threads = asyncio.Semaphore(_THREADS)
        self._waiting: dict[str, set[asyncio.Event]] = {}  # who waits for the end of a job
        self._looking: asyncio.Task[None] | None = None
        self._came_s = 0.0  # when the last of them came
        self._came = asyncio.Event()
        self._stopping = False

    @property
    def waited_for(self) -> int:
        """How many requests wait for the end of a job."""
        return sum(len(waiting) for waiting in self._waiting.values())

    # Requests.

    def read_head(self, request: web.Request) -> tuple[str, str, str | None]:
        """Read and check what can be known before the body has come: job type, workflow, and the job's id if given."""
        workflow = self._workflow(self._query(request, "workflow"))
        check_encoding(request.headers)
        self._bodies.check_size(request.content_length or 0)
        keys = request.headers.getall("Idempotency-Key", [])
        if len(keys) > 1:
            raise bad("the header Idempotency-Key is there twice")
        return _name(request), workflow, _id(keys[0]) if keys else None

    async def submit(self, request: web.Request) -> web.Response:
        """Ask for a job; answer once that is durable."""
        job, workflow, job_id = self.read_head(request)
        reservation = Reservation(self._posts.buffer)
        body = await self._bodies.read(request, reservation)
        jobs = self._of(workflow)

        def ask() -> tuple[str, bool]:
            return _submit(jobs, job, _value(request, body), job_id)

        found, repeated = await self._call(ask, _fate(job_id), reservation)
        told = {"job_id": found, "job": job, "workflow": workflow}
        headers = {"Idempotent-Replayed": "true"} if repeated else {}
        return json_answer(201, told, headers | {"Location": f"{JOBS_PATH}/{quote(found, safe='')}"})

    async def status(self, request: web.Request) -> web.Response:
        """Tell what is known of a job, with the attempts at its tasks."""
        found = await self._status(_id(_name(request)), self._query(request, "workflow"), history=True)
        return json_answer(200, found.told())

    async def result(self, request: web.Request) -> web.StreamResponse:
        """Return a job's result, or say why there is none."""
        query = self._query(request, "wait", "workflow")
        wait_s = _number(query, "wait", 0.0, _WAIT_MOST_S)
        job_id = _id(_name(request, _RESULT))
        if wait_s:
            await self._wait(job_id, wait_s)
        found = await self._status(job_id, query, history=False)
        if found.status not in ENDED:
            raise Refusal(202, "NotOver", f"job {job_id} is {found.status}; ask again", retry_after_s=1)
        size = found.result_bytes or 0
        if size > self._bodies.largest_bytes:
            most = self._bodies.largest_bytes
            raise Refusal(
                507,
                "TooLarge",
                f"the result has {size} bytes, and this gateway passes on up to {most} (--body-bytes); it is there:"
                f" clarion jobs result {job_id}",
            )
        reservation, jobs = Reservation(self._posts.buffer), self._of(found.workflow)
        if not reservation.grow_to(0, size):
            raise self._posts.full(0, size)
        try:
            content_type, body = await self._call(lambda: _body_of(jobs.result(job_id)))
            answer = web.Response(body=body, content_type=content_type, headers={"Server": "clarion"})
            await answer.prepare(request)
            await answer.write_eof()  # so that the room is taken until the client has most of it
        finally:
            reservation.leave()
        return answer

    async def cancel(self, request: web.Request) -> web.Response:
        """Have no further task of a job begun."""
        found = await self._status(_id(_name(request)), self._query(request, "workflow"), history=False)
        if found.status == "waiting":
            raise Refusal(409, "NotBegun", "no invoker has taken this job up yet; cancel it then", retry_after_s=1)
        jobs = self._of(found.workflow)
        if found.status != "cancelled" and not await self._call(lambda: jobs.cancel(found.job_id)):
            again = await self._call(lambda: jobs.statuses([found.job_id])[0])
            if again is None or again.status != "cancelled":
                raise Refusal(409, "Over", f"job {found.job_id} is over already, and cannot be cancelled")
        return json_answer(200, {"job_id": found.job_id, "status": "cancelled"})

    async def list(self, request: web.Request) -> web.Response:
        """List the newest jobs of all workflows."""
        query = self._query(request, "limit", "status")
        limit = int(_number(query, "limit", 100, _LIST_MOST))
        status = query.get("status")
        if status not in (None, *STATUSES):
            raise bad(f"a status is {', '.join(STATUSES)}, not {status}")
        jobs = self._of("")
        found = await self._call(lambda: jobs.list(max(1, limit), status=status))
        told = [one.told(history=False) for one in found if self._allows(one.workflow)]
        return json_answer(200, {"jobs": told})

    # What they share.

    def _query(self, request: web.Request, *names: str) -> dict[str, str]:
        """Return the parameters; refuse those that mean nothing, and requests that may not come."""
        if self._stopping:
            raise Refusal(503, "Stopping", "this gateway is stopping; ask again", retry_after_s=1)
        check_origin(request.headers.items())
        query = request.rel_url.query
        for name in query:
            if name not in names:
                raise bad(f"there is no parameter {name} here; there are {', '.join(names)}")
            if len(query.getall(name)) > 1:
                raise bad(f"the parameter {name} is there twice")
        return dict(query)

    def _workflow(self, query: dict[str, str]) -> str:
        workflow = _checked(query.get("workflow", ""))
        if not self._allows(workflow):
            raise _forbidden()
        return workflow

    def _allows(self, workflow: str) -> bool:
        return self._settings.allows_jobs(to_bytes(jobs_topic(workflow)))

    async def _status(self, job_id: str, query: dict[str, str], *, history: bool) -> JobStatus:
        """Return what is known of a job; `query` says of which workflow, which matters until it is taken up."""
        jobs = self._of(self._workflow(query))
        found = await self._call(lambda: jobs.status(job_id, history=history))
        if not self._allows(found.workflow):
            raise _forbidden()
        return found

    def _of(self, workflow: str) -> Jobs:
        """Return the jobs of a workflow; the first time, connections are made."""
        if "" not in self._jobs:
            self._jobs[""] = Jobs(self._settings.url)
        if workflow not in self._jobs:
            if len(self._jobs) > _WORKFLOWS_KNOWN:
                self._jobs = {"": self._jobs[""]}
            self._jobs[workflow] = self._jobs[""].of_workflow(workflow)
        return self._jobs[workflow]

    async def _call(self, call: Callable[[], T], fate: str = "ask again", room: Reservation | None = None) -> T:
        """Return what a call returns, which runs in a thread; a Refusal where it fails, or not in time. What it holds
        of the buffer is given back when it ends, even if that is later."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.timeout_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._threads.acquire()
        except BaseException as error:
            if room is not None:
                room.leave()
            if isinstance(error, TimeoutError):
                raise self._late("nothing was done; ask again") from None
            raise

        def end() -> None:
            self._threads.release()
            if room is not None:
                room.leave()

        future = _in_thread(call, end)
        await asyncio.wait([future], timeout=until_s - loop.time())
        if not future.done():
            future.cancel()  # nobody will ask what became of it
            raise self._late(fate)
        try:
            return future.result()
        except ClarionError as error:
            raise _refusal_of(error, fate) from error

    def _late(self, fate: str) -> Refusal:
        why = f"the broker at {self._settings.url} did not answer within {self._settings.timeout_s:g} s"
        return Refusal(503, "TimedOut", f"{why}; {fate}", retry_after_s=1)

    async def _wait(self, job_id: str, wait_s: float) -> None:
        """Wait until a job is over, for so long at most; one look tells of all that are waited for."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._waiting.setdefault(job_id, set()).add(over)
        self._came_s = loop.time()
        self._came.set()
        if self._looking is None:
            self._looking = loop.create_task(self._look())
        try:
            async with asyncio.timeout(wait_s):
                await over.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[job_id].discard(over)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def _look(self) -> None:
        """Look again and again which jobs are over, for as long as somebody waits for one. Who came last is told after
        a tenth more than it took, at most."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            self._came.clear()
            ids = [*self._waiting]
            for start in range(0, len(ids), _LOOK_AT):
                try:
                    await self._look_at(ids[start : start + _LOOK_AT])
                except Refusal:
                    pass  # whoever waits is told when the time is over
                except Exception:
                    log.exception("whether jobs are over cannot be told; looking again")
            pause_s = min(_LOOK_MOST_S, max(_LOOK_LEAST_S, (loop.time() - self._came_s) / 10))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._came.wait()
        self._looking = None

    async def _look_at(self, ids: Sequence[str]) -> None:
        for record in await self._call(partial(self._of("").ended, ids)):
            for over in self._waiting.get(record.job_id, ()):
                over.set()

    # Its end.

    def stop_waiting(self) -> None:
        """Answer who waits for a job, and take no more requests."""
        self._stopping = True
        for waiting in self._waiting.values():
            for over in waiting:
                over.set()

    async def close(self) -> None:
        """Let go of the connections, soon: whoever was told that a job is asked for was told when it was durable."""
        jobs, self._jobs = self._jobs.get(""), {}
        if jobs is None:
            return
        future = _in_thread(lambda: jobs.close(_LAST_S))
        await asyncio.wait([future], timeout=3 * _LAST_S)
        if not future.done():
            future.cancel()
        elif (error := future.exception()) is not None:
            log.warning("jobs of which nobody was told that they are asked for may not be: %s", error)


def _in_thread(call: Callable[[], T], end: Callable[[], None] = lambda: None) -> asyncio.Future[T]:
    """Begin a call in a thread that holds up no end of the process; `end` is called on the loop when it has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        end()
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 whoever waits for the future is told
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="clarion-job-request", daemon=True).start()
    return future


def _submit(jobs: Jobs, job: str, value: Any, job_id: str | None) -> tuple[str, bool]:
    """Ask for a job, and return its id; or, where there is one of this id, tell that it is the same."""
    known = None if job_id is None else jobs.statuses([job_id])[0]
    if known is None:
        return jobs.submit(job, value, job_id=job_id), False
    if (known.job, known.workflow) != (job, jobs.workflow):
        message = f"this Idempotency-Key is the id of a job of type {known.job}; use a new key for each"
        raise Refusal(422, "KeyReused", message)
    return known.job_id, True


def _value(request: web.Request, body: bytes) -> Any:
    """Return the input that a body is: JSON where the request says so, else bytes; none where there is nothing."""
    if not body and "Content-Type" not in request.headers:
        return None
    if request.content_type != _JSON and not request.content_type.endswith("+json"):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body is not the {_JSON} that its Content-Type says: {error}") from None


def _body_of(value: Any) -> tuple[str, bytes]:
    """Return a result's content type and bytes."""
    return ("application/octet-stream", value) if isinstance(value, bytes) else (_JSON, msgspec.json.encode(value))


def _name(request: web.Request, end: str = "") -> str:
    """Return the job type or id in a path as it was sent, with its percent signs."""
    raw = request.rel_url.raw_path.removeprefix(f"{JOBS_PATH}/").removesuffix(end)
    try:
        name = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise bad("the path is not UTF-8") from None
    if not name:
        raise bad(f"name a job type, as POST {JOBS_PATH}/TYPE")
    return _checked(name)


def _checked(name: str) -> str:
    if len(name) > _NAME_MOST or not name.isprintable():
        raise bad(f"a name is up to {_NAME_MOST} printable characters, not {name[:_NAME_MOST]!r}")
    return name


def _id(text: str) -> str:
    try:
        return check_job_id(text)
    except PermanentError as error:
        raise bad(str(error)) from None


def _number(query: dict[str, str], name: str, default: float, most: float) -> float:
    text = query.get(name)
    try:
        found = default if text is None else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise bad(f"{name} is a number from 0 to {most:g}, not {text}")
    return found


def _fate(job_id: str | None) -> str:
    if job_id is None:
        return "whether the job is asked for is not known: with an Idempotency-Key, which is its id, ask again safely"
    return "ask again with the same Idempotency-Key: it is the same job"


def _forbidden() -> Refusal:
    return Refusal(403, "Forbidden", "this gateway takes no requests for jobs of this workflow")


def _refusal_of(error: ClarionError, fate: str) -> Refusal:
    status = next((status for kind, status in _KINDS if isinstance(error, kind)), None)
    if status is None and isinstance(error, RetryableError):
        return Refusal(503, type(error).__name__, f"{error}; {fate}", retry_after_s=1)
    return Refusal(status_of(error) if status is None else status, type(error).__name__, str(error))
