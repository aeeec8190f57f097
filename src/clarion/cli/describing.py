"""Topics and subscriptions as commands tell them: JSON objects for programs, words and ages for people."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.cli.output import add_row, plain_table, readable_bytes
from clarion.cli.units import readable_duration
from clarion.model.names import to_text
from clarion.model.options import KEEP, TRIM, SubscriptionOptions, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from clarion.admin import SubscriptionDescription, TopicDescription
    from clarion.wire.bodies import TopicRow

_NUMBERS = ("lag", "consumers", "leased", "returned", "oldest unacked", "oldest")
_WIDE = 110  # columns


def shell_name(name: bytes) -> str:
    """Give a name as it is typed in a shell."""
    return shlex.quote(to_text(name))


def row_json(row: TopicRow) -> dict[str, Any]:
    """Give a topic as JSON lists it. Where some above the cursor are acked, `lag` is an upper bound."""
    return {
        "topic": to_text(row.topic),
        "retention": row.retention,
        "settings": all_fields(settings_of(row)),
        "messages": row.next_offset - row.first_offset,
        "first_offset": row.first_offset,
        "next_offset": row.next_offset,
        "stored_bytes": row.stored_bytes,
        "subscriptions": [
            {
                "subscriber": to_text(name),
                "shared": name in row.shared,
                "cursor": cursor,
                "lag": max(0, row.next_offset - cursor),
                "acked_ranges_above_cursor": ranges,
            }
            for name, cursor, ranges in row.subscriptions
        ],
    }


def settings_of(row: TopicRow) -> TopicSettings:
    """Give the settings of a topic that was listed; those that a newer broker knows are left out."""
    return TopicSettings(
        **{name: row.settings[name] for name in TopicSettings.__struct_fields__ if name in row.settings}
    )


def topic_json(told: TopicDescription) -> dict[str, Any]:
    """Give everything about a topic as JSON."""
    return {
        "topic": to_text(told.topic),
        "retention": told.retention,
        "settings": all_fields(told.settings),
        "messages": told.messages,
        "first_offset": told.first_offset,
        "next_offset": told.next_offset,
        "stored_bytes": told.stored_bytes,
        "staged_messages": told.staged_messages,
        "staged_bytes": told.staged_bytes,
        "oldest_at": iso(told.oldest_at),
        "subscriptions": [subscription_json(one) for one in told.subscriptions],
    }


def subscription_json(told: SubscriptionDescription) -> dict[str, Any]:
    """Give everything about a subscription as JSON."""
    return {
        "topic": to_text(told.topic),
        "subscriber": to_text(told.name),
        "cursor": told.cursor,
        "lag": told.lag,
        "acked_ranges_above_cursor": told.acked_ranges,
        "consumers": told.consumers,
        "leased": told.leased,
        "returned": told.returned,
        "oldest_unacked_at": iso(told.oldest_unacked_at),
        "seen_at": iso(told.seen_at),
        "options": all_fields(told.options),
    }


def all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Give every field with its name, also those at their default."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def iso(moment: datetime | None) -> str | None:
    """Give a time for programs."""
    return None if moment is None else moment.isoformat()


def age(moment: datetime | None) -> str:
    """Give how long ago that was, for people."""
    return "" if moment is None else readable_duration(max(0, round((datetime.now(UTC) - moment).total_seconds())))


def local_time(moment: datetime | None) -> str:
    """Give a time for people: where they are, to the second."""
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def keeps(retention: str, settings: TopicSettings) -> str:
    """Tell in short what a topic keeps: keep 7d 10.0 GB trim."""
    words = [retention]
    if retention == KEEP and settings.max_age_s:
        words.append(readable_duration(settings.max_age_s))
    if settings.max_bytes:
        words.append(readable_bytes(settings.max_bytes))
    if len(words) > 1 and settings.at_bound == TRIM:
        words.append(TRIM)
    return " ".join(words)


def settings_words(retention: str, settings: TopicSettings) -> str:
    """Tell in a sentence what a topic keeps, and what else it is set to."""
    bounds = []
    if retention == KEEP and settings.max_age_s:
        bounds.append(f"for {readable_duration(settings.max_age_s)}")
    if settings.max_bytes:
        bounds.append(f"up to {readable_bytes(settings.max_bytes)}")
    kept = "messages until every subscriber has read them" if retention != KEEP else "messages, read or not"
    if retention == KEEP and not bounds:
        kept = "everything"
    words = [", ".join([kept, *bounds])]
    if bounds:
        refused = "puts are refused where a bound would overtake a subscriber"
        words.append("at a bound the oldest go, read or not" if settings.at_bound == TRIM else refused)
    if settings.ttl_s:
        words.append(f"messages expire after {readable_duration(settings.ttl_s)} where the put does not say otherwise")
    if settings.max_batch_bytes:
        words.append(f"a batch has at most {readable_bytes(settings.max_batch_bytes)}")
    if settings.max_subscriptions:
        words.append(f"at most {settings.max_subscriptions:,} subscribe")
    return "; ".join(words)


def kind_of(options: SubscriptionOptions) -> str:
    """Tell in short how a subscription is used."""
    if not options.shared:
        return "exclusive"
    return f"shared by {options.order}" if options.order else "shared"


def subscriptions_table(told: Sequence[SubscriptionDescription], *, with_topic: bool, width: int) -> Table:
    """Give the table of subscriptions, for people; on a wide screen it says more."""
    wide = width >= _WIDE
    names = ["topic"] if with_topic else []
    rest = ["kind", "lag", "oldest unacked" if wide else "oldest", "consumers", "leased", "returned"]
    more = ["expires"] if wide else []
    table = plain_table([*names, "subscriber", *rest, *more], _NUMBERS)
    for column in table.columns[len(names) + 1 :]:
        column.no_wrap = True
    for one in told:
        shared, expires_s = one.options.shared, one.options.expires_s
        cells = [
            to_text(one.name),
            kind_of(one.options),
            f"{one.lag:,}",
            age(one.oldest_unacked_at),
            f"{one.consumers:,}" if shared else "",
            f"{one.leased:,}" if shared else "",
            f"{one.returned:,}" if shared else "",
        ]
        if wide:
            cells.append(f"unused for {readable_duration(expires_s)}" if expires_s else "never")
        add_row(table, *([to_text(one.topic)] if with_topic else []), *cells)
    return table
