"""What all bodies of requests and replies are: msgpack arrays whose places have names; new fields go at the end."""

from __future__ import annotations

import msgspec

Ranges = tuple[tuple[int, int], ...]  # of offsets, half-open


class Body(msgspec.Struct, array_like=True, gc=False):
    """A msgpack array whose places have names."""
