"""Whatever callers give is taken for what it is, or refused by name before anything is done."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from clarion.model.arguments import all_bytes, all_headers, all_keys, as_headers, as_list, seconds, whole
from clarion.wire.timestamps import all_due


@pytest.mark.parametrize(
    "payloads",
    [
        ["a", "b"],
        ("a", b"b"),
        (letter for letter in "ab"),
        map(str, "ab"),
        {1: "a", 2: "b"}.values(),
        deque([b"a", "b"]),
        [bytearray(b"a"), memoryview(b"b")],
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
    ],
    ids=lambda payloads: type(payloads).__name__,
)
def test_whatever_gives_payloads_one_after_the_other_will_do(payloads: Any) -> None:
    found = all_bytes(payloads)
    assert list(found) == [b"a", b"b"]
    assert {type(payload) for payload in found} == {bytes}


@pytest.mark.parametrize("one", ["ab", b"ab", bytearray(b"ab"), memoryview(b"ab"), {"a": "b"}, 5, None, np.array(b"a")])
def test_one_thing_where_many_are_wanted_is_refused(one: Any) -> None:
    for read in (all_bytes, lambda values: as_list(values, "payloads")):
        with pytest.raises(TypeError, match="payloads is a list"):
            read(one)
    if one is not None:
        with pytest.raises(TypeError, match="keys is a list"):
            all_keys(one, 1)
        with pytest.raises(TypeError, match="headers of many messages is a list"):
            all_headers(one, 1)


def test_what_raises_half_way_raises_as_it_is() -> None:
    def half() -> Iterator[str]:
        yield "a"
        raise TypeError("half way")

    with pytest.raises(TypeError, match="half way"):
        all_bytes(half())


@pytest.mark.parametrize("wrong", [5, None, 1.5, [b"a"]])
def test_what_is_neither_bytes_nor_text_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"each of payloads is bytes or str, not {type(wrong).__name__}"):
        all_bytes([b"a", wrong])
    if wrong is not None:
        with pytest.raises(TypeError, match="each of keys is bytes or str"):
            all_keys([None, wrong], 2)
        with pytest.raises(TypeError, match="header 'a' is bytes or str"):
            as_headers({"a": wrong})


def test_keys_may_be_text_and_may_be_none() -> None:
    plain = [b"a", None]
    assert all_keys(plain, 2) is plain
    assert all_keys(iter(["ä", None, b"c"]), 3) == ["ä".encode(), None, b"c"]
    assert all_keys(None, 3) is None


@pytest.mark.parametrize("headers", [{b"a": "x"}, {5: b"x"}, [("a", "b")], "a=b", 5])
def test_headers_are_a_mapping_of_text(headers: Any) -> None:
    with pytest.raises(TypeError, match=r"the name of a header is a str|headers are a mapping"):
        as_headers(headers)


@pytest.mark.parametrize(
    ("read", "value", "name"),
    [(all_keys, "k", "keys"), (all_headers, {"a": "b"}, "headers of many messages"), (all_due, 5.0, "deliver_at")],
    ids=["keys", "headers", "deliver_at"],
)
def test_what_has_no_end_is_not_gone_through_beyond_the_payloads(
    read: Callable[[Iterator[Any], int], Any], value: Any, name: str
) -> None:
    def endless() -> Iterator[Any]:  # as itertools.repeat, which would take all the memory there is
        yield from [value] * 5
        raise AssertionError("it was gone through far beyond the payloads")

    with pytest.raises(ValueError, match=f"there are 2 payloads and more {name} than that; nothing was queued"):
        read(endless(), 2)
    assert len(read(iter([value] * 2), 2)) == 2


def test_a_number_of_seconds_is_any_number_and_nothing_else() -> None:
    assert [seconds(value, "wait_s") for value in (0, 1.5, np.float32(0.5), Decimal(2))] == [0, 1.5, 0.5, 2]
    assert 1e8 < seconds(math.inf, "wait_s") < 1e10, "what no clock function takes is a very long time"
    others: list[Any] = ["5s", "5", None, timedelta(1), []]
    for wrong in others:
        with pytest.raises(TypeError, match="wait_s is a number of seconds"):
            seconds(wrong, "wait_s")
    for value in (-1, math.nan):
        with pytest.raises(ValueError, match="wait_s is at least 0 seconds"):
            seconds(value, "wait_s")


def test_a_whole_number_is_one_within_its_bounds() -> None:
    assert [whole(value, "count") for value in (5, np.int64(6))] == [5, 6]
    for wrong in ("5", "64MB", 1.5, None, [1]):
        with pytest.raises(TypeError, match="count is a whole number"):
            whole(wrong, "count")
    for value in (0, 11):
        with pytest.raises(ValueError, match="count is at"):
            whole(value, "count", 1, 10)
