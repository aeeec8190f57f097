"""Settings of links: addresses and tables are read, what cannot be is refused in words that help."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.links import LinkSettings
from clarion.broker.settings import BrokerSettings, load_settings
from clarion.cli.broker_commands import describe_settings, to_toml
from clarion.model.errors import BadSettings

_TABLE = """
name = "lbl"

[[links]]
url = "tcp://cern.example:5590"
name = "cern"
topics_in = ["alerts/#", "b64:AP8="]
topics_out = ["news"]
origins = ["cern", "0a1b2c3d"]

[[links]]
name = "ornl"
"""


def _load(**flags: Any) -> BrokerSettings:
    return load_settings(environment={}, flags=flags)


def test_links_are_addresses_with_commas_or_a_list_or_tables(tmp_path: Path) -> None:
    two = (LinkSettings(url="tcp://a:1"), LinkSettings(url="tcp://b:2"))
    assert _load(links="tcp://a:1, tcp://b:2").links == two
    assert load_settings(environment={"CLARION_LINKS": "tcp://a:1,tcp://b:2"}, flags={}).links == two
    assert _load(links=["tcp://a:1", two[1]]).links == two
    assert BrokerSettings(links=["tcp://a:1", two[1]]).links == two  # type: ignore[arg-type]
    file = tmp_path / "clarion.toml"
    file.write_text(_TABLE)
    cern, ornl = load_settings(file=file, environment={}, flags={}).links
    assert cern == LinkSettings(
        "tcp://cern.example:5590", "cern", (b"alerts/#", b"\0\xff"), (b"news",), ("cern", "0a1b2c3d")
    )
    assert ornl == LinkSettings(name="ornl")


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text(_TABLE)
    environment = {"CLARION_LINKS": "tcp://a:1", "CLARION_NAME": "env"}
    assert load_settings(file=file, environment=environment, flags={}).name == "env"
    assert load_settings(file=file, environment=environment, flags={"name": "said"}).name == "said"


def test_links_of_the_environment_and_of_options_are_added_and_tables_keep_what_may_cross(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text(_TABLE)
    cern, ornl = load_settings(file=file, environment={}, flags={}).links
    a, b = LinkSettings(url="tcp://a:1"), LinkSettings(url="tcp://b:2")
    environment = {"CLARION_LINKS": "tcp://a:1,tcp://cern.example:5590"}
    assert load_settings(file=file, environment=environment, flags={}).links == (cern, ornl, a)
    said = load_settings(file=file, environment=environment, flags={"links": ["tcp://b:2", "tcp://cern.example:5590"]})
    assert said.links == (cern, ornl, a, b)
    with pytest.raises(BadSettings, match="CLARION_LINKS in the environment"):
        load_settings(file=file, environment={"CLARION_LINKS": "nowhere"}, flags={"links": ["tcp://b:2"]})


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ("nowhere", "links: 'nowhere' is not an address to connect to"),
        (["tcp://*:5590"], "links: 'tcp://\\*:5590' is not an address to connect to"),
        (["tcp://a:1", "tcp://a:1"], "links has tcp://a:1 more than once"),
        ([{"url": "tcp://a:1", "topic_in": ["x"]}], "a link has no setting 'topic_in'; did you mean topics_in?"),
        ([{"url": "tcp://a:1", "zzz": 1}], "a link has no setting 'zzz'; it has url, name, topics_in"),
        ([{"topics_in": ["x"]}], "a link needs a url to call, or the name of the broker that calls"),
        ([{"url": "tcp://a:1", "topics_in": "x"}], "topics_in of a link is a list of texts, not 'x'"),
        ([{"url": "tcp://a:1", "topics_in": ["b64:?"]}], "topics_in of a link: 'b64:\\?' is not valid base64"),
        ([{"url": "tcp://a:1", "topics_out": ["#/a"]}], "topics_out of a link: in '#/a' the # is not at the end"),
        ([{"url": "tcp://a:1", "name": 7}], "the name of a link is a text, not 7"),
        ([{"url": "tcp://a:1", "name": "a b"}], "a broker's name has printable characters"),
        ([{"url": "tcp://a:1", "origins": ["a,b"]}], "a broker's name has printable characters"),
        ([{"url": "tcp://a:1", "origins": [""]}], "links: an origin is the name or id of a broker, or \\*"),
        ([{"name": "a", "origins": ["b", ""]}], "links: an origin is the name or id of a broker, or \\*"),
        (7, "links are addresses, or tables \\[\\[links\\]\\], not 7"),
        ([7], "a link is an address or a table, not 7"),
    ],
)
def test_what_is_no_link_is_refused(links: Any, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        _load(links=links)


@pytest.mark.parametrize("name", ["a", "cern", "über-7", "x" * 64, "broker-0a1b2c3d"])
def test_names_of_brokers(name: str) -> None:
    assert _load(name=name).name == name


@pytest.mark.parametrize("name", ["a b", "a,b", "a/b", "a\n", "x" * 65, "*", "0a1b2c3d", "\u2028"])
def test_what_is_no_name_of_a_broker_is_refused(name: str) -> None:
    with pytest.raises(BadSettings, match=r"^name: "):
        _load(name=name)


@pytest.mark.parametrize("follow", ["b64:?", "a,#/b"])
def test_what_cannot_be_followed_is_refused(follow: str) -> None:
    with pytest.raises(BadSettings, match=r"^follow: "):
        _load(follow=follow)


def test_what_is_followed_is_a_text_or_a_list(tmp_path: Path) -> None:
    assert _load(follow="a/#, b").followed() == (b"a/#", b"b")
    file = tmp_path / "clarion.toml"
    file.write_text('follow = ["a/#", "b"]')
    assert load_settings(file=file, environment={}, flags={}).followed() == (b"a/#", b"b")
    with pytest.raises(BadSettings, match="follow is a text, not"):
        _load(follow=[7])


def test_the_toml_of_links_gives_the_same_settings_back(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text(_TABLE)
    settings = load_settings(file=file, environment={}, flags={"max_writers": 7})
    again = tmp_path / "again.toml"
    again.write_text(to_toml(describe_settings(settings, {})))
    assert load_settings(file=again, environment={}, flags={}) == settings


def test_the_example_of_a_link_is_valid_when_it_is_not_commented_out(tmp_path: Path) -> None:
    text = to_toml(describe_settings(BrokerSettings(), {}))
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert list(tomllib.loads("\n".join(lines)))[-1] == "links", "tables come last"
    file = tmp_path / "clarion.toml"
    file.write_text("\n".join(lines))
    (link,) = load_settings(file=file, environment={}, flags={}).links
    assert link.url
