"""How a node works, and what all nodes of a ring must agree on."""

from __future__ import annotations

from dataclasses import dataclass, field

from clarion.feeds.fetcher import FetchSettings
from clarion.feeds.honeycomb import Scheme
from clarion.model.errors import BadSettings
from clarion.overlay import Ring

_BEAT_MOST_S = 300.0  # so that what the ring's topic keeps tells of all nodes


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """How a node works; the first six are the same for all nodes of a ring."""

    poll_interval_s: float = 1800.0  # tau
    base: int = 16
    scheme: Scheme = Scheme.LITE
    target_s: float | None = None  # of Corona-Fast
    beat_s: float = 2.0
    host_limit_per_s: float = 1.0  # polls of one host, by all nodes together
    maintenance_s: float = 300.0  # between two rounds of the three phases; they are hastened when something changes
    polls_at_once: int = 64
    poll_log: bool = True
    cache_control: bool = False  # respect for how long an answer says that it is fresh
    websub_callback: str = ""  # the URL by which hubs reach this node; none: hubs are not asked
    websub_listen: tuple[str, int] = ("127.0.0.1", 0)
    fetch: FetchSettings = field(default_factory=FetchSettings)

    def __post_init__(self) -> None:
        """Refuse what no node can work with."""
        for name in ("poll_interval_s", "beat_s", "host_limit_per_s", "maintenance_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise BadSettings(f"{name} is more than 0, not {getattr(self, name)}")
        if self.polls_at_once < 1:
            raise BadSettings(f"polls_at_once is 1 or more, not {self.polls_at_once}")
        if not 0 <= self.websub_listen[1] < 65_536:
            raise BadSettings(f"a port to listen for hubs at is less than 65536, not {self.websub_listen[1]}")
        if self.beat_s > _BEAT_MOST_S:
            raise BadSettings(f"beat_s is at most {_BEAT_MOST_S:g}, not {self.beat_s:g}")
        Ring((), self.base)  # whether there is such a ring
        if (self.scheme is Scheme.FAST) != (self.target_s is not None):
            raise BadSettings("a target of detection is for the scheme fast, which needs one")
