"""Keys of batches that were put lately: those that end in a range, or none where some of them are not known."""

from __future__ import annotations

from clarion.broker.engine.batch_keys import SEVERAL, KeyedBatch, KeysPut

_OURS, _THEIRS = 7, 8


def _keys(*batches: tuple[int, int], broker: int = _OURS) -> KeysPut:
    """Return the keys of batches of a first offset and a number of messages; their stamps count from 1."""
    keys = KeysPut()
    for place, batch in enumerate(batches):
        _add(keys, *batch, stamp=place + 1, broker=broker)
    return keys


def _add(keys: KeysPut, first: int, count: int, stamp: int, broker: int = _OURS) -> None:
    keys.add(first, first + count, broker << 32 | 1, stamp, 0)


def _stamps(keys: KeysPut, before: int, after: int) -> list[int] | None:
    notes = keys.ending_in(before, after)
    return None if notes is None else list(notes[2::3])


def test_batches_whose_last_message_is_in_a_range_are_found() -> None:
    keys = _keys((10, 5), (15, 1), (16, 4))
    assert _stamps(keys, 10, 20) == [1, 2, 3]
    assert _stamps(keys, 12, 15) == [1], "acked in the middle before"
    assert _stamps(keys, 10, 14) == [], "its last message is not acked"
    assert _stamps(keys, 15, 16) == [2]
    assert _stamps(keys, 16, 19) == []


def test_what_is_not_known_is_not_answered() -> None:
    keys = _keys((10, 5), (15, 5))
    assert _stamps(keys, 9, 12) is None, "there was one before"
    assert _stamps(keys, 10, 21) is None, "there may be one after"
    assert _stamps(KeysPut(), 0, 0) is None


def test_a_gap_begins_anew() -> None:
    keys = _keys((10, 5))
    _add(keys, 20, 5, 2)
    assert _stamps(keys, 10, 25) is None
    assert _stamps(keys, 20, 25) == [2]


def test_what_everybody_acked_is_let_go_of() -> None:
    keys = _keys((10, 5), (15, 5), (20, 5))
    keys.drop_below(14)
    assert len(keys) == 3, "its last message is not acked"
    keys.drop_below(20)
    assert len(keys) == 1
    assert _stamps(keys, 15, 25) is None
    assert _stamps(keys, 20, 25) == [3]
    keys.drop_below(25)
    assert not keys
    _add(keys, 25, 1, 4)
    assert _stamps(keys, 25, 26) == [4]


def test_whether_all_are_of_one_origin_is_known() -> None:
    keys = _keys((10, 5))
    assert keys.origin == _OURS
    _add(keys, 15, 5, 2, broker=_THEIRS)
    assert keys.origin == SEVERAL
    _add(keys, 30, 5, 3, broker=_THEIRS)
    assert keys.origin == _THEIRS, "those before were let go of"
    again = _keys((10, 5))
    _add(again, 30, 5, 2, broker=_THEIRS)
    assert again.origin == _THEIRS


def test_batches_that_have_messages_in_a_range_are_told_with_all_that_is_noted() -> None:
    keys = KeysPut()
    keys.add(10, 15, _OURS << 32 | 1, 1, 0)
    keys.add(15, 18, _OURS << 32 | 1, 1, 5)
    keys.add(18, 20, _THEIRS << 32 | 2, 9, 0)
    first, second, third = (
        KeyedBatch(10, 15, _OURS << 32 | 1, 1, 0),
        KeyedBatch(15, 18, _OURS << 32 | 1, 1, 5),
        KeyedBatch(18, 20, _THEIRS << 32 | 2, 9, 0),
    )
    assert list(keys.between(0, 100)) == [first, second, third]
    assert list(keys.between(14, 15)) == [first]
    assert list(keys.between(15, 19)) == [second, third]
    assert not list(keys.between(20, 25))
    keys.drop_below(15)
    assert list(keys.between(0, 18)) == [second]
