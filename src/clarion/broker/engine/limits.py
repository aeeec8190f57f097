"""The bounds within which the engine works; every one is a setting (`clarion config`)."""

from __future__ import annotations

from dataclasses import dataclass

from clarion.model.ids import RECEIPTS_KEPT

MAX_NAME_BYTES = 1024  # of a topic or subscriber name
MAX_RANGES = 65_536  # of offsets that one request names
ROW_BYTES = 1024  # that a topic, subscription or publisher takes on disk, about
FULL_RETRY_S = 0.2  # before somebody who found the disk or a topic full, or whose commit failed, tries again


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine bounds. Names from the reliable-service document are kept where they still steer something."""

    max_topics_in_memory: int = 100_000  # some 4 KB each
    topic_queue_size: int = 100_000  # messages of a topic kept in memory
    memory_bytes: int = 64 * 2**20  # of messages kept in memory, all topics together
    topic_unload_interval_s: float = 10.0
    stale_msg_interval_s: float = 1.0
    max_get_msgs: int = 65_536
    max_get_bytes: int = 2**20
    max_get_wait_s: float = 60.0
    max_batch_bytes: int = 16 * 2**20
    max_in_flight: int = RECEIPTS_KEPT
    max_topics: int = 1_000_000
    max_subscriptions_per_topic: int = 10_000
    max_subscriptions: int = 1_000_000  # of all topics together
    max_publishers: int = 1_000_000
    max_waiting_gets: int = 100_000
    max_acked_ranges: int = 10_000
    topic_max_bytes: int = 64 * 2**30  # unread bytes of an until-read topic
    disk_reserve_bytes: int = 64 * 2**20
    publisher_expiry_s: float = 14 * 86_400.0
    credit_s: float = 10.0
    credit_max_messages: int = 1_000_000
    default_retention: str = "until-read"
    max_consumers_per_subscription: int = 1000
    max_returned: int = 100_000  # messages of a shared subscription that were lent and came back
    least_hold_s: float = 3.0  # for which, at the least, the backlog is kept after a restart for who held it
    max_patterns: int = 1000
    max_states: int = 1_000_000
    max_state_bytes: int = 65_536
    staged_expiry_s: float = 86_400.0
    max_writers: int = 1_000_000
    tracking_skew_s: float = 0.0  # by how much stamps may be off the broker's clock; 0: nobody looks
