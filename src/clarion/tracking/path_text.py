"""The path of a message as people read it, and as values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.model.names import DEAD_READER, to_text
from clarion.tracking.paths import KEEPS_NONE, LASTING, Path, Receiver, Stop, Waiting, time_text


def draw(path: Path) -> str:
    """Return the tree as text, what is unsupported and unknown below it."""
    on = " or ".join(to_text(topic) + _chance(chance) for topic, chance in path.topics.items())
    lines = [f"message {path.message}{f' on {on}' if on else ''}, stamped {_stamped(path.message)}: {path.summary}"]
    if path.tree:
        lines += _lines(path.tree)
    if path.unsupported:
        lines.append("unsupported, so most likely errors of filters:")
        lines += [f"  {line}" for stop in path.unsupported for line in _lines(stop)]
    return "\n".join([*lines, *_unknown_lines(path)])


def _unknown_lines(path: Path) -> Iterator[str]:
    """Return who is unknown: first those that may answer another time, with what others say of them."""
    keep_none = {name: why for name, why in path.unknown.items() if why == KEEPS_NONE}
    lasting = {name: why for name, why in path.unknown.items() if why in LASTING and name not in keep_none}
    if passing := {name: why for name, why in path.unknown.items() if name not in {**lasting, **keep_none}}:
        yield "unknown until they answer:"
        for name, why in passing.items():
            yield f"  {name}: {why}; {path.said_of_unknown.get(name, 'nobody says that it had it')}"
    if lasting:
        yield "unknown for good, as they have no histories of that time:"
        yield from _told(lasting, path)
    if keep_none:
        yield "unknown, as they do not track now:"
        yield from _told(keep_none, path)
        yield (
            "  Start them with tracking (--set tracking=bloom; as before where their log says that it was given up):"
            " what was tracked before is known again then, and what was not stays unknown"
        )


def _told(unknown: dict[str, str], path: Path) -> Iterator[str]:
    for name, why in unknown.items():
        said = path.said_of_unknown.get(name)
        yield f"  {name}: {why}{f'; {said}' if said else ''}"


def _stamped(message: MessageId) -> str:
    """Return when the publisher's clock had it put."""
    return time_text(stamp_to_unix_s(message.stamp))


def _lines(stop: Stop) -> Sequence[str]:
    note = f" ({stop.note})" if stop.note else ""
    at = f", on disk {time_text(stop.held.committed_us / 1e6)} at offset {stop.held.offset}" if stop.held else ""
    at = ", may still be in the topic: where in the log it is was not found" if stop.may_wait else at
    lines = [f"{stop.name} {stop.state}{_chance(stop.chance)}{note}{at}"]
    below = [[_receiver(each)] for each in stop.receivers] + [[_waiting(each)] for each in stop.waiting]
    if (more := stop.waiting_count - len(stop.waiting)) > 0:
        below.append([f"… and {more} more are still to get it"])
    below += [[f"✗ given up for {name}: it will not come there"] for name in stop.given_up]
    below += [list(_lines(each)) for each in stop.onward]
    for place, some in enumerate(below):
        is_last = place == len(below) - 1
        lines.append(("└── " if is_last else "├── ") + some[0])
        lines += [("    " if is_last else "│   ") + line for line in some[1:]]
    return lines


def _receiver(receiver: Receiver) -> str:
    parts = ", ".join(f"{first}-{stop - 1}" for first, stop in receiver.parts)
    said = "received" if receiver.got else "went past it" if receiver.went_past else "did not receive"
    of_batch = f" (of its batch: {parts})" if parts else ""
    return f"→ {to_text(receiver.subscriber)} {said}{of_batch}{_chance(receiver.chance)}"


def _waiting(waiting: Waiting) -> str:
    if waiting.name == to_text(DEAD_READER):
        return "⋯ kept as a dead letter"
    before = f", {waiting.before} before it" if waiting.before else ""
    return f"⋯ {waiting.name} is still to get it{' over links' if waiting.is_broker else ''}{before}"


def _chance(chance: float) -> str:
    return f", wrong with {chance:.1g}" if chance else ""


def to_dict(path: Path) -> dict[str, Any]:
    """Return the path as values for JSON."""
    return {
        "message": str(path.message),
        "topics": [{"topic": to_text(topic), "chance": chance} for topic, chance in path.topics.items()],
        "stamped": _stamped(path.message),
        "state": path.state,
        "summary": path.summary,
        "path": _values(path.tree) if path.tree else None,
        "unsupported": [_values(stop) for stop in path.unsupported],
        "unknown": path.unknown,
        "said_of_unknown": path.said_of_unknown,
    }


def _values(stop: Stop) -> dict[str, Any]:
    receivers = [
        {"subscriber": to_text(each.subscriber), "received": each.got, "went_past": each.went_past,
         "chance": each.chance, "of_batch": [list(part) for part in each.parts] or "all"}
        for each in stop.receivers
    ]  # fmt: skip
    waiting = [
        {"broker" if each.is_broker else "subscriber": each.name, "messages_before": each.before}
        for each in stop.waiting
    ]
    return {
        "broker": f"{stop.broker:08x}", "name": stop.name, "state": stop.state, "chance": stop.chance,
        "note": stop.note, "offset": stop.held.offset if stop.held else None,
        "committed": time_text(stop.held.committed_us / 1e6) if stop.held else None, "receivers": receivers,
        "given_up": stop.given_up, "waiting": waiting, "waiting_count": stop.waiting_count, "may_wait": stop.may_wait,
        "onward": [_values(each) for each in stop.onward],
    }  # fmt: skip
