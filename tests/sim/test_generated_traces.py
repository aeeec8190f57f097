"""Generated traces have the shape of the systems they stand for, and are the same for the same seed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.sim.generated_traces import DELETE, REGISTER, RENEW, LookupService, lookup_service_trace, ztf_trace
from clarion.sim.traces import dispersion, mean_rate_per_s, read_trace


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_lookup_service_has_a_low_mean_and_bursts(seed: int) -> None:
    times_s = lookup_service_trace(np.random.default_rng(seed), 6)["time_s"]
    assert (np.diff(times_s) >= 0).all()
    assert 0.4 < mean_rate_per_s(times_s) < 1.2
    assert dispersion(times_s, 10.0) > 5
    assert np.bincount(times_s.astype(int)).max() > 20  # in one second


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_leases_are_renewed_before_they_end_or_end_in_a_deletion(seed: int) -> None:
    shape = LookupService()
    columns = lookup_service_trace(np.random.default_rng(seed), 12, shape)
    last_s: dict[str, float] = {}
    gone: set[str] = set()
    seen: dict[str, int] = defaultdict(int)
    for at_s, kind, record in zip(columns["time_s"], columns["kind"], columns["record"], strict=True):
        seen[kind] += 1
        assert record not in gone, "a deleted record comes back under another name"
        if kind == RENEW:
            assert at_s - last_s.get(record, 0.0) < shape.lease_s
        if kind == DELETE:
            gone.add(record)
        else:
            last_s[record] = at_s
    assert seen[RENEW] > seen[REGISTER] > seen[DELETE] > 0
    # Nothing outlives its lease by more than the time to the next pruning.
    for record, at_s in last_s.items():
        if at_s + shape.lease_s + shape.pruned_every_s < 12 * 3600:
            assert record in gone


def test_records_leave_both_by_request_and_by_expiry() -> None:
    shape = LookupService()
    columns = lookup_service_trace(np.random.default_rng(1), 12, shape)
    deleted_s = columns["time_s"][columns["kind"] == DELETE]
    by_expiry = deleted_s % shape.pruned_every_s == 0
    assert 0 < by_expiry.sum() < deleted_s.size


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_night_has_bursts_of_about_a_thousand_alerts(seed: int) -> None:
    columns = ztf_trace(np.random.default_rng(seed), 9)
    times_s, sizes = columns["time_s"], columns["bytes"]
    bursts = np.bincount((times_s // 45).astype(int))
    assert bursts.size == 9 * 3600 / 45
    assert 700 < bursts.mean() < 1300
    assert bursts.std() > 200
    assert (times_s % 45).max() < 10
    assert sizes.min() >= 20_000
    assert sizes.max() <= 70_000
    assert dispersion(times_s, 10.0) > 100


def test_there_are_no_alerts_by_day() -> None:
    times_s = ztf_trace(np.random.default_rng(1), 30)["time_s"]
    hour = times_s % 86_400 / 3600
    assert hour.max() < 9.01
    assert (times_s > 86_400).any()


@pytest.mark.parametrize("generate", [lookup_service_trace, ztf_trace])
def test_the_same_seed_gives_the_same_trace(generate: object) -> None:
    assert callable(generate)
    first, again, other = (generate(np.random.default_rng(seed), 1)["time_s"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("shape", "file"), [("lookup-service", "t.csv"), ("ztf", "t.parquet")])
def test_the_command_writes_a_trace_that_can_be_read(tmp_path: Path, shape: str, file: str) -> None:
    out = tmp_path / file
    done = CliRunner().invoke(app, ["simulate", "trace", shape, "--hours", "1", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert f'"arrivals":{read_trace(out).size}' in done.output
