"""The demo's tally sees every way in which a promise could be broken."""

from __future__ import annotations

from clarion.demo.run import Report, shares
from clarion.demo.workers import MIN_SIZE_BYTES, Tally, filling, pack_payload

_REST = filling(MIN_SIZE_BYTES + 4)


def _tally(*places: tuple[int, int]) -> Tally:
    tally = Tally([3, 2], _REST)
    tally.add(pack_payload(publisher, counter, _REST) for publisher, counter in places)
    return tally


def _wrong(tally: Tally) -> tuple[int, int, int, int]:
    return tally.missing, tally.repeated, tally.out_of_order, tally.damaged


def test_messages_are_shared_evenly() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(1, 2) == [1, 0]


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


def test_a_report_is_fine_only_if_all_was_acked_and_nothing_is_wrong() -> None:
    assert Report(100, sent=5, acked=5, elapsed_s=1.0).ok
    assert not Report(100, sent=5, acked=4, elapsed_s=1.0).ok
    for name in ("lost", "repeated", "out_of_order", "damaged"):
        report = Report(100, sent=5, acked=5, elapsed_s=2.0)
        setattr(report, name, 1)
        assert not report.ok
        assert "broken" in report.verdict()


def test_rates_come_from_what_was_acked_and_received() -> None:
    report = Report(1000, sent=500, acked=500, received={"a": 500, "b": 500}, elapsed_s=2.0)
    told = report.as_json()
    assert (told["messages_per_s"], told["deliveries_per_s"]) == (250, 500)
    assert (told["mb_per_s"], told["delivered_mb_per_s"]) == (0.25, 0.5)
