"""The demo's report is fine only where every promise was kept."""

from __future__ import annotations

from clarion.demo.run import Report, shares


def test_messages_are_shared_evenly() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(1, 2) == [1, 0]


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
