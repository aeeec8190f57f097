"""The text of names, patterns over paths, the bytes of ids, the time in stamps."""

from __future__ import annotations

import pytest

from clarion.model import AckedRanges, MessageId, from_text, stamp_from_unix_s, stamp_to_unix_s, to_bytes, to_text
from clarion.model.errors import ClarionError, FatalError, PermanentError, RetryableError
from clarion.model.ids import pack_ids
from clarion.model.names import is_good_pattern, is_pattern, matches, overlap
from clarion.wire.codes import RETRIED, Code, error_of


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"alerts", "alerts"),
        ("märz 日".encode(), "märz 日"),
        (b"\xff\x00", "b64:_wA="),
        (b"", "b64:"),
        (b"two\nlines", "b64:dHdvCmxpbmVz"),
        (b"b64:x", "b64:YjY0Ong="),
    ],
)
def test_a_name_has_one_text_form(name: bytes, text: str) -> None:
    assert to_text(name) == text
    assert from_text(text) == name


@pytest.mark.parametrize("text", ["b64:_", "b64:ä", "b64:a b="])
def test_malformed_base64_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        from_text(text)


def test_str_is_encoded_and_bytes_likes_are_copied() -> None:
    assert to_bytes("ä") == "ä".encode()
    assert to_bytes(bytearray(b"x")) == to_bytes(b"x") == b"x"  # type: ignore[arg-type]


def test_an_id_is_broker_publisher_stamp_counter_big_endian() -> None:
    number = MessageId(1, 2, 3, 4)
    assert str(number) == "00000001000000020000000000030004"
    with pytest.raises(ValueError, match="hex"):
        MessageId.parse("not hexadecimal")


def test_ids_of_a_batch_are_packed_together_as_one_by_one() -> None:
    for first, count in ((0, 65_536), (65_535, 1), (250, 20), (7, 0)):
        one_by_one = [MessageId(1, 2, 3, first + place).to_bytes() for place in range(count)]
        assert pack_ids(MessageId(1, 2, 3, first), count) == b"".join(one_by_one)


def test_a_stamp_counts_64ths_of_a_millisecond_since_2020() -> None:
    assert stamp_from_unix_s(1_577_836_800.0) == 0
    assert stamp_from_unix_s(1_577_836_801.0) == 64_000
    assert stamp_to_unix_s(64_000) == 1_577_836_801.0
    assert stamp_from_unix_s(0.0) == 0, "a clock before 2020 does not go below"
    assert stamp_from_unix_s(1e15) == (1 << 48) - 1, "nor a far one beyond six bytes"


def test_equal_acks_are_equal_and_different_ones_are_not() -> None:
    assert AckedRanges(3, [(5, 7), (7, 9)]) == AckedRanges(3, [(5, 9)])
    assert AckedRanges(3) != AckedRanges(4)
    assert AckedRanges(3) != 3
    assert repr(AckedRanges(3, [(5, 9)])) == "AckedRanges(3, [(5, 9)])"


def test_every_code_but_gap_has_an_error_and_those_retried_are_retryable() -> None:
    for code in Code:
        error = error_of(code, "because")
        assert isinstance(error, RetryableError if code in RETRIED - {Code.GAP} else PermanentError), code
        assert str(error) == "because"


def test_every_error_is_retryable_permanent_or_fatal() -> None:
    kinds = (RetryableError, PermanentError, FatalError)
    assert set(ClarionError.__subclasses__()) == set(kinds)
    for kind in kinds:
        assert all(error.__doc__ for error in kind.__subclasses__())


def test_every_error_can_be_told_again_without_the_traceback_of_who_heard_it_first() -> None:
    kinds = [ClarionError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        told = kind("because")
        told.accepted = 3  # type: ignore[attr-defined]
        try:
            raise told from ValueError("why")
        except ClarionError as error:
            again = error.again()
        assert (type(again), again.args, again.__dict__) == (kind, ("because",), {"accepted": 3})
        assert (again.__traceback__, again.__cause__) == (None, told.__cause__)


# Patterns over topics that look like paths.


@pytest.mark.parametrize(
    ("pattern", "topic", "due"),
    [
        (b"alerts/*", b"alerts/fire", True),
        (b"alerts/*", b"alerts/fire/north", False),
        (b"alerts/*", b"alerts", False),
        (b"alerts/#", b"alerts", True),
        (b"alerts/#", b"alerts/fire/north", True),
        (b"alerts/#", b"alertsx/fire", False),
        (b"*/north", b"fire/north", True),
        (b"*/north", b"fire/south", False),
        (b"#", b"anything/at/all", True),
        (b"#", b"$dead/alerts", False),
        (b"*/alerts", b"$dead/alerts", False),
        (b"$dead/#", b"$dead/alerts", True),
        (b"alerts/*", b"alerts/", True),
    ],
)
def test_which_topics_a_pattern_stands_for(pattern: bytes, topic: bytes, due: bool) -> None:
    assert matches(pattern, topic) is due
    assert overlap(pattern, topic) or not due


@pytest.mark.parametrize(
    ("one", "other", "due"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"a/*", b"a/#", True),
        (b"a/*", b"*/b", True),
        (b"a/*", b"b/#", False),
        (b"a/#", b"a", True),
        (b"a/*", b"a", False),
        (b"a/*/#", b"a/b", True),
        (b"a/*/#", b"a", False),
        (b"#", b"a/b/c", True),
        (b"*", b"a/*", False),
    ],
)
def test_patterns_overlap_where_a_topic_could_be_of_both(one: bytes, other: bytes, due: bool) -> None:
    assert overlap(one, other) is due
    assert overlap(other, one) is due


def test_only_whole_parts_are_wild() -> None:
    assert is_pattern(b"alerts/*")
    assert is_pattern(b"#")
    assert not is_pattern(b"c#/alerts*")
    assert is_good_pattern(b"alerts/#")
    assert not is_good_pattern(b"alerts/#/north")
