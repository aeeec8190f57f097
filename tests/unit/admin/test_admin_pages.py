"""Reading without a subscription goes from page to page and leaves out what is not to be seen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.admin.answering import Answers, batch

from clarion.admin.admin import as_ranges, browse
from clarion.model.errors import MessagesGone, PermanentError, StoredDataCorrupt
from clarion.session.exchange import Reply
from clarion.subscriber import Message
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_TIMES = 1_000_000


def _browse(answers: Answers, position: int = 0) -> list[Message]:
    def ask(body: bodies.Read) -> Reply:
        return answers.call(Kind.READ, body, timeout_s=1.0)

    return list(browse(ask, b"orders", position))


def _offsets(answers: Answers, position: int = 0) -> list[int]:
    return [message.offset for message in _browse(answers, position)]


def test_pages_follow_each_other_to_the_end() -> None:
    answers = Answers()
    answers.add(
        bodies.Delivery(((0, _TIMES), (3, _TIMES)), 7), batch([b"a"] * 3), batch([b"b"] * 2), kind=Kind.MESSAGES
    )
    answers.add(bodies.Delivery(((5, _TIMES),), 7), batch([b"c"] * 2), kind=Kind.MESSAGES)
    assert _offsets(answers) == list(range(7))
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 5]
    answers.close()


def test_what_lies_before_the_position_is_left_out() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 3), batch([b"a", b"b", b"c"]), kind=Kind.MESSAGES)
    assert [message.payload for message in _browse(answers, 1)] == [b"b", b"c"]


def test_what_is_skipped_is_left_out_also_where_no_batch_comes() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 20, ((1, 3), (4, 10), (15, 16))), batch([b"a"] * 5), kind=Kind.MESSAGES)
    answers.add(bodies.Delivery((), 20, ((10, 20),)), kind=Kind.MESSAGES)
    assert _offsets(answers) == [0, 3]
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 10]
    answers.close()


def test_a_skip_further_on_does_not_hide_what_comes_before_it() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 4, ((3, 4),)), batch([b"a"]), kind=Kind.MESSAGES)
    answers.add(bodies.Delivery(((1, _TIMES),), 4, ((3, 4),)), batch([b"a"] * 3), kind=Kind.MESSAGES)
    assert _offsets(answers) == [0, 1, 2]


def test_of_a_batch_only_what_was_asked_for_is_taken() -> None:
    answers = Answers()
    large = batch([b"a"] * 1500)
    answers.add(bodies.Delivery(((0, _TIMES),), 1500), large, kind=Kind.MESSAGES)
    answers.add(bodies.Delivery(((0, _TIMES),), 1500, ((1100, 1500),)), large, kind=Kind.MESSAGES)
    assert _offsets(answers) == list(range(1100))
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 1000]


def test_an_answer_that_leads_nowhere_ends_it() -> None:
    answers = Answers()
    answers.add(bodies.Delivery((), 20), kind=Kind.MESSAGES)
    assert _offsets(answers, 10) == []
    answers.add(bodies.NoMessages(10), kind=Kind.NO_MESSAGES)
    assert _offsets(answers, 10) == []


def test_a_gap_is_named() -> None:
    answers = Answers()
    answers.refuse(Code.GONE, "offsets 0 to 9 of orders are no longer kept", (0, 10))
    with pytest.raises(MessagesGone, match="no longer kept") as gap:
        _browse(answers)
    assert (gap.value.topic, gap.value.start, gap.value.stop) == (b"orders", 0, 10)


def test_a_damaged_batch_is_not_shown() -> None:
    answers = Answers()
    damaged = bytearray(batch([b"a"]))
    damaged[-1] ^= 1
    answers.add(bodies.Delivery(((7, _TIMES),), 8), bytes(damaged), kind=Kind.MESSAGES)
    with pytest.raises(StoredDataCorrupt, match="orders at offset 7"):
        _browse(answers, 7)


def test_what_was_only_looked_at_cannot_be_acked() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 1), batch([b"a"]), kind=Kind.MESSAGES)
    (message,) = _browse(answers)
    with pytest.raises(PermanentError, match="nothing to ack"):
        message.ack()


@given(st.sets(st.integers(0, 50)))
def test_ranges_name_just_the_offsets(offsets: set[int]) -> None:
    ranges = as_ranges(list(offsets))
    assert {offset for start, stop in ranges for offset in range(start, stop)} == offsets
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
