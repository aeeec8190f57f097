"""A client that commits steps of jobs: it holds what a broker knows of them, and settles transactions to their end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from clarion.admin import Admin
from clarion.model.errors import ClarionError, InvalidRequest, MessagesGone, NoTopic, PermanentError, RetryableError
from clarion.model.names import to_text
from clarion.model.task_events import TASK_EVENTS_TOPIC
from clarion.publisher import Publisher
from clarion.session.connection import broker_url
from clarion.subscriber import Message, State, Subscriber
from clarion.workflow.job_messages import CANCELLED_TOPIC, TaskHeader, cancelled_mark
from clarion.workflow.job_steps import Step
from clarion.workflow.mapping_table import MappingTable, job_type_name, table_name
from clarion.workflow.stored_data import StoredData

log = logging.getLogger("clarion.workflow")
_SETTLE_S = 30.0
_FRESH_S = 1.0  # for which what a broker said of the end of events is good
_CANCELLED_KEPT = 100_000  # ids of cancelled jobs that are remembered


class StepClient:
    """A subscriber for taking and committing, an administrator for looking, and a publisher for data."""

    def __init__(self, url: str | None, name: str, *, patience_s: float | None = None) -> None:
        self.url = broker_url(url)
        self._name = name
        self._patience_s = patience_s  # with a transaction that is not answered; None: for ever
        self.subscriber = self._subscriber()
        self.admin = Admin(self.url)
        self._publisher: Publisher | None = None  # made when it is first needed
        self._making = threading.Lock()
        self._tables: dict[str, MappingTable] = {}
        self._events_end = 0
        self._events_at_s = -_FRESH_S
        self._cancelled: dict[str, None] = {}
        self._cancelled_at: int | None = None  # where to go on reading who was cancelled

    def _subscriber(self) -> Subscriber:
        return Subscriber(self.url, self._name, ack="explicit", prefetch=False)

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Where what is done within fails, let go of all that is held: it comes again, here or elsewhere. Otherwise it
        would be kept for as long as this client lives, with nobody to work on it."""
        try:
            yield
        except ClarionError:
            before, self.subscriber = self.subscriber, self._subscriber()
            try:
                before.close(ack=False)
            except ClarionError as error:
                log.info("while letting go: %s", error)
            raise

    @property
    def publisher(self) -> Publisher:
        """Return a publisher."""
        with self._making:
            if self._publisher is None:
                self._publisher = Publisher(self.url)
            return self._publisher

    @property
    def data(self) -> StoredData:
        """Return where data is stored."""
        return StoredData(self)

    def table(self, name: str) -> MappingTable:
        """Return a mapping table; PermanentError where the broker has none of this name."""
        found = self._tables.get(name)
        if found is None:
            state = self.subscriber.state(table_name(name))
            if state.value is None:
                raise PermanentError(f"the broker has no mapping table {name}: was its state removed?")
            found = self._tables[name] = MappingTable.decode(state.value)
        return found

    def table_of(self, workflow: str, job: str) -> MappingTable | None:
        """Return the table that jobs of a type go by now; None where there is no such type."""
        known = self.subscriber.state(job_type_name(workflow, job))
        return None if known.value is None else self.table(to_text(known.value))

    def events_end(self) -> int:
        """Return where the task events ended a moment ago: what happens now is told behind it."""
        now_s = time.monotonic()
        if now_s >= self._events_at_s + _FRESH_S:
            try:
                self._events_end = self.admin.describe_topic(TASK_EVENTS_TOPIC).next_offset
            except NoTopic:
                self._events_end = 0
            self._events_at_s = now_s
        return self._events_end

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """Return states by name."""
        return dict(zip(names, self.subscriber.states(names), strict=True)) if names else {}

    def commit(self, messages: Iterable[Message], steps: Iterable[Step]) -> None:
        """Ack messages and make steps happen, all or nothing; raises where nothing of it was done for good."""
        tx = self.subscriber.transaction()
        try:
            with tx:
                for message in messages:
                    tx.ack(message)
                for step in steps:
                    for put in step.puts:
                        tx.put(put.topic, put.payload, put.key, put.headers)
                    for one in step.sets:
                        tx.set(one.name, one.value, expect=one.expect)
            return
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"this cannot be asked of a broker, and nothing was done: {error}") from error
        except RetryableError as error:
            if not tx.sent:
                raise  # nothing of it was done, and there is nothing to wait for
            log.warning("a transaction is not answered yet, and is waited for: %s", error)
        until_s = inf if self._patience_s is None else time.monotonic() + self._patience_s
        while True:
            try:
                tx.result(min(_SETTLE_S, max(0.0, until_s - time.monotonic())))
                return
            except RetryableError as error:
                if time.monotonic() >= until_s:
                    raise
                log.warning("a transaction is still waited for: %s", error)

    def look_for_cancelled(self) -> None:
        """Read which jobs were cancelled since the last look."""
        if self._cancelled_at is None:
            self._cancelled_at = self.admin.describe_topic(CANCELLED_TOPIC).first_offset
        try:
            for message in self.admin.browse(CANCELLED_TOPIC, self._cancelled_at):
                self._cancelled_at = message.offset + 1
                self._cancelled[message.payload.decode(errors="replace")] = None
        except MessagesGone as gap:  # those are older than any job that is kept
            self._cancelled_at = gap.stop
        except InvalidRequest:  # the topic was made anew
            self._cancelled_at = None
        while len(self._cancelled) > _CANCELLED_KEPT:
            del self._cancelled[next(iter(self._cancelled))]

    def is_cancelled(self, header: TaskHeader) -> bool:
        """Tell whether a task's job was cancelled, as far as the last look told."""
        return cancelled_mark(header.job_id, header.submitted_at_us) in self._cancelled

    def close(self, timeout_s: float | None = None) -> None:
        """Let go; what is held goes to others. Waits for the broker as its clients do, or for `timeout_s` each."""
        try:
            self.subscriber.close(ack=False, timeout_s=timeout_s)
        finally:
            try:
                if self._publisher is not None:
                    self._publisher.close(30.0 if timeout_s is None else timeout_s)
            finally:
                self.admin.close()
