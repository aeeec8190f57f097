"""The control plane's hands: makes a workflow known to a broker, begins jobs, notes which failed, forgets old ones."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Sequence

import msgspec

from clarion.admin import Admin
from clarion.admin.admin import read_dead_letter
from clarion.model.errors import (
    AlreadyDone,
    ClarionError,
    LeaseLost,
    MessagesGone,
    NoTopic,
    PermanentError,
    TakenOver,
    VersionConflict,
)
from clarion.model.names import dead_letters_of, shell_name, to_bytes, to_text
from clarion.model.task_events import TASK_EVENTS_TOPIC
from clarion.subscriber import Message, State
from clarion.workflow.definition import Workflow
from clarion.workflow.job_messages import (
    CANCELLED_TOPIC,
    DATA_TOPIC,
    ENDED,
    INVOKER,
    KEPT_S,
    WORKERS,
    JobProfile,
    JobRecord,
    Value,
    decode_profile,
    jobs_topic,
    join_name,
    read_record,
    read_task_headers,
    record_name,
)
from clarion.workflow.job_steps import SetState, Step, begin_job, end_job
from clarion.workflow.mapping_table import MappingTable, job_type_name, table_name
from clarion.workflow.step_client import StepClient

log = logging.getLogger("clarion.workflow.invoker")
SWEEPER = "sweeper"  # the subscription that holds job profiles until their jobs are forgotten
MOST_KEPT = 100_000  # jobs whose records are kept, of each workflow
_AT_ONCE = 300
_WAIT_S = 0.5
_SWEEP_S = 10.0
_AFTER_ANOTHER_S = 10.0  # for which another control plane of the workflow has its turn
_SKIPPED_MOST = 10_000
_SETS_MOST = 1000  # of a transaction
_NO_STATE = State(None, 0)


def make_known(workflow: Workflow, url: str | None) -> dict[str, MappingTable]:
    """Make topics, subscriptions and mapping tables at the broker; return the table of each job type. Done again, it
    changes what changed."""
    workflow.check()
    tables = {name: MappingTable.of(workflow, job) for name, job in workflow.jobs.items()}
    client = StepClient(url, INVOKER)
    try:
        for topic in (TASK_EVENTS_TOPIC, DATA_TOPIC, CANCELLED_TOPIC):
            _make_kept(client.admin, topic)
        client.admin.subscribe(jobs_topic(workflow.name), INVOKER, shared=True, max_attempts=0)
        client.admin.subscribe(jobs_topic(workflow.name), SWEEPER)
        for task in workflow.tasks.values():
            topic = workflow.topic_of(task.name)
            client.admin.subscribe(topic, WORKERS, shared=True, max_attempts=task.max_attempts, lease_s=task.lease_s)
            client.admin.subscribe(dead_letters_of(to_bytes(topic)), INVOKER)
        for job, table in tables.items():
            now = SetState(job_type_name(workflow.name, job), table.name.encode())
            client.commit([], [Step([], [SetState(table_name(table.name), table.encode()), now])])
    finally:
        client.close()
    return tables


def _make_kept(admin: Admin, topic: str) -> None:
    try:
        admin.describe_topic(topic)
    except NoTopic:
        admin.configure_topic(topic, retention="keep", max_age_s=KEPT_S)


class Invoker:
    """Takes job profiles and begins their jobs, each id once. Any number of invokers may run."""

    def __init__(self, workflow: Workflow, url: str | None = None) -> None:
        self._workflow = workflow
        self._tables = make_known(workflow, url)
        self._client = StepClient(url, INVOKER)
        self._topic = jobs_topic(workflow.name)
        self.jobs_begun = 0

    def turn(self) -> float:
        """Begin the jobs that wait, or wait for some."""
        with self._client.letting_go():
            self._begin(self._client.subscriber.get(self._topic, max_messages=_AT_ONCE, wait_s=_WAIT_S))
        return 0.0

    def _begin(self, messages: Sequence[Message]) -> None:
        """Begin jobs together; where that is refused, in halves, so that one does not hold up the others."""
        if not messages:
            return
        try:
            steps = [self._step(message) for message in messages]
            self._client.commit(messages, _once_each(steps))
            self.jobs_begun += len(messages)
            return
        except VersionConflict:
            if len(messages) == 1:
                log.info("job %s was asked for before, and is not begun again", to_text(messages[0].key or b""))
                self._client.commit(messages, [])
                return
        except (LeaseLost, AlreadyDone) as error:
            if len(messages) == 1:
                log.info("another invoker begins this job: %s", error)
                return
        except PermanentError as error:
            if len(messages) == 1:
                log.error("a job cannot be begun, and is tried again: %s", error)
                messages[0].nack(5.0, str(error))
                return
        middle = len(messages) // 2
        self._begin(messages[:middle])
        self._begin(messages[middle:])

    def _step(self, message: Message) -> Step:
        try:
            profile = decode_profile(message.headers)
        except PermanentError as error:
            log.error("offset %d of %s is left out: %s", message.offset, self._topic, error)
            return Step([], [])
        if profile.begun:
            return Step([], [])
        table = self._tables.get(profile.job) or self._client.table_of(self._workflow.name, profile.job)
        if table is None:
            return _refuse(profile, self._workflow.name, self._client.events_end())
        return begin_job(profile, Value(profile.kind, message.payload), table, self._client.events_end())

    def close(self) -> None:
        """Let go; profiles that are held go to others."""
        self._client.close()


def _once_each(steps: Sequence[Step]) -> list[Step]:
    """Return steps without those that would set a state which an earlier one sets: the same job, asked for twice."""
    seen: set[str] = set()
    found = []
    for step in steps:
        names = {one.name for one in step.sets}
        if not names & seen:
            found.append(step)
            seen |= names
    return found


def _refuse(profile: JobProfile, workflow: str, events_from: int) -> Step:
    """Return the step that ends a job before it begins, as there is no such job type."""
    record = JobRecord(
        job_id=profile.job_id, job=profile.job, workflow=workflow, table="", events_from=events_from,
        submitted_at_us=profile.submitted_at_us, status="failed",
        ended_at_us=max(profile.submitted_at_us, time.time_ns() // 1000), reason=f"there is no job type {profile.job}",
    )  # fmt: skip
    return end_job(record, 0)


class FailureWatch:
    """Reads the dead letters of a workflow's tasks, and notes in the records of their jobs that they failed."""

    def __init__(self, workflow: Workflow, url: str | None = None) -> None:
        self._client = StepClient(url, INVOKER)
        self._tasks = {dead_letters_of(to_bytes(workflow.topic_of(name))): name for name in workflow.tasks}

    def turn(self) -> float:
        """Note what failed since the last time."""
        try:
            with self._client.letting_go():
                for topic, task in self._tasks.items():
                    for message in self._client.subscriber.get(topic, max_messages=_AT_ONCE):
                        self._note(message, task)
        except TakenOver:
            return _AFTER_ANOTHER_S
        return _WAIT_S

    def _note(self, message: Message, task: str) -> None:
        letter = read_dead_letter(message)
        while True:
            steps: list[Step] = []
            try:
                if letter.subscription != WORKERS.encode():
                    raise PermanentError(f"{to_text(letter.subscription)} gave it up, which is not of the workflow")
                _, header = read_task_headers(letter.headers)
                state = self._client.subscriber.state(record_name(header.job_id))
                record = read_record(state.value)
                of_this = record is not None and record.submitted_at_us == header.submitted_at_us
                if record is not None and of_this and record.status in ("running", "failed"):
                    failed = msgspec.structs.replace(
                        record, status="failed", task=task, reason=letter.reason, letter=letter.offset,
                        ended_at_us=max(record.submitted_at_us, int(letter.at.timestamp() * 1e6)),
                    )  # fmt: skip
                    steps = [end_job(failed, state.version)]
                    log.error(
                        "job %s failed: task %s had its last attempt. `clarion jobs status %s` says why, and `clarion"
                        " dead replay %s` has it tried again",
                        header.job_id, task, shlex.quote(header.job_id), shell_name(letter.topic),
                    )  # fmt: skip
            except PermanentError as error:
                log.error("a dead letter of %s is of no job: %s", to_text(letter.topic), error)
            try:
                self._client.commit([message], steps)
                return
            except VersionConflict:
                continue

    def close(self) -> None:
        """Let go."""
        self._client.close()


def _record_of(message: Message) -> str | None:
    """Return the name of the record of the job that a message asks for; None where it asks for none."""
    try:
        return record_name(decode_profile(message.headers).job_id)
    except PermanentError:
        return None


class Sweeper:
    """Forgets jobs that ended long ago, or that are too many: their records, and what never came together."""

    def __init__(self, workflow: Workflow, url: str | None, kept_s: float = KEPT_S, most: int = MOST_KEPT) -> None:
        self._client = StepClient(url, SWEEPER)
        self._topic = jobs_topic(workflow.name)
        self._kept_s = kept_s
        self._most = most
        self._waiting: list[Message] = []  # profiles, oldest first, whose jobs may not be forgotten yet

    def turn(self) -> float:
        """Forget what may be forgotten now."""
        try:
            with self._client.letting_go():
                return self._sweep()
        except ClarionError as error:
            self._waiting = []
            if isinstance(error, TakenOver):
                return _AFTER_ANOTHER_S
            raise

    def _sweep(self) -> float:
        known = self._client.admin.describe_topic(self._topic)
        begun = next(one.cursor for one in known.subscriptions if one.name == INVOKER.encode())
        old_s = self._last_event_s() - self._kept_s

        def is_due(message: Message) -> bool:
            old = message.committed_at.timestamp() < old_s or known.next_offset - message.offset > self._most
            return old and message.offset < begun

        room = _SKIPPED_MOST - len(self._waiting)
        if room > 0 and (not self._waiting or is_due(self._waiting[-1])):
            self._waiting += self._client.subscriber.get(self._topic, max_messages=min(room, _AT_ONCE))
        due = [message for message in self._waiting if is_due(message)]
        gone: set[int] = set()
        for place in range(0, len(due), _AT_ONCE):
            gone |= self._forget(due[place : place + _AT_ONCE])
        self._waiting = [message for message in self._waiting if message.offset not in gone]
        return 0.0 if gone else _SWEEP_S

    def _last_event_s(self) -> float:
        """Return when anything was last told of any job, by the broker's clock, which does not believe in jumps as that
        of this machine does; 0 where that is too long ago to be kept, and then nothing is old."""
        end = self._client.admin.describe_topic(TASK_EVENTS_TOPIC).next_offset
        try:
            found = self._client.admin.read(TASK_EVENTS_TOPIC, max(0, end - 1), max_messages=1)
        except MessagesGone:
            found = []
        return found[-1].committed_at.timestamp() if found else 0.0

    def _forget(self, messages: Sequence[Message]) -> set[int]:
        """Forget those of the jobs that are over, and return where their profiles are."""
        states = self._client.states([name for message in messages if (name := _record_of(message))])
        gone: list[tuple[Message, Step]] = []
        for message in messages:
            state = states.get(_record_of(message) or "", _NO_STATE)
            forgotten = SetState(_record_of(message) or "", None, state.version)
            try:
                record = read_record(state.value)
            except PermanentError as error:
                log.error("the record of offset %d of %s is removed: %s", message.offset, self._topic, error)
                gone.append((message, Step([], [forgotten])))
                continue
            if record is None:
                gone.append((message, Step([], [])))  # it is no profile, or was asked for twice and is forgotten
            elif record.status in ENDED:
                gone.append((message, Step([], [forgotten, *self._joins(record)])))
        self._commit(gone)
        return {message.offset for message, _ in gone}

    def _commit(self, gone: Sequence[tuple[Message, Step]]) -> None:
        """Forget jobs together; in halves where these are more states than a transaction may set."""
        steps = _once_each([step for _, step in gone])
        if len(gone) > 1 and sum(len(step.sets) for step in steps) > _SETS_MOST:
            self._commit(gone[: len(gone) // 2])
            self._commit(gone[len(gone) // 2 :])
        elif gone:
            self._client.commit([message for message, _ in gone], steps)

    def _joins(self, record: JobRecord) -> list[SetState]:
        if record.status == "done" or not record.table:
            return []
        names = [join_name(record.job_id, task) for task in self._client.table(record.table).joins()]
        return [
            SetState(name, None, state.version)
            for name, state in self._client.states(names).items()
            if state.value is not None
        ]

    def close(self) -> None:
        """Let go."""
        self._client.close()
