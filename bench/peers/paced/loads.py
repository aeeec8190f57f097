"""What is asked of every system at an ordinary pace: the rows of the table, the curves, and who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from bench.peers.servers import ClarionServer, NatsServer, RabbitServer, RedisServer
from bench.peers.systems import System

MESSAGE_BYTES = 200
GRACE_S = 5.0  # so long after the last put is due a message still counts as delivered
DRAIN_S = 60.0  # the same where messages are put as fast as it goes


@dataclass(frozen=True)
class Load:
    """One kind of ordinary life. `per_s` 0: as fast as it goes."""

    row: str  # what `--rows` calls it; the points of a curve have the row "curves"
    topics: int
    per_s: int
    publishers: int = 1
    subscribers: int = 0  # of one topic each; none: two readers, each of all topics
    lasts: float = 1.0  # how long, in ratio to what `--seconds` says
    most: int = 1_000_000_000  # so many messages at most
    is_warmed: bool = False  # whether each publisher has been at each topic before it is measured

    @property
    def name(self) -> str:
        """Name it as results and reports do."""
        topics = f"{self.topics:,} topic{'s' if self.topics > 1 else ''}"
        pace = f"{self.per_s:,}/s" if self.per_s else "as fast as it goes"
        if self.subscribers:
            return f"{self.publishers} publishers, {self.subscribers} subscribers, {topics}, {pace}"
        return f"{topics}, {pace}"

    @property
    def readers(self) -> int:
        """Return how many processes read."""
        return 2


TABLE = [
    Load(f"{topics}x{per_s}", topics, per_s)
    for topics, per_s in ((1, 5000), (20, 5000), (100, 5000), (500, 1000), (500, 5000), (2000, 2000), (2000, 5000))
]
FAST = Load("fast", 2000, 0, most=1_000_000)
TRACKING = Load("tracking", 500, 5000, publishers=200, subscribers=500, lasts=2.0, is_warmed=True)
HUGE = Load("100000x20000", 100_000, 20_000, lasts=5.0, is_warmed=True)
CURVE_TOPICS = (1, 100, 2000)
_CURVE_PER_S = (100, 300, 1000, 5000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000)
CURVES = [Load("curves", topics, per_s, lasts=0.33) for topics in CURVE_TOPICS for per_s in _CURVE_PER_S]
ROWS = [load.row for load in TABLE] + ["fast", "tracking", "100000x20000", "curves"]
LONG = ("100000x20000", "curves")  # a quick look, of one round, leaves these out unless they are asked for
ONCE = ("100000x20000", "tracking", "curves")  # one round must do

ENTRANTS = [
    System("clarion", "Clarion", "fsync", True, ClarionServer, "paced_clarion"),
    System("nats", "NATS JetStream, pull", "fsync every 2 min", False, NatsServer, "paced_nats", {"consumer": "pull"}),
    System("nats-push", "NATS JetStream, push", "fsync every 2 min", False, NatsServer, "paced_nats",
           {"consumer": "push"}),
    System("redis-streams", "Redis, a stream for each topic", "fsync each second", False, RedisServer, "paced_redis",
           {"append_only": "everysec", "layout": "streams"}),
    System("redis-field", "Redis, one stream, topic in a field", "fsync each second", False, RedisServer, "paced_redis",
           {"append_only": "everysec", "layout": "field"}),
    System("rabbitmq", "RabbitMQ, topic exchange", "fsync", True, RabbitServer, "paced_rabbitmq"),
]  # fmt: skip


def takes_part(system: System, load: Load) -> bool:
    """Return whether a system has a way to do it that somebody would use."""
    # Who wants one topic cannot ask one stream for it; hundreds who poll for one topic each are no use of NATS.
    return not load.subscribers or system.name not in ("nats", "redis-field")


def sessions_of(rows: list[str]) -> list[list[Load]]:
    """Return the loads of these rows, those together that one server does one after the other.

    What a row of the table says already is no point of a curve again.
    """
    asked = [load for load in (*TABLE, FAST, *CURVES, TRACKING, HUGE) if load.row in rows]
    told = {(load.topics, load.per_s) for load in asked if load.row != "curves"}
    asked = [load for load in asked if load.row != "curves" or (load.topics, load.per_s) not in told]
    asked.sort(key=lambda load: (load.publishers, load.topics))
    return [list(loads) for _, loads in groupby(asked, key=lambda load: (load.publishers, load.topics))]
