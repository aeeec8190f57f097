"""Traces: what is written is read again, any usual form of time stamp is understood, and errors name the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clarion.model.errors import PermanentError
from clarion.sim.traces import at_rate, dispersion, mean_rate_per_s, rate_over_time, read_trace, sped_up, write_trace

REAL_TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "azure_llm_conv.csv"


def _write(folder: Path, text: str) -> Path:
    file = folder / "trace.csv"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    times_s = np.cumsum(np.random.default_rng(1).exponential(0.2, 500)) + 7.0
    rows = write_trace(tmp_path / name, {"time_s": times_s, "kind": np.array(["renew"] * 500)})
    assert rows == 500
    assert read_trace(tmp_path / name) == pytest.approx(times_s - times_s[0], abs=2e-6)


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,Tokens\n2023-11-16 18:15:46.6805900,1\n2023-11-16 18:15:48.1805900,2\n",
        "tokens,Time\n374,2023-11-16T18:15:46.68Z\n396,2023-11-16T19:15:48.18+01:00\n",
        "who,when\nann,2023-11-16 18:15:46.680\nbob,2023-11-16 18:15:48.180\n",
        "time_s\n1700158548.5\n1700158547\n",
        "3,x\n4.5,y\n",
        "\ufefftimestamp\n\n3\n4.5\n\n",
    ],
)
def test_usual_forms_of_time_stamps_are_understood(tmp_path: Path, text: str) -> None:
    assert read_trace(_write(tmp_path, text)) == pytest.approx([0.0, 1.5], abs=1e-6)


def test_time_stamps_in_parquet_keep_their_unit(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for unit, step in (("s", 2), ("ms", 2000), ("us", 2_000_000), ("ns", 2_000_000_000)):
        moments = pyarrow.array([step, 2 * step, 4 * step], pyarrow.timestamp(unit))
        parquet.write_table(pyarrow.table({"id": ["a", "b", "c"], "when": moments}), tmp_path / "t.parquet")
        assert read_trace(tmp_path / "t.parquet") == pytest.approx([0.0, 2.0, 6.0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("time\n1\nsoon\n3\n", "line 3: 'soon'"),
        ("time\n1\nnan\n", "line 3: 'nan'"),
        ("who,time\nann,1\nbob\n", "line 3: column 2"),
        ("who,what\nann,sings\n", "no column of times"),
        ("time\n", "no arrivals"),
        ("", "no arrivals"),
    ],
)
def test_an_unusable_trace_is_refused_with_the_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PermanentError, match=told):
        read_trace(_write(tmp_path, text))


def test_a_file_that_is_not_there_or_not_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot be read"):
        read_trace(tmp_path / "nowhere.csv")
    (tmp_path / "odd.parquet").write_bytes(b"PAR0")
    with pytest.raises(PermanentError, match="not a Parquet file"):
        read_trace(tmp_path / "odd.parquet")


def test_scaling_gaps_keeps_the_shape_and_gives_the_rate() -> None:
    times_s = np.array([5.0, 6.0, 9.0, 10.0])
    assert sped_up(times_s, 50) == pytest.approx([0.0, 0.02, 0.08, 0.1])
    scaled = at_rate(times_s, 29.0)
    assert mean_rate_per_s(scaled) == pytest.approx(29.0)
    assert np.diff(scaled) / np.diff(times_s) == pytest.approx(np.full(3, scaled[-1] / 5.0))
    with pytest.raises(ValueError, match="no rate"):
        at_rate(np.array([1.0]), 29.0)


def test_dispersion_is_near_one_for_poisson_and_above_it_for_bursts() -> None:
    dice = np.random.default_rng(1)
    poisson = np.sort(dice.uniform(0.0, 2000.0, 20_000))
    assert dispersion(poisson, 2.0) == pytest.approx(1.0, abs=0.15)
    bursts = np.sort(np.repeat(np.sort(dice.uniform(0.0, 2000.0, 2000)), 10))
    assert dispersion(bursts, 2.0) == pytest.approx(10.0, rel=0.2)


def test_the_rate_over_time_is_averaged_over_samples() -> None:
    times_s = np.concatenate([np.arange(0.0, 100.0, 1.0), 100.0 + np.arange(0.0, 10.0, 0.1)])
    middle_s, rate = rate_over_time(times_s, samples=100)
    assert rate == pytest.approx([1.0])
    assert middle_s == pytest.approx([50.0])
    assert rate_over_time(times_s, samples=1000)[0].size == 0


def test_the_real_trace_is_read_whole() -> None:
    if not REAL_TRACE.exists():
        pytest.skip(f"the real trace is not there: {REAL_TRACE}")
    times_s = read_trace(REAL_TRACE)
    assert times_s.size == 19_366
    assert times_s[0] == 0
    assert (np.diff(times_s) >= 0).all()
    assert mean_rate_per_s(times_s) == pytest.approx(5.53, abs=0.01)
    assert dispersion(times_s, 10.0) > 2
