"""A batch of one plain message is packed on a short way, to the same bytes."""

from __future__ import annotations

import pytest

from clarion.wire.batch import Batch, encode_batch, encode_lone


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 200, 4096, 100_001])
def test_a_lone_message_is_packed_to_the_bytes_of_any_other_batch(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    packed = encode_lone(payload[:size], 3, 7, 1 << 40, 9)
    assert packed == encode_batch([payload[:size]], broker=3, publisher=7, stamp=1 << 40, number=9)
    assert Batch.parse(bytes(packed)).payloads() == [payload[:size]]
