"""What linked brokers tell each other: neighbours themselves, and brokers further away in packets that others carry."""

from __future__ import annotations

import msgspec

from clarion.wire.bodies import Body

LINK_VERSION = 1
OLDEST_LINK_VERSION = 1
MAX_HOPS = 32


# Between neighbours.


class LinkHello(Body):
    """Who is at this end of a link, said again and again as long as it is. `refused` says why there is to be none."""

    oldest_version: int
    newest_version: int
    broker: int
    store: bytes  # its UUID
    name: str
    start: bytes  # random, of this start of the broker
    heard: bytes = b""  # the start of the other end, as far as it was heard
    digest: int = 0  # of all announcements known there
    refused: str = ""
    most_bytes: int = 0  # of a frame that is taken there; 0: not known


class LinkState(Body):
    """Announcements (`overlay.link_graph`), to be passed on where they are news."""

    announcements: tuple[tuple[int, str, bytes, int, tuple[int, ...], bytes], ...]
    # broker, name, store, number, linked, start


class Interest(Body):
    """What a broker wants of all that is put at another. Parts follow each other by `number`; the first of an `epoch`
    begins anew, and with `complete` all that was not named since is not wanted any more."""

    epoch: bytes
    number: int
    add: tuple[tuple[bytes, str], ...]  # topic or pattern, and where to start: "new" or "earliest"
    remove: tuple[bytes, ...] = ()
    complete: bool = False


class InterestDone(Body):
    """The part of this number is done, all on disk; 0: nothing is known of the epoch, so it is to be begun again."""

    epoch: bytes
    number: int
    offsets: tuple[tuple[bytes, int], ...] = ()  # of topics: from which on everything comes
    refused: tuple[tuple[bytes, str], ...] = ()  # and why


class LinkData(Body):
    """Batches of the broker that sends them, for one broker or several; they follow in the next frame."""

    batches: tuple[tuple[int, bytes, int, int, int, int], ...]
    # number and name of the topic, first offset, count, bytes, milliseconds to live (0: no end)
    parts: tuple[LinkPart, ...]


class LinkPart(Body):
    """What of a LinkData is for one broker. All between `since` and the batch is not for it, or was `gone` before."""

    to: int
    session: int  # grows, and begins with the sender's start
    batches: tuple[tuple[int, int, bool, int], ...]  # place in the LinkData, since, whether it is a beginning, gone
    refused: tuple[tuple[int, int], ...] = ()  # place in `batches`, and the broker whose policy took its bytes out


class LinkConfirm(Body):
    """What of another broker's batches is on disk here, and what is to be sent again."""

    session: int
    confirmed: tuple[tuple[int, int], ...]  # number of the topic there, position
    again: tuple[tuple[int, int], ...] = ()  # number of the topic there, after how many ms


class AskTrace(Body):
    """Ask what is known of a message, by its 16 bytes."""

    number: int  # of the question
    message: bytes


class TraceIs(Body):
    """What a broker knows of a message."""

    number: int
    broker: int
    name: str
    linked: tuple[int, ...]
    claims: tuple[tuple[str, int, int, bytes, float, tuple[tuple[int, int], ...]], ...]
    # kind, origin, via and name of a history; the chance of an error; parts of the batch, none for all
    strategy: str
    begins_us: int
    held: tuple[tuple[bytes, int, int, tuple[tuple[bytes, int], ...], int, tuple[bytes, ...]], ...] = ()
    # where it is in the log: topic, offset (-1: not found quickly, so it may be there), commit time (us); who is to get
    # it, and after how many; how many that are; who has it out of order
    strangers: tuple[bytes, ...] = ()  # subscribers of whom it has claims, and who never subscribed to its topic
    gaps: tuple[tuple[int, int], ...] = ()  # in which it did not track: from when until when (us)
    trouble: str = ""  # why its histories cannot be read


# In packets.

INTEREST, INTEREST_DONE, DATA, CONFIRM, ASK_TRACE, TRACE_IS = 1, 2, 3, 4, 5, 6
_BODIES: dict[int, type[Body]] = {
    INTEREST: Interest,
    INTEREST_DONE: InterestDone,
    DATA: LinkData,
    CONFIRM: LinkConfirm,
    ASK_TRACE: AskTrace,
    TRACE_IS: TraceIs,
}


class LinkPacket(Body):
    """Something from one broker for others, by whom it was carried so far, and what it is."""

    source: int
    to: tuple[int, ...]
    hops: tuple[int, ...]
    what: int
    contents: bytes
    route: tuple[int, ...] = ()  # by which brokers it is to go, the next first; none: by the tree of its source


class AskLinks(Body):
    """Ask for the state of links; `forget` names a broker, by name or id, that will not come back."""

    forget: str = ""


class LinksAre(Body):
    """The state of a broker's links."""

    values: dict[str, object]


class Trace(Body):
    """Ask for the path of a message, by its 16 bytes: where it was put, who carried it, who has it."""

    message: bytes


class Traced(Body):
    """The path of a message, as values and as a drawing."""

    values: dict[str, object]
    text: str


encode = msgspec.msgpack.Encoder().encode
_DECODERS = {what: msgspec.msgpack.Decoder(body).decode for what, body in _BODIES.items()}


def decode_contents(packet: LinkPacket) -> Body | None:
    """Return what is in a packet; None where that is not known here, or cannot be read."""
    decode = _DECODERS.get(packet.what)
    try:
        return None if decode is None else decode(packet.contents)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
