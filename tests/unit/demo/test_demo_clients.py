"""The demo's tally sees every way in which a promise could be broken."""

from __future__ import annotations

from clarion.demo.demo_clients import MIN_SIZE_BYTES, Tally, filling, pack_payload

_REST = filling(MIN_SIZE_BYTES + 4)


def _tally(*places: tuple[int, int]) -> Tally:
    tally = Tally([3, 2], _REST)
    tally.add(pack_payload(publisher, counter, _REST) for publisher, counter in places)
    return tally


def _wrong(tally: Tally) -> tuple[int, int, int, int]:
    return tally.missing, tally.repeated, tally.out_of_order, tally.damaged


def test_everything_once_and_in_order_is_right_however_publishers_mix() -> None:
    assert _wrong(_tally((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))) == (0, 0, 0, 0)


def test_what_did_not_come_is_missing() -> None:
    assert _wrong(_tally((0, 0), (0, 2), (1, 1))) == (2, 0, 0, 0)


def test_what_came_twice_is_repeated() -> None:
    assert _wrong(_tally((0, 0), (0, 1), (0, 0), (0, 2), (1, 0), (1, 1))) == (0, 1, 0, 0)


def test_what_was_overtaken_is_out_of_order() -> None:
    assert _wrong(_tally((0, 1), (0, 0), (0, 2), (1, 0), (1, 1))) == (0, 0, 1, 0)


def test_what_nobody_sent_is_damaged() -> None:
    tally = _tally((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (1, 2))
    tally.add([b"", pack_payload(0, 0, b"!!!!")])
    assert _wrong(tally) == (0, 0, 0, 4)
