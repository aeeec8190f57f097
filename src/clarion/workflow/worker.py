"""A consumer of one task: takes, runs the handler, and commits what is done, several small tasks in one transaction.

Each task is acked in the transaction that puts what follows it. A worker that dies before leaves the task to another;
one that dies after has done it. So handlers may run more than once, and what they write to Clarion happens once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clarion.model.errors import (
    AlreadyDone,
    ClarionError,
    LeaseLost,
    NoTopic,
    PermanentError,
    RetryableError,
    VersionConflict,
)
from clarion.model.names import to_bytes
from clarion.model.task_events import TaskDone
from clarion.subscriber import Message
from clarion.workflow import handlers
from clarion.workflow.definition import Task, Workflow
from clarion.workflow.handlers import as_call, find_handler
from clarion.workflow.job_messages import (
    WORKERS,
    TaskHeader,
    Value,
    decode_parts,
    pack,
    read_task_headers,
    unpack,
)
from clarion.workflow.job_steps import DoneTask, Put, Step, event_put, inline_bytes, next_step, states_needed
from clarion.workflow.step_client import StepClient
from clarion.workflow.stored_data import Reference

log = logging.getLogger("clarion.workflow.worker")
GOAL_S = 0.02  # of work that is taken, and committed, together
MOST_TASKS = 500  # that are: a transaction has up to 1000 parts
_WAIT_S = 0.5  # for tasks, before looking whether to stop
_LOOK_S = 1.0  # between looks for jobs that were cancelled
_RETRY_MOST_S = 60.0
_FINISH_S = 5.0  # in which a worker that is told to stop works off what it holds, and then gives the rest back
_HANG_S = 5.0  # after the time limit, before a handler that cannot be interrupted ends its process
_REASON_MOST = 8000  # characters of a trace
_SHOWN_MOST = 500  # characters of an error, in the log
_TRIES = 3  # at a group whose states others change, before it is split


class TakeSize:
    """How many tasks to take at a time: as many as are done in `GOAL_S`; one, where one takes as long."""

    def __init__(self) -> None:
        self._size = 1
        self._each_s = GOAL_S

    def next(self) -> int:
        """Return how many to take now."""
        return self._size

    def note(self, tasks: int, spent_s: float) -> None:
        """Learn how long tasks took; the size doubles at most."""
        each_s = max(spent_s / tasks, 1e-7)
        self._each_s = max(each_s, (self._each_s + each_s) / 2)  # slower at once, quicker by and by
        self._size = max(1, min(2 * self._size, int(GOAL_S / self._each_s), MOST_TASKS))


class Context:
    """What a handler may know and use of the task that it works on."""

    def __init__(self, worker: Worker, message: Message, job: str, header: TaskHeader) -> None:
        self._worker = worker
        self._message = message
        self._header = header
        self.job = job  # type
        self.job_id = header.job_id
        self.task = worker.task.name
        self.attempt = message.attempt
        self.puts: list[Put] = []

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger that says which job and task it speaks of."""
        return _JobLog(log, {"job_id": self.job_id, "task": self.task, "attempt": self.attempt})

    @property
    def cancelled(self) -> bool:
        """Tell whether the job was cancelled meanwhile: what the handler does is for nothing then."""
        self._worker.look_for_cancelled()
        return self._worker.client.is_cancelled(self._header)

    def heartbeat(self) -> None:
        """Make sure that the task is still this worker's; LeaseLost where it is not. A worker keeps its tasks by
        itself for as long as it lives: this is for handlers that let nothing else run."""
        self._message.extend()

    def put(
        self,
        topic: str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> None:
        """Have a message put, once, when the task is done: it is part of the same transaction."""
        self.puts.append(Put(topic, to_bytes(payload, "payload"), key, headers))

    def store(self, data: bytes | str) -> Reference:
        """Store data once; the reference can be returned, alone or inside of other values, and loaded elsewhere."""
        return self._worker.client.data.store(data)

    def load(self, reference: str) -> bytes:
        """Return the data that a reference means."""
        return self._worker.client.data.load(reference)


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        known: Mapping[str, object] = self.extra or {}
        return f"[{known['task']} of {known['job_id']}, attempt {known['attempt']}] {msg}", kwargs


class _Finished(NamedTuple):
    """A task that was taken, and what is to become of it."""

    message: Message
    done: DoneTask | None = None  # None: nothing follows
    failed: TaskDone | None = None
    reason: str = ""


class Worker:
    """One consumer of one task. `run` works until `stop` is called, from a signal handler or another thread."""

    def __init__(self, workflow: Workflow, task: str, url: str | None = None) -> None:
        if task not in workflow.tasks:
            raise PermanentError(f"there is no task {task}; there are {', '.join(workflow.tasks)}")
        self.task: Task = workflow.tasks[task]
        self.topic = workflow.topic_of(task)
        self._call = as_call(find_handler(self.task), self.task.time_limit_s)
        self.consumer = f"{socket.gethostname()}-{os.getpid()}"
        self.client = StepClient(url, WORKERS)
        self._size = TakeSize()
        self._stop_at_s: float | None = None
        self._looked_at_s = 0.0
        self.tasks_done = 0
        self.tasks_failed = 0

    def stop(self) -> None:
        """Have it finish what it holds, or give it back, and end."""
        if self._stop_at_s is None:
            self._stop_at_s = time.monotonic()

    def run(self) -> None:
        """Work until told to stop."""
        try:
            while self._stop_at_s is None:
                try:
                    self._take_and_work()
                except LeaseLost as error:
                    log.warning("%s", error)
                except RetryableError as error:
                    log.warning("%s; trying again", error)
                    time.sleep(_WAIT_S)
        finally:
            self.client.close()

    def _take_and_work(self) -> None:
        messages = self.client.subscriber.get(self.topic, max_messages=self._size.next(), wait_s=_WAIT_S)
        if messages:
            self.look_for_cancelled()
            self._work_off(messages)

    def look_for_cancelled(self) -> None:
        """Learn which jobs were cancelled, about once a second."""
        now_s = time.monotonic()
        if now_s >= self._looked_at_s + _LOOK_S:
            self._looked_at_s = now_s
            try:
                self.client.look_for_cancelled()
            except (NoTopic, RetryableError) as error:
                log.info("cancelled jobs cannot be read now: %s", error)

    def _work_off(self, messages: Sequence[Message]) -> None:
        finished: list[_Finished] = []
        begun_s = time.monotonic()
        for place, message in enumerate(messages):
            if self._is_over_time():
                for left in messages[place:]:
                    left.nack(reason="its worker was stopped before it began")
                break
            started_s = time.monotonic()
            finished.append(self._work_on(message))
            now_s = time.monotonic()
            self._size.note(1, now_s - started_s)
            if now_s - begun_s > GOAL_S:
                self._commit(finished)
                finished, begun_s = [], time.monotonic()
        self._commit(finished)

    def _is_over_time(self) -> bool:
        """Tell whether it was told to stop so long ago that it is to give back what it holds."""
        return self._stop_at_s is not None and time.monotonic() > self._stop_at_s + _FINISH_S

    def _work_on(self, message: Message) -> _Finished:
        started_at_us = time.time_ns() // 1000
        job, header, context = "", None, None
        try:
            job, header = read_task_headers(message.headers)
            if self.client.is_cancelled(header):
                return _Finished(message)
            table = self.client.table(header.table)
            context = Context(self, message, job, header)
            payload = self._unpacked(Value(header.kind, message.payload), table.before[self.task.name])
            value = self._call_watched(message, payload, context)
            packed = pack(value)
            packed = self.client.data.keep_small(packed, inline_bytes(table, self.task.name))
        except KeyboardInterrupt:
            raise  # somebody wants to stop
        except BaseException as error:  # noqa: BLE001 (a handler's sys.exit, too, is told, and the task tried again)
            reason = _trace_of(error)
            self._log_failure(message, header, error)
            failed = None if header is None else self._event(message, job, header.job_id, started_at_us, "failed")
            return _Finished(message, failed=failed, reason=reason)
        event = self._event(message, job, header.job_id, started_at_us, "done")
        return _Finished(message, DoneTask(self.task.name, header, table, packed, event, tuple(context.puts)))

    def _log_failure(self, message: Message, header: TaskHeader | None, error: BaseException) -> None:
        of, most = "?" if header is None else header.job_id, self.task.max_attempts
        last = message.attempt >= most
        then = "it becomes a dead letter" if last else f"again in {self._retry_after_s(message):g} s"
        why = " ".join("".join(traceback.format_exception_only(error)).split())[:_SHOWN_MOST]
        log.warning("[%s of %s, attempt %d of %d] %s; %s", self.task.name, of, message.attempt, most, why, then)

    def _unpacked(self, value: Value, before: Sequence[str]) -> Any:
        if value.kind != "joined":
            return unpack(self.client.data.whole(value))
        parts = decode_parts(value.payload)
        return {task: unpack(self.client.data.whole(Value(*parts[task]))) for task in before if task in parts}

    def _call_watched(self, message: Message, payload: Any, context: Context) -> Any:
        """Run the handler; where it hangs beyond its time limit, and cannot be interrupted, end the process."""
        if self.task.time_limit_s is None:
            return self._call(payload, context)
        watchdog = threading.Timer(self.task.time_limit_s + _HANG_S, self._give_up, (message,))
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._call(payload, context)
        finally:
            watchdog.cancel()

    def _give_up(self, message: Message) -> None:
        limit = f"the time limit of {self.task.time_limit_s:g} s is over, and the handler could not be interrupted"
        log.error("task %s: %s; this worker ends", self.task.name, limit)
        try:
            message.nack(self._retry_after_s(message), limit)
            self.client.subscriber.flush_acks(_HANG_S)
        except ClarionError as error:
            log.error("the task could not be given back, and comes again when its lease lapses: %s", error)
        os._exit(75)  # EX_TEMPFAIL: whoever started it starts another

    def _event(self, message: Message, job: str, job_id: str, started_at_us: int, outcome: Any) -> TaskDone:
        arrived_at_us = int(message.committed_at.timestamp() * 1e6)
        return TaskDone(
            task=self.topic, job=job, job_id=job_id, message=str(message.id), attempt=max(1, message.attempt),
            consumer=self.consumer, arrived_at_us=arrived_at_us, started_at_us=started_at_us,
            finished_at_us=max(started_at_us, time.time_ns() // 1000), outcome=outcome,
        )  # fmt: skip

    def _retry_after_s(self, message: Message) -> float:
        return min(_RETRY_MOST_S, self.task.retry_s * 2.0 ** min(30, max(0, message.attempt - 1)))

    # Committing.

    def _commit(self, finished: Sequence[_Finished]) -> None:
        failed = [one for one in finished if one.reason]
        ended = [one for one in finished if not one.reason]
        told = [Step([event_put(one.failed)], []) for one in failed if one.failed is not None]
        if told:
            self.client.commit([], told)
        self._commit_ended(ended)
        for one in failed:
            one.message.nack(self._retry_after_s(one.message), one.reason)
        self.tasks_failed += len(failed)

    def _commit_ended(self, ended: Sequence[_Finished]) -> None:
        """Commit tasks together; where that is refused, in halves, so that one does not hold up the others."""
        conflicts = 0
        while ended:
            try:
                self._commit_once(ended)
                self.tasks_done += len(ended)
                return
            except VersionConflict:  # others changed the same states; of those who do, one gets on each time
                conflicts += 1
                if conflicts < _TRIES or len(ended) == 1:
                    continue
            except RetryableError as error:  # what is done is not thrown away because the broker is away for a while
                if self._is_over_time():
                    raise
                log.warning("%s; what is done is kept, and committed later", error)
                time.sleep(_WAIT_S)
                continue
            except (LeaseLost, AlreadyDone) as error:
                if len(ended) == 1:
                    log.warning("a task of %s is another's by now: %s", self.task.name, error)
                    return
            except PermanentError as error:
                if len(ended) == 1:
                    reason = f"what follows the task cannot be done: {error}"
                    log.error("task %s: %s", self.task.name, reason)
                    ended[0].message.nack(self._retry_after_s(ended[0].message), reason)
                    return
            middle = len(ended) // 2
            self._commit_ended(ended[:middle])
            ended, conflicts = ended[middle:], 0

    def _commit_once(self, ended: Sequence[_Finished]) -> None:
        done = [one.done for one in ended if one.done is not None]
        states = self.client.states([name for one in done for name in states_needed(one)])
        self.client.commit([one.message for one in ended], [next_step(one, states) for one in done])


def _trace_of(error: BaseException) -> str:
    """Return what is told of an exception: its trace from the handler on, the end of it where that is long."""
    own = (__file__, handlers.__file__, os.path.join(os.path.dirname(asyncio.__file__), ""))
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(own):
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(error.with_traceback(frame or error.__traceback__)))
    return trace if len(trace) <= _REASON_MOST else f"…{trace[-_REASON_MOST:]}"
