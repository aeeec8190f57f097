"""A broker to be recorded: `python -m tests.integration.recorded_broker JSON`.

Its store has small files, so that little work fills many of them. It marks in the recording which changes it begins to
commit, and up to which of them it has told anybody. A bug can be planted in it.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from typing import Any

from tests.integration import broker_process, planted_bugs

from clarion.broker import Broker, BrokerSettings, committer
from clarion.broker.crashpoints import ENVIRONMENT as CRASH_AT
from clarion.broker.crashpoints import crash_points_from
from clarion.broker.engine import Engine, Group, Now
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore

MARKS, BUG = "RECORDED_MARKS", "RECORDED_BUG"
STORE_SETTINGS: dict[str, Any] = {"segment_bytes": 16 << 10, "checkpoint_bytes": 64 << 10, "page_bytes": 1024}


class MarkingStore(SegmentedStore):
    """Marks what it is asked to commit."""

    begun = 0

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        self.begun += 1
        mark("begun", _frozen(changes))
        super().commit(changes, index_later=index_later)


def mark(*what: Any) -> None:
    """Leave a mark in the recording."""
    os.write(_marks, pickle.dumps(what))


def _frozen(changes: Changes) -> Changes:
    """Return changes that can be pickled."""
    copied = Changes(**{name: getattr(changes, name) for name in Changes.__slots__})
    copied.batches = [batch._replace(data=bytes(batch.data)) for batch in changes.batches]
    copied.staged = [staged._replace(data=bytes(staged.data)) for staged in changes.staged]
    return copied


class RecordedBroker(Broker):
    """Serves from a marking store."""

    def __init__(self, settings: BrokerSettings) -> None:
        made = MarkingStore(settings.data, **STORE_SETTINGS, crash_points=crash_points_from(os.environ.get(CRASH_AT)))
        super().__init__(settings, store=made)
        whole = Engine.committed

        def committed(engine: Engine, group: Group, now: Now) -> None:
            mark("told", made.begun)
            whole(engine, group, now)

        setattr(Engine, "committed", committed)  # noqa: B010 mypy has it that methods are not set
        mark("opened")


if __name__ == "__main__":
    _marks = os.open(os.environ[MARKS], os.O_WRONLY | os.O_CREAT, 0o644)
    setattr(broker_process, "Broker", RecordedBroker)  # noqa: B010
    setattr(committer, "_QUICK_S", math.inf)  # noqa: B010 so that much is answered before the index has it
    with planted_bugs.planted(os.environ.get(BUG)):
        sys.exit(broker_process.main())
