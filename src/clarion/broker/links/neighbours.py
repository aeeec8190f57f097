"""The ends of this broker's links: who is there, since when, and whether the link may be."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from clarion.broker.links.policy import LinkSettings, why_no_name
from clarion.overlay.link_graph import Announcement
from clarion.wire.link_bodies import LINK_VERSION, OLDEST_LINK_VERSION, LinkHello

_NAME_BYTES = 255
_LINKS = 1000  # of one broker
_AHEAD_US = 100 * 366 * 86_400_000_000  # of this broker's clock, which may have none of its own and begin at 1970

Port = Hashable  # how the edge tells connections apart


@dataclass(slots=True, eq=False)
class End:
    """One connection to a neighbour, or to where one should be."""

    port: Port
    settings: LinkSettings
    is_dialled: bool
    hello: LinkHello | None = None  # the last one that was not refused
    heard_s: float = 0.0
    start: bytes = b""  # of the neighbour, whoever says hello …
    begun_s: float = 0.0  # … and since when it is this one
    is_up: bool = False  # both ends hear each other
    since_s: float | None = None  # since when it is up or down; None: it was never up
    why_down: str = ""
    is_taken: bool = False  # the connection, whatever listens there
    awaited_s: float | None = None  # when the log is to say that nobody answers
    refused: str = ""  # why there is no link, by this broker or by the other
    seen_refusals: set[str] = field(default_factory=set)  # that were told

    @property
    def broker(self) -> int:
        """The neighbour's id; 0 where it is not known."""
        return self.hello.broker if self.hello is not None else 0

    @property
    def where(self) -> str:
        """How its connection is called in messages."""
        return f"at {self.settings.url}" if self.is_dialled else "which called here"

    @property
    def why_unanswered(self) -> str:
        """What is known of an address where no broker has answered yet; "" where that is nothing."""
        is_silent = self.is_taken and self.since_s is None
        return "something takes connections there, and does not answer as a broker of Clarion" if is_silent else ""

    @property
    def shown(self) -> str:
        """How the neighbour is called in messages."""
        if self.hello is not None:
            return f"{self.hello.name} ({self.hello.broker:08x})"
        return self.settings.name or self.settings.url or "somebody"


def is_sound(told: Announcement, now_us: int) -> bool:
    """Return whether a broker may have announced this.

    Numbers are microseconds of its clock, or one more than that of the last. Those far ahead are nobody's: the broker
    that they are told of, perhaps by another, could not go beyond them."""
    return (
        _is_somebody(told.broker, told.store, told.name, told.start)
        and not why_no_name(told.name)  # it may look like the id of another, which `origins` of a link lets in
        and 0 <= told.number < now_us + _AHEAD_US
        and len(told.linked) <= _LINKS
        and all(0 <= each < 1 << 32 for each in told.linked)
    )


def _is_somebody(broker: int, store: bytes, name: str, start: bytes) -> bool:
    return 0 < broker < 1 << 32 and len(store) == len(start) == 16 and 0 < len(name.encode()) <= _NAME_BYTES


def find_settings(hello: LinkHello, end: End, known: Sequence[LinkSettings], accepts: str) -> LinkSettings | str:
    """Return the settings of a link with who says this; a text where there may be none."""
    if hello.newest_version < OLDEST_LINK_VERSION or hello.oldest_version > LINK_VERSION:
        return (
            f"it speaks link versions {hello.oldest_version} to {hello.newest_version}, this broker"
            f" {OLDEST_LINK_VERSION} to {LINK_VERSION}: run the same release of Clarion on both"
        )
    if why := why_no_name(hello.name):
        return why
    if not _is_somebody(hello.broker, hello.store, hello.name, hello.start):
        return f"it has no name of at most {_NAME_BYTES} bytes, or no id"
    if end.is_dialled:
        wanted = end.settings.name
        if wanted and wanted != hello.name:
            return (
                f"{wanted} is expected at {end.settings.url}, and {hello.name} is there: change the name or the url of"
                " that link"
            )
        return end.settings
    for settings in known if accepts != "none" else ():
        if settings.name == hello.name:
            return settings
    if accepts != "any":
        mend = (
            "set accept_links to listed or any there"
            if accepts == "none"
            else "name it in a table [[links]] there, or set accept_links to any"
        )
        return f"{hello.name} is not among the links that this broker accepts (accept_links = {accepts!r}): {mend}"
    return LinkSettings(name=hello.name)
