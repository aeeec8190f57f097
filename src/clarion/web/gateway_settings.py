"""What a gateway can be told, with its defaults and bounds."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from clarion.model.address import DEFAULT_URL, check_connect
from clarion.model.errors import BadSettings
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.model.names import REST, is_good_pattern, matches, to_text
from clarion.publisher.outbox.outbox_worker import LEAST_BYTES
from clarion.publisher.tuner import POLICIES, Tuning

_MESSAGES_IN_MEMORY = 10_000
_MESSAGES_IN_OUTBOX = 100_000  # each request under way still takes about 1 KB of memory


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of a gateway; what cannot work raises BadSettings."""

    url: str = DEFAULT_URL
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any that is free
    topics: tuple[bytes, ...] = (REST,)  # that may be posted to; patterns allowed
    buffer_messages: int | None = None  # accepted and not yet stored; None: `messages_max` says
    buffer_bytes: int = 64 * 2**20  # of these in memory, and of bodies that are just coming in
    body_bytes: int = 16 * 2**20  # of one request
    max_connections: int = 500
    timeout_s: float = 10.0  # that a post waits for the broker
    read_timeout_s: float = 60.0  # within which a body must have come
    idle_timeout_s: float = 60.0  # within which a connection must have sent the next request's headers
    stop_timeout_s: float = 30.0  # to finish what was accepted
    outbox: str | None = None  # file that keeps what was accepted until the broker has it; None: memory does
    outbox_bytes: int = 2**30
    compress: bool = False
    tuning: Tuning = "auto"  # of the publisher behind it
    batch_size: int | None = None  # N to begin with, or for ever with tuning="fixed"

    def __post_init__(self) -> None:
        check_connect(self.url)
        for name in ("messages_max", "buffer_bytes", "body_bytes", "max_connections"):
            if getattr(self, name) < 1:
                raise BadSettings(f"{name.replace('messages_max', 'buffer_messages')} is at least 1")
        if self.outbox_bytes < LEAST_BYTES:
            raise BadSettings(f"outbox_bytes is at least {LEAST_BYTES}, not {self.outbox_bytes}")
        for name in ("timeout_s", "read_timeout_s", "idle_timeout_s", "stop_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSettings(f"{name} is a finite time of more than 0, not {getattr(self, name):g}")
        if self.tuning not in ("auto", *POLICIES):
            raise BadSettings(f"tuning is auto or one of {', '.join(POLICIES)}; not {self.tuning!r}")
        if self.batch_size is not None and not 1 <= self.batch_size <= MAX_BATCH_MESSAGES:
            raise BadSettings(f"batch_size is 1 to {MAX_BATCH_MESSAGES}, not {self.batch_size}")
        for pattern in self.topics:
            if not pattern or not is_good_pattern(pattern):
                raise BadSettings(f"'#' stands at the end of a pattern, alone; {to_text(pattern)} cannot match a topic")

    @property
    def messages_max(self) -> int:
        """How many messages may be accepted and not yet stored."""
        if self.buffer_messages is not None:
            return self.buffer_messages
        return _MESSAGES_IN_MEMORY if self.outbox is None else _MESSAGES_IN_OUTBOX

    def allows(self, topic: bytes) -> bool:
        """Whether messages may be posted to this topic."""
        return any(pattern == topic or matches(pattern, topic) for pattern in self.topics)

    def allows_jobs(self, topic: bytes) -> bool:
        """Whether jobs may be asked for and looked at whose profiles are on this topic: where any topic may be posted
        to, or where it is named."""
        return REST in self.topics or self.allows(topic)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_listen(text: str) -> tuple[str, int]:
    """Read HOST:PORT, [V6]:PORT or :PORT (every address of this machine)."""
    host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535 or (":" in host and host[0] != "["):
        raise BadSettings(f"the address to listen at is HOST:PORT, as 127.0.0.1:8080 or [::1]:8080, not {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)
