"""An audit on real Spark: the same answers as in this process, true ones, and the command as people use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.integration.broker_process import BrokerProcess
from tests.integration.pipeline.conftest import put_numbers
from tests.unit.tracking.segments import segment_of
from typer.testing import CliRunner, Result

from clarion.cli.main import app
from clarion.model.errors import InvalidRequest
from clarion.model.ids import MessageId
from clarion.pipeline.jobs.archive import archive
from clarion.pipeline.jobs.audit import audit, read_ids_of, write_audit
from clarion.pipeline.jobs.audit_table import audit_here, find_ids
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.exported import About, HistoryPart, read_exports, write_export
from clarion.tracking.verdicts import HistoryIndex

_BATCHES, _BATCH = 400, 5
_Fates = dict[str, tuple[str, list[str], list[str]]]  # by id: state, who carried it, who received it


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "audit", *words])


def _histories(folder: Path, origin: int, fates: list[float], first: int) -> None:
    """Write histories of two brokers: of batches with a fate below 0.7, below 0.4, and below 0.2 received."""
    accuracy = Accuracy(efpp=1e-9)
    written: dict[int, list[HistoryPart]] = {origin: [], origin + 1: []}
    for broker, kind, via, subscriber, bound in (
        (origin, "publisher", 0, b"", 0.7), (origin + 1, "routing", origin, b"", 0.4),
        (origin + 1, "subscriber", 0, b"anna", 0.2),
    ):  # fmt: skip
        for begin in range(0, len(fates), 100):
            places = [place for place in range(begin, begin + 100) if fates[place] < bound]
            segment = segment_of([(origin << 32 | 9, first + place) for place in places], accuracy=accuracy)
            written[broker].append(HistoryPart(kind, origin, via, subscriber, segment))
    for broker, parts in written.items():
        about = About(broker=broker, name=f"b{broker}", strategy="bloom", efpp=accuracy.efpp, begins=0)
        write_export(folder, about, parts)


def _world(folder: Path) -> _Fates:
    """Write ids and histories; return the truth."""
    dice = np.random.default_rng(3)
    truth: _Fates = {}
    for origin in (1, 11):
        fates = dice.random(_BATCHES).tolist()
        _histories(folder / "histories", origin, fates, 10_000)
        for place, fate in enumerate(fates):
            carried = [f"b{broker}" for broker, bound in ((origin, 0.7), (origin + 1, 0.4)) if fate < bound]
            received = [f"b{origin + 1}/anna"] if fate < 0.2 else []
            state = "delivered" if received else "stopped" if carried else "never seen"
            for counter in range(_BATCH):
                truth[str(MessageId(origin, 9, 10_000 + place, counter))] = (state, carried, received)
    ids = [bytes.fromhex(text) for text in truth]
    parquet.write_table(pa.table({"id": pa.array(ids)}).take(dice.permutation(len(ids))), folder / "ids.parquet")
    return truth


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, _Fates]:
    """The folder of ids and histories, and the truth."""
    folder = tmp_path_factory.mktemp("audit")
    return folder, _world(folder)


def test_every_id_is_told_as_it_was_on_spark_and_without_it(
    spark: SparkSession, world: tuple[Path, _Fates], tmp_path: Path
) -> None:
    folder, truth = world
    files, index = find_ids(str(folder / "ids.parquet")), HistoryIndex(read_exports([folder / "histories"]))
    done = write_audit(audit(read_ids_of(spark, files), index), tmp_path / "spark")
    assert audit_here(files, index, tmp_path / "here")._replace(wrong_expected=0) == done._replace(wrong_expected=0)
    for out in ("spark", "here"):
        rows = parquet.read_table(tmp_path / out).to_pylist()
        told = {row["id"]: (row["state"], row["carried_by"], row["received_by"]) for row in rows}
        assert (len(rows), told) == (len(truth), truth)
        stopped = [row for row in rows if row["state"] == "stopped"]
        assert all(row["last_seen"] == row["carried_by"][-1:] for row in stopped)
        assert all(0 < row["error"] < 3e-9 for row in rows if row["state"] != "never seen")
    assert write_audit(audit(read_ids_of(spark, files), index)).states == done.states


def test_ids_of_any_kind_are_the_same_to_spark(spark: SparkSession, world: tuple[Path, _Fates], tmp_path: Path) -> None:
    folder, truth = world
    index = HistoryIndex(read_exports([folder / "histories"]))
    (tmp_path / "ids.txt").write_text("\n\n".join([*truth, "nonsense"]), encoding="utf-8")
    (tmp_path / "ids.csv").write_text("n,id\n" + "".join(f"1,{text.upper()}\n" for text in truth), encoding="utf-8")
    lines, cells = (
        write_audit(audit(read_ids_of(spark, find_ids(str(tmp_path / name))), index)) for name in ("ids.txt", "ids.csv")
    )
    assert lines.states == {**cells.states, "no message id": 1}
    assert (cells.ids, lines.receivers) == (len(truth), cells.receivers)
    with pytest.raises(InvalidRequest, match="has no column message; it has n, id"):
        read_ids_of(spark, find_ids(str(tmp_path / "ids.csv")), column="message")


def test_the_command_tells_the_sums_and_writes_the_rows(
    spark: SparkSession, world: tuple[Path, _Fates], tmp_path: Path
) -> None:
    folder, truth = world
    words = (str(folder / "ids.parquet"), "--histories", str(folder / "histories"))
    found: list[dict[str, Any]] = []
    for more in ((), ("--without-spark",)):
        done = _run(*words, *more, "--out", str(tmp_path / f"out{len(found)}"), "--json")
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
        assert parquet.read_table(found[-1]["out"]).num_rows == len(truth)
    assert found[0]["ids"] == len(truth)
    assert found[0]["states"] == found[1]["states"]
    assert found[0]["not_exported"] == []
    said = _run(*words, "--without-spark").stdout
    assert "Received by" in said
    assert "b12/anna" in said
    again = _run(*words, "--out", str(tmp_path / "out0"))
    assert (again.exit_code != 0, "choose a new folder" in again.output) == (True, True)


def test_the_ids_of_a_lake_are_audited(
    spark: SparkSession, broker: BrokerProcess, world: tuple[Path, _Fates], tmp_path: Path
) -> None:
    put_numbers(broker.url, "work", 300)
    archive(spark, broker.url, ["work"], tmp_path / "lake")
    words = (str(tmp_path / "lake"), "--histories", str(world[0] / "histories"))
    done = _run(*words, "--topic", "work", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["states"]["not covered"] == 300
    assert _run(*words, "--without-spark").exit_code != 0
