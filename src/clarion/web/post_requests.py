"""From a POST's path, headers and body to the messages it carries, or the refusal that is its answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import xxhash

from clarion.model.errors import BufferFull, ClarionError, LimitReached, NoSubscriber, TimedOut, TooLarge
from clarion.model.names import from_text, how_to_subscribe, is_pattern, to_text
from clarion.wire.timestamps import Timestamp, due_us, ttl_ms

# The first kind that fits decides. What is left is the broker's trouble, seen from here: what a client can do wrong
# was found before anything was queued.
_STATUSES: tuple[tuple[type[ClarionError], int], ...] = (
    (NoSubscriber, 404),
    (TooLarge, 413),
    (BufferFull, 429),
    (TimedOut, 503),
    (LimitReached, 507),
)

# After these it is certain that nothing was stored, so the same request may be tried afresh.
_CERTAIN = (NoSubscriber, TooLarge, LimitReached)


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.retry_after_s = retry_after_s

    def told(self) -> dict[str, Any]:
        """Return what the answer's body says."""
        return {"error": self.error, "message": self.message}

    def headers(self) -> dict[str, str]:
        """Return what the answer's headers say beside."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def bad(message: str) -> Refusal:
    """Return the refusal of a request that cannot be understood; nothing of it was queued."""
    return Refusal(400, "BadRequest", f"{message}; nothing was queued")


def too_large(message: str) -> Refusal:
    """Return the refusal of a request that can never be taken; nothing of it was queued."""
    return Refusal(413, "TooLarge", message)


def refusal_of(error: ClarionError, topic: bytes, *, stored: int = 0, count: int = 1) -> Refusal:
    """Return the answer to a request whose messages, or some of them, were not stored."""
    status = status_of(error)
    name = to_text(topic)
    if stored:
        kept = f"; of {count} messages {stored} were stored, the others were not"
    else:
        kept = ", so nothing was stored" if is_certain(error) else ""
    if isinstance(error, NoSubscriber):
        message = f"nobody subscribes to {name}{kept}. {how_to_subscribe(topic)}"
    else:
        message = f"{error}{kept}"
    return Refusal(status, type(error).__name__, message)


def status_of(error: ClarionError) -> int:
    """Return the status that tells of an error at the broker."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)


def is_certain(error: ClarionError) -> bool:
    """Tell whether after this error it is certain that the message was not stored."""
    return isinstance(error, _CERTAIN)


LINES_TYPE = "application/x-ndjson"
PATH = "/topics/"
_HEADER = "clarion-header-"
_KEY, _TTL, _DELIVER_AT = "clarion-key", "clarion-ttl", "clarion-deliver-at"
_IDEMPOTENCY_KEY_CHARACTERS = 256
_KNOWN = "Clarion-Key, Clarion-TTL, Clarion-Deliver-At and Clarion-Header-NAME"


class PostOptions(NamedTuple):
    """What a request says about its messages, beside their payloads."""

    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    ttl_s: float | None = None
    deliver_at: Timestamp | None = None
    idempotency_key: str | None = None
    respond_async: bool = False
    by_lines: bool = False


def read_topic(raw_path: str, rest: str = "") -> bytes:
    """Read the topic of a path as it was sent, with its percent signs; `rest` is what came behind the path."""
    if rest:
        raise bad("a part after '?' or '#' means nothing here; in a topic's name write these as %3F and %23")
    if not raw_path.startswith(PATH):  # its letters are written with percent signs
        raise bad(f"the path is {PATH}NAME, and only NAME is percent-encoded")
    try:
        topic = from_text(unquote_to_bytes(raw_path.removeprefix(PATH)).decode())
    except UnicodeDecodeError:
        raise bad("the topic's name is not UTF-8; write such a name as b64: and its bytes in base64") from None
    except ValueError as error:
        raise bad(f"the topic's name cannot be read: {error}") from None
    if not topic:
        raise bad(f"a topic's name has at least one byte: POST {PATH}NAME")
    if is_pattern(topic):
        raise bad(f"{to_text(topic)} stands for many topics; a message is put on one")
    return topic


def read_options(headers: Iterable[tuple[str, str]]) -> PostOptions:
    """Read a request's headers. Those that begin with Clarion- are all known, and none comes twice."""
    said: dict[str, str] = {}
    preferences: list[str] = []
    for name, value in headers:
        lower = name.lower()
        if lower == "prefer":
            preferences += [wish.partition(";")[0].strip().lower() for wish in value.split(",")]
        if not lower.startswith("clarion-") and lower not in ("idempotency-key", "content-type"):
            continue
        if lower in said:
            raise bad(f"the header {name} is there twice")
        said[lower] = value
    unknown = [name for name in said if name.startswith("clarion-") and not _is_known(name)]
    if unknown:
        raise bad(f"there is no header {unknown[0]}; there are {_KNOWN}")
    message_headers = {name[len(_HEADER) :]: _bytes(name, said[name]) for name in said if name.startswith(_HEADER)}
    return PostOptions(
        key=_bytes(_KEY, said[_KEY]) if _KEY in said else None,
        headers=message_headers or None,
        ttl_s=_ttl_s(said[_TTL]) if _TTL in said else None,
        deliver_at=_deliver_at(said[_DELIVER_AT]) if _DELIVER_AT in said else None,
        idempotency_key=_idempotency_key(said.get("idempotency-key")),
        respond_async="respond-async" in preferences,
        by_lines=said.get("content-type", "").partition(";")[0].strip().lower() == LINES_TYPE,
    )


def _is_known(name: str) -> bool:
    return name in (_KEY, _TTL, _DELIVER_AT) or (name.startswith(_HEADER) and len(name) > len(_HEADER))


def _bytes(name: str, text: str) -> bytes:
    try:
        return from_text(text)
    except ValueError as error:  # not UTF-8, or no base64
        raise bad(f"the value of {name} is UTF-8, or b64: and base64: {error}") from None


def _ttl_s(text: str) -> float:
    try:
        ttl_s = float(text)
        ttl_ms(ttl_s)
    except ValueError:
        raise bad(f"Clarion-TTL is in seconds, more than 0, as 3600; not {text!r}") from None
    return ttl_s


def _deliver_at(text: str) -> Timestamp:
    try:
        return _checked(float(text))
    except ValueError:
        pass
    try:
        timestamp = datetime.fromisoformat(text)
        if timestamp.tzinfo is not None:
            return _checked(timestamp)
    except (ValueError, OverflowError):
        pass
    raise bad(
        f"Clarion-Deliver-At is a date and time with its zone, as 2026-01-31T12:00:00Z, or unix seconds; not {text!r}"
    )


def _checked(timestamp: Timestamp) -> Timestamp:
    if isinstance(timestamp, float) and math.isnan(timestamp):
        raise ValueError("it is no number")
    due_us(timestamp)
    return timestamp


def _idempotency_key(text: str | None) -> str | None:
    if text is not None and not 0 < len(text) <= _IDEMPOTENCY_KEY_CHARACTERS:
        raise bad(f"an Idempotency-Key has 1 to {_IDEMPOTENCY_KEY_CHARACTERS} characters, not {len(text)}")
    return text


def split_lines(body: bytes, most: int) -> list[bytes]:
    """Return the lines of a body, without their ends; empty ones are none. Refuses a body with more than `most`.

    They are counted before there is an object for each: that of a large body would take much memory and time.
    """
    lines = (body + b"\n").replace(b"\r\n", b"\n")
    while b"\n\n" in lines:
        lines = lines.replace(b"\n\n", b"\n")
    lines = lines.removeprefix(b"\n")
    count = lines.count(b"\n")
    if not count:
        raise bad("there is no line in the body, and so no message")
    if count > most:
        raise too_large(
            f"{count} lines are more messages than this gateway ever holds ({most}); send fewer at once."
            " Nothing was queued"
        )
    return lines.removesuffix(b"\n").split(b"\n")


def fingerprint(topic: bytes, options: PostOptions, body: bytes) -> bytes:
    """Return 16 bytes that differ where two requests ask for different things."""
    headers = sorted((options.headers or {}).items())  # a proxy may change their order
    marked = (topic, options.key, headers, options.ttl_s, options.deliver_at, options.by_lines)
    said = xxhash.xxh3_128(repr(marked).encode())
    said.update(body)
    return said.digest()


def check_encoding(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not sent as it is: it would be stored as it came."""
    coded = headers.get("Content-Encoding", "identity").lower() != "identity"
    if coded or headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise Refusal(415, "Unsupported", "send the body as it is, without Content-Encoding; nothing was queued")


def check_origin(headers: Iterable[tuple[str, str]]) -> None:
    """Refuse what a page in a browser sends: any page can reach an address that only this machine should reach."""
    if any(name.lower() == "origin" for name, _ in headers):
        raise Refusal(
            403,
            "Forbidden",
            "this request comes from a page in a browser; the gateway takes messages from programs alone, because any"
            " page could post here. Nothing was queued",
        )
