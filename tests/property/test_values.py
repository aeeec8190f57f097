"""Names, ids and acked ranges against what they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.broker_model import runs

from clarion.model import AckedRanges, MessageId, from_text, to_text

many = settings(max_examples=250, deadline=None, derandomize=True, database=None)
ids = st.builds(
    MessageId,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 48) - 1),
    st.integers(0, (1 << 16) - 1),
)
ranges = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@many
@given(st.binary() | st.text().map(str.encode) | st.binary().map(b"b64:".__add__))
def test_the_text_of_a_name_gives_the_name_back(name: bytes) -> None:
    text = to_text(name)
    assert from_text(text) == name
    assert text.isprintable()
    assert "\n" not in text


@many
@given(st.text())
def test_a_text_is_a_name_or_a_value_error(text: str) -> None:
    try:
        name = from_text(text)
    except ValueError:
        return
    assert from_text(to_text(name)) == name


@many
@given(ids, ids)
def test_an_id_comes_back_from_bytes_and_text_and_sorts_as_its_bytes(one: MessageId, other: MessageId) -> None:
    assert MessageId.from_bytes(one.to_bytes()) == MessageId.parse(str(one)) == one
    assert len(one.to_bytes()) == 16
    assert (one < other) == (one.to_bytes() < other.to_bytes())


@many
@given(st.binary(max_size=40).filter(lambda raw: len(raw) != 16))
def test_other_than_16_bytes_are_no_id(raw: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        MessageId.from_bytes(raw)


@many
@given(st.integers(0, 20), st.lists(ranges, max_size=12))
def test_acked_ranges_are_a_set(cursor: int, added: list[tuple[int, int]]) -> None:
    acked, done = AckedRanges(cursor), set(range(cursor))
    for start, stop in added:
        before = acked.cursor
        news = set(range(start, stop)) - done
        assert acked.add(start, stop) == bool(news)
        done |= news
        assert acked.cursor >= before, "a cursor never goes back"
        unacked = next(offset for offset in range(99) if offset not in done)
        assert acked.cursor == unacked
        assert tuple(acked) == runs(offset for offset in done if offset > unacked)
        assert len(acked) == len(tuple(acked))
    for offset in range(60):
        assert (offset in acked) == (offset in done)
        following = next(later for later in range(offset, 99) if later not in done)
        assert acked.next_unacked(offset) == following
        run_end = next((later for later in range(following, 99) if later in done), 99)
        assert acked.acked_until(following, 99) == run_end
    assert AckedRanges.unpack(acked.cursor, acked.pack()) == acked
    assert AckedRanges(cursor, reversed(added)) == acked, "the order of acks does not matter"
