"""What a topic and a subscription can be set to; defaults are what a user gets who says nothing."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from clarion.model.errors import InvalidRequest

UNTIL_READ = "until-read"
KEEP = "keep"
REFUSE = "refuse"
TRIM = "trim"

_LONGEST_S = 1e10  # about 300 years
_LARGEST = 1 << 53


class TopicSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a topic keeps its messages, beside its retention. 0 is "no bound", or the broker's own."""

    max_age_s: float = 0.0  # keep: older messages go
    max_bytes: int = 0  # of messages stored
    at_bound: str = REFUSE  # or TRIM: what happens where a bound would overtake a reader
    ttl_s: float = 0.0  # of messages that are put without a time to live of their own
    max_batch_bytes: int = 0
    max_subscriptions: int = 0
    temporary: bool = False  # it goes when its last subscription does


class SubscriptionOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a subscription is used."""

    shared: bool = False  # by several consumers, each message going to one of them
    order: str = ""  # "key": messages of one key are worked on one at a time, in order (shared only)
    lease_s: float = 15.0  # for which a consumer holds messages without a sign of life (shared only)
    max_attempts: int = 5  # then a message goes to the dead letters; 0: never (shared only)
    expires_s: float = 0.0  # without use, after which it is taken for gone; 0: never


def check_settings(settings: TopicSettings, retention: str) -> None:
    """Raise InvalidRequest for what a topic cannot be set to."""
    if retention not in (UNTIL_READ, KEEP):
        raise InvalidRequest(f"a topic's retention is {UNTIL_READ} or {KEEP}, not {retention!r}")
    if settings.at_bound not in (REFUSE, TRIM):
        raise InvalidRequest(f"at_bound is {REFUSE} or {TRIM}, not {settings.at_bound!r}")
    for name in ("max_age_s", "max_bytes", "ttl_s", "max_batch_bytes", "max_subscriptions"):
        most = _LONGEST_S if name.endswith("_s") else _LARGEST
        if not 0 <= getattr(settings, name) <= most:
            raise InvalidRequest(f"{name} is 0 (no bound) to {most:g}, not {getattr(settings, name)}")


def check_options(options: SubscriptionOptions) -> None:
    """Raise InvalidRequest for what a subscription cannot be."""
    if options.order not in ("", "key"):
        raise InvalidRequest(f'order is "key" or nothing, not {options.order!r}')
    if options.order and not options.shared:
        raise InvalidRequest('order="key" is for shared subscriptions; one consumer alone sees all in order anyway')
    if not 0.1 <= options.lease_s <= 86_400:
        raise InvalidRequest(f"lease_s is 0.1 to 86400, not {options.lease_s}")
    if not 0 <= options.max_attempts <= 1_000_000:
        raise InvalidRequest(f"max_attempts is 0 (no bound) to 1000000, not {options.max_attempts}")
    if options.expires_s and not 1 <= options.expires_s <= _LONGEST_S:
        raise InvalidRequest(f"expires_s is 0 (never) or at least 1, not {options.expires_s}")


_encode = msgspec.msgpack.Encoder().encode
_decode_settings = msgspec.msgpack.Decoder(TopicSettings).decode
_decode_options = msgspec.msgpack.Decoder(SubscriptionOptions).decode
PLAIN_SETTINGS = TopicSettings()
_PLAIN_OPTIONS = SubscriptionOptions()


@lru_cache(maxsize=1024)  # a row is written with each ack, and options seldom differ
def pack_options(options: TopicSettings | SubscriptionOptions) -> bytes:
    """Return the bytes that the store keeps; none for plain defaults."""
    return b"" if options in (PLAIN_SETTINGS, _PLAIN_OPTIONS) else _encode(options)


def unpack_settings(packed: bytes) -> TopicSettings:
    """Read what `pack_options` gave for a topic."""
    return _decode_settings(packed) if packed else PLAIN_SETTINGS


def unpack_options(packed: bytes) -> SubscriptionOptions:
    """Read what `pack_options` gave for a subscription."""
    return _decode_options(packed) if packed else _PLAIN_OPTIONS
