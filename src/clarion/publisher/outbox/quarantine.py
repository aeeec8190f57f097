"""For people: what is in an outbox, what is in its quarantine and why, and the ways out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from clarion.model.errors import OutboxUnusable
from clarion.model.ids import next_stamp
from clarion.publisher.outbox.outbox_file import OutboxLock, close_database, open_database, open_for_reading, typed
from clarion.publisher.outbox.outbox_rows import Quarantined
from clarion.wire.batch import BadBatch, Batch, readdress_batch

_WAITING = """
SELECT topic, count(*), sum(count), sum(size), min(stamp), numbered
FROM batch INDEXED BY batch_lane JOIN lane ON lane.number = batch.lane GROUP BY lane.number ORDER BY topic
"""
_NEW_LANE = "INSERT OR IGNORE INTO lane SELECT coalesce(max(number), 0) + 1, ?, 0, 1, 0, 0, 0 FROM lane"


class WaitingTopic(NamedTuple):
    """What waits to be sent to one topic."""

    topic: bytes
    batches: int
    messages: int
    size: int
    oldest_stamp: int
    numbered: int  # batches that may have been sent already


class Contents(NamedTuple):
    """What is in an outbox."""

    waiting: list[WaitingTopic]
    quarantined: list[Quarantined]


def look(file: Path) -> Contents:
    """Return what is in an outbox; a publisher may have it open."""
    connection = open_for_reading(file)
    try:
        waiting = [WaitingTopic(*row) for row in connection.execute(_WAITING)]
        rows = connection.execute("SELECT stamp, topic, count, size, reason, at_us FROM aside ORDER BY stamp")
        return Contents(waiting, [Quarantined(*row) for row in rows])
    except apsw.Error as error:
        raise typed(error, file) from error
    finally:
        connection.close()


def resend(file: Path) -> int:
    """Have all that was set aside sent as new messages by the next publisher that opens the outbox, after what waits
    there already; return how many messages that are."""
    return _change(file, _resend)


def drop(file: Path) -> int:
    """Forget all that is in quarantine; return how many messages that were."""
    return _change(file, _let_go)


def _change(file: Path, change: Callable[[apsw.Connection], None]) -> int:
    if not file.is_file():
        raise OutboxUnusable(f"there is no outbox {file}")
    file = Path(os.path.realpath(file))
    lock = OutboxLock(file)
    try:
        connection = open_database(file, durable=True)
        try:
            connection.execute("BEGIN IMMEDIATE")
            messages = int(connection.execute("SELECT coalesce(sum(count), 0) FROM aside").get)
            change(connection)
            connection.execute("DELETE FROM aside")
            connection.execute("COMMIT")
            return messages
        except apsw.Error as error:
            raise typed(error, file) from error
        except BadBatch as error:
            raise OutboxUnusable(
                f"what was set aside in {file} is damaged: {error}; nothing was changed."
                f" Restore the file, or `clarion outbox drop {file}` lets go of all that was set aside"
            ) from error
        finally:
            close_database(connection)
    finally:
        lock.release()


def _let_go(_connection: apsw.Connection) -> None:
    """Nothing else has to be done."""


def _resend(connection: apsw.Connection) -> None:
    last = int(connection.execute("SELECT value FROM meta WHERE key = 'last_stamp'").get)
    stamps = [stamp for (stamp,) in connection.execute("SELECT stamp FROM aside ORDER BY stamp")]
    for old in stamps:
        last = next_stamp(last, time.time())
        topic, count, ttl_ms, due, packed = connection.execute(
            "SELECT topic, count, ttl_ms, due, packed FROM aside WHERE stamp = ?", (old,)
        ).get
        connection.execute(_NEW_LANE, (topic,))
        lane = connection.execute("SELECT number FROM lane WHERE topic = ?", (topic,)).get
        Batch.parse(packed)  # a new checksum would hide damage
        anew = readdress_batch(packed, broker=0, publisher=0, stamp=last, number=0)
        connection.execute(
            "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)", (last, lane, count, len(anew), ttl_ms, due, anew)
        )
    connection.execute("UPDATE meta SET value = ? WHERE key = 'last_stamp'", (last,))
