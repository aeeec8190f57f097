"""`clarion config` tells every setting, and its TOML is a file that `clarion up` takes."""

from __future__ import annotations

import tomllib
from pathlib import Path

from clarion.broker.settings import BrokerSettings, load_settings
from clarion.cli.broker_commands import describe_settings, to_toml, toml_value


def test_every_setting_is_told_with_a_meaning() -> None:
    rows = describe_settings(BrokerSettings(), {})
    assert [row.name for row in rows] == list(BrokerSettings.__dataclass_fields__)
    assert all(row.meaning and row.value == row.default and row.source == "default" for row in rows)


def test_where_a_value_comes_from_is_told() -> None:
    environment = {"CLARION_MAX_TOPICS": "7"}
    settings = load_settings(environment=environment, flags={"credit_s": 3.0})
    sources = {row.name: row.source for row in describe_settings(settings, environment)}
    assert sources["max_topics"] == "environment"
    assert sources["credit_s"] == "file"
    assert sources["data"] == "default"


def test_the_toml_gives_the_same_settings_back(tmp_path: Path) -> None:
    odd = tmp_path / 'a "quoted" \\ folder\x7f\t'
    settings = load_settings(environment={}, flags={"data": odd, "max_topics": 7, "credit_s": 0.5})
    file = tmp_path / "clarion.toml"
    file.write_text(to_toml(describe_settings(settings, {})))
    assert load_settings(file=file, environment={}, flags={}) == settings


def test_defaults_are_commented_out_and_are_valid_when_they_are_not() -> None:
    text = to_toml(describe_settings(BrokerSettings(), {}))
    assert tomllib.loads(text) == {}
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert set(tomllib.loads("\n".join(lines))) == set(BrokerSettings.__dataclass_fields__)


def test_texts_and_numbers_are_written_as_toml() -> None:
    for value in ("", "é\n", 5, 0.25, 1e300):
        assert tomllib.loads(f"it = {toml_value(value)}")["it"] == value
