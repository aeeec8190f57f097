"""What an administrator is told: topics, subscriptions and dead letters, as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec

from clarion.model.errors import InvalidRequest
from clarion.model.ids import MessageId
from clarion.model.names import DEAD
from clarion.model.options import SubscriptionOptions, TopicSettings

if TYPE_CHECKING:
    from clarion.wire.messages import Message

_DEAD_HEADERS = "clarion-dead-"


class TopicChanges(TypedDict, total=False):
    """What can be set of a topic, beside its retention; what is left out, or None, stays as it is."""

    max_age_s: float | None
    max_bytes: int | None
    at_bound: str | None
    ttl_s: float | None
    max_batch_bytes: int | None
    max_subscriptions: int | None
    temporary: bool | None


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, now."""

    topic: bytes
    name: bytes
    cursor: int  # everything below it is acked
    lag: int  # messages that are not acked
    acked_ranges: int  # above the cursor
    options: SubscriptionOptions
    consumers: int  # of a shared one, now; else 1 where somebody has attached
    leased: int  # messages that consumers hold
    returned: int  # messages given back, to be tried again
    oldest_unacked_at_us: int
    seen_at_us: int

    @property
    def oldest_unacked_at(self) -> datetime | None:
        """When the oldest message that is not acked was committed; None where all are acked."""
        return at(self.oldest_unacked_at_us)

    @property
    def seen_at(self) -> datetime | None:
        """About when it was used last, if it is one that expires; when it was made, if not."""
        return at(self.seen_at_us)


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic, now."""

    topic: bytes
    retention: str
    settings: TopicSettings
    first_offset: int  # of the oldest message stored
    next_offset: int  # of the message that is put next
    stored_bytes: int
    staged_messages: int  # stored, and not to be seen yet: staged or delayed
    staged_bytes: int
    oldest_at_us: int
    subscriptions: tuple[SubscriptionDescription, ...]
    number: int = 0  # no other topic ever has it, not one made under the same name later; 0: the broker does not say

    @property
    def messages(self) -> int:
        """How many messages are stored, as offsets tell it."""
        return self.next_offset - self.first_offset

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest message stored was committed; None where there is none."""
        return at(self.oldest_at_us)


class TopicUsage(NamedTuple):
    """What a topic takes on the broker's disk."""

    topic: bytes
    stored_bytes: int
    staged_bytes: int


class PublisherReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher told of itself on one topic; brokers forget it when no newer one comes."""

    topic: bytes
    instance: bytes  # random, the same for as long as that publisher lives
    policy: str  # of its tuner
    batch_size: int  # N
    poll_interval_s: float  # T_poll
    load_per_s: float  # lambda_est
    capacity_per_s: float  # eta_est; 0: nothing was transferred yet
    credit: int  # messages the broker would take; -1: no bound is known
    pending: int  # messages that wait to be published
    in_transfer: int  # messages sent and not confirmed
    drops: int  # messages refused by a full buffer, since the publisher began
    stored: int  # messages confirmed by the broker, since the publisher began
    age_s: float  # since it told this


class Replayed(NamedTuple):
    """What became of dead letters: `done` of them went back; `skipped` ones have no subscription to go back to."""

    done: int
    skipped: int


class DeadLetter(NamedTuple):
    """A message that was given up. `offset` is its place among the dead letters: replay and drop take that."""

    offset: int
    topic: bytes
    subscription: bytes
    attempts: int
    reason: str  # of the last attempt
    at: datetime  # when it was given up
    id: MessageId
    key: bytes | None
    headers: dict[str, bytes]  # its own
    payload: bytes
    original_offset: int  # in its topic


def at(unix_us: int) -> datetime | None:
    """Return a time of the broker's; 0 is none."""
    return datetime.fromtimestamp(unix_us / 1e6, UTC) if unix_us else None


def read_description(values: dict[str, Any]) -> TopicDescription:
    """Read the answer to a DESCRIBE; settings that a newer broker knows are left out."""
    try:
        return msgspec.convert(
            {
                **values,
                "settings": known_fields(values["settings"], TopicSettings),
                "subscriptions": [
                    {
                        **one,
                        "topic": values["topic"],
                        "options": known_fields(one["options"], SubscriptionOptions),
                    }
                    for one in values["subscriptions"]
                ],
            },
            TopicDescription,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"the broker's description cannot be read: {error!r}") from error


def read_stats(values: dict[str, Any]) -> dict[str, Any]:
    """Read the answer to a STATS: counters as they are, `publishers` as PublisherReports; none from an old broker."""
    try:
        reports = [
            msgspec.convert(known_fields(one, PublisherReport), PublisherReport) for one in values.get("publishers", ())
        ]
    except (AttributeError, TypeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"what the broker tells of publishers cannot be read: {error!r}") from error
    return {**values, "publishers": reports}


def known_fields(values: dict[str, Any], of: type[msgspec.Struct]) -> dict[str, Any]:
    """Return those of the values whose names are known here."""
    return {name: value for name, value in values.items() if name in of.__struct_fields__}


def read_dead_letter(message: Message) -> DeadLetter:
    """Return a message of a dead-letter topic as what it was, with what its headers say about its end."""
    headers = message.headers
    own = {name: value for name, value in headers.items() if not name.startswith(_DEAD_HEADERS)}
    told = {name.removeprefix(_DEAD_HEADERS): value for name, value in headers.items() if name not in own}
    id_text = told.get("id", b"").decode(errors="replace")
    return DeadLetter(
        offset=message.offset,
        topic=told.get("topic", message.topic.removeprefix(DEAD)),
        subscription=told.get("subscription", b""),
        attempts=_number(told.get("attempts")) or 0,
        reason=told.get("reason", b"").decode(errors="replace"),
        at=at(_number(told.get("at")) or 0) or message.committed_at,
        id=MessageId.parse(id_text) if len(id_text) == 32 else message.id,
        key=message.key,
        headers=own,
        payload=message.payload,
        original_offset=-1 if (offset := _number(told.get("offset"))) is None else offset,
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
