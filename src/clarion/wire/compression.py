"""Compression of a batch's body: one zstd frame, made by the publisher and opened by who reads the messages."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from clarion.wire.frames import Buffer

MAX_PLAIN_BYTES = 64 * 2**20  # that a frame may hold; more is never made and never opened
_WORTH_TRYING_BYTES = 128
_LEVEL = 1
_LIMITS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_PLAIN_BYTES.bit_length() - 1}


def compress(plain: Buffer) -> bytes | None:
    """Give the bytes as one frame, or None where that is no smaller."""
    if not _WORTH_TRYING_BYTES <= len(plain) <= MAX_PLAIN_BYTES:
        return None
    frame = zstd.compress(plain, _LEVEL)
    return frame if len(frame) < len(plain) else None


def decompress(frame: Buffer, size: int) -> bytes:
    """Give the `size` bytes of a frame; a ValueError, and never more memory than that, where it holds others."""
    if size > MAX_PLAIN_BYTES:
        raise ValueError(f"{size} bytes are more than are ever compressed at once")
    opener = zstd.ZstdDecompressor(options=_LIMITS)
    try:
        plain = opener.decompress(frame, size + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(plain) != size or not opener.eof or opener.unused_data:
        raise ValueError(f"the frame does not hold the {size} bytes it should")
    return plain
