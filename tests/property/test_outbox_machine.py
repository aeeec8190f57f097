"""Every step of an outbox on its own, in any order, with a death between any two: Hypothesis chooses."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.property.lossy_network import SubscriberClient
from tests.property.test_lossy_network import TOPIC, make_world, subscribe
from tests.property.test_outbox_promises import OTHER, OutboxClient, check, finish

from clarion.model.errors import OutboxFull
from clarion.model.ids import RECEIPTS_KEPT
from clarion.publisher.outbox.ledger_topics import Plan
from clarion.publisher.outbox.outbox_file import look


class OutboxMachine(RuleBasedStateMachine):
    """A publisher with an outbox, a real engine behind a network that breaks, and a reader that comes at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world = make_world(1)
        self.world.faults = False
        for topic in (TOPIC, OTHER):
            subscribe(self.world, topic, b"reader")
        self.publisher = OutboxClient(self.world, Path(self._folder.name) / "outbox")
        self.forgotten = False

    @rule(count=st.integers(1, 4), topic=st.sampled_from([TOPIC, OTHER]))
    def put(self, count: int, topic: bytes) -> None:
        for _ in range(count):
            self.publisher.add(topic)

    @rule()
    def publisher_talks(self) -> None:
        self.publisher.session_turn()
        self.publisher.listen()

    @rule()
    def publisher_sends(self) -> None:
        self.publisher.core_turn()

    @precondition(lambda self: self.publisher.job is None)
    @rule()
    def disk_begins(self) -> None:
        self.publisher.job = self.publisher.next_job()

    @precondition(lambda self: self.publisher.job is not None)
    @rule()
    def disk_ends(self) -> None:
        job, self.publisher.job = self.publisher.job, None
        self.publisher.job_done(job, self.publisher._do(job))
        self.publisher.listen()

    @precondition(lambda self: isinstance(self.publisher.job, Plan))
    @rule()
    def disk_is_full(self) -> None:
        job, self.publisher.job = self.publisher.job, None
        self.publisher.job_done(job, OutboxFull("no room"))

    @rule(committed=st.booleans(), arrives=st.booleans())
    def publisher_dies(self, committed: bool, arrives: bool) -> None:
        publisher = self.publisher
        if committed and isinstance(publisher.job, Plan):
            publisher._do(publisher.job)
        publisher.job = None
        publisher.under_way.clear()
        publisher.file.close()
        if not arrives:
            self.world.wires.pop(publisher.wire, None)
        publisher.reconnect_as_new()

    @rule(arrives=st.booleans())
    def connection_breaks(self, arrives: bool) -> None:
        if not arrives:
            self.world.wires.pop(self.publisher.wire, None)
        self.publisher.reconnect()

    @rule(turns=st.integers(1, 5))
    def broker_works(self, turns: int) -> None:
        for _ in range(turns):
            self.world.turn()

    @rule()
    def broker_dies(self) -> None:
        self.world._crash()

    @precondition(lambda self: self.world.group is None)
    @rule()
    def broker_forgets(self) -> None:
        self.forgotten = True
        for known in list(self.world.store._publishers):
            self.world.engine._puts.drop_publisher(known)

    @rule(seconds=st.sampled_from([0.3, 6.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds

    @invariant()
    def no_more_is_numbered_than_the_broker_remembers(self) -> None:
        for topic in self.publisher.file.read().topics:
            assert topic.row.numbered <= min(topic.rows, RECEIPTS_KEPT)

    @invariant()
    def nothing_is_under_way_that_is_not_numbered_on_disk(self) -> None:
        on_disk = {topic.row.topic: topic.row for topic in self.publisher.file.read().topics}
        for queue in self.publisher.core.queues.values():
            for number in queue.flying:
                row = on_disk[queue.topic]
                assert row.first_number <= number < row.first_number + row.numbered

    def teardown(self) -> None:
        readers = {topic: SubscriberClient(self.world, topic, b"reader", b"only consumer") for topic in (TOPIC, OTHER)}
        publisher = self.publisher
        finish(self.world, publisher, list(readers.values()))
        publisher.file.close()
        contents = look(publisher.path)
        assert contents.waiting == []
        aside = Counter({b"": sum(row.messages for row in contents.quarantined)})
        if not self.forgotten:
            assert not +aside
        check(publisher, readers, in_doubt=+aside)
        self._folder.cleanup()


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
