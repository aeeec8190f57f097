"""Who takes part: each system in its default durability and in its strictest, with what an ack means there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.peers.servers import ClarionServer, NatsServer, RabbitServer, RedisServer, Server


@dataclass(frozen=True)
class System:
    """A server with settings, and the client that a Python user has for it."""

    name: str
    title: str
    ack_means: str  # what is true when the publisher has its ack
    fsyncs: bool  # whether that is on disk
    server: type[Server]
    client: str  # module of its client, under bench.peers.clients
    settings: dict[str, Any] = field(default_factory=dict)  # what server and client need to know
    measures: tuple[str, ...] = ()  # that it takes part in; none means all
    goes_beyond: bool = False  # its client is more than a user has: shown, but not the peer that ratios are to

    @property
    def is_ours(self) -> bool:
        """Tell Clarion from its peers."""
        return self.server is ClarionServer


SYSTEMS = [
    System("clarion", "Clarion", "fsync", True, ClarionServer, "clarion"),
    System(
        "clarion-single", "Clarion, put and get", "fsync", True, ClarionServer, "clarion",
        {"put": "single", "get": "single"}, ("100 B", "1 KB", "20 KB"),
    ),
    System(
        "rabbitmq-stream", "RabbitMQ stream", "no fsync (it has no such setting)", False,
        RabbitServer, "rabbitmq_stream",
    ),
    System(
        "rabbitmq-stream-beyond", "RabbitMQ stream, its client's codec replaced", "no fsync (it has no such setting)",
        False, RabbitServer, "rabbitmq_stream", {"codec": "joined"}, ("100 B", "1 KB"), True,
    ),
    System(
        "rabbitmq-classic", "RabbitMQ classic queue", "fsync", True,
        RabbitServer, "rabbitmq_queue", {"queue": "classic"},
    ),
    System(
        "rabbitmq-quorum", "RabbitMQ quorum queue", "fsync", True,
        RabbitServer, "rabbitmq_queue", {"queue": "quorum"},
    ),
    System("nats", "NATS JetStream", "fsync every 2 min", False, NatsServer, "nats"),
    System(
        "redis-default", "Redis Streams, as installed", "in memory; a snapshot after 60 s", False,
        RedisServer, "redis", {"append_only": "no"},
    ),
    System(
        "redis-everysec", "Redis Streams, everysec", "fsync each second", False,
        RedisServer, "redis", {"append_only": "everysec"},
    ),
    System(
        "redis-always", "Redis Streams, always", "fsync", True,
        RedisServer, "redis", {"append_only": "always"},
    ),
]  # fmt: skip
