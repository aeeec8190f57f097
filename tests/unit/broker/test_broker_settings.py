"""Settings come from file, environment and flags; what is not understood is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.engine import Limits
from clarion.broker.settings import BrokerSettings, load_settings
from clarion.model.errors import BadSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "clarion.toml"
    file.write_text('max_topics = 10\nlisten = "tcp://127.0.0.1:1"\ncredit_s = 1\n')
    return file


def test_flags_go_before_environment_and_environment_before_the_file(file: Path) -> None:
    environment = {"CLARION_MAX_TOPICS": "20", "CLARION_LISTEN": "tcp://127.0.0.1:2", "HOME": "/"}
    flags = {"listen": "tcp://127.0.0.1:3", "data": None}
    settings = load_settings(file=file, environment=environment, flags=flags)
    assert (settings.credit_s, settings.max_topics, settings.listen) == (1.0, 20, "tcp://127.0.0.1:3")
    assert settings.data == BrokerSettings().data, "a flag that was not given changes nothing"


def test_without_anything_the_defaults_hold_and_are_the_engines_own() -> None:
    settings = load_settings(environment={}, flags={})
    assert settings == BrokerSettings()
    assert settings.limits() == Limits()


def test_every_setting_says_what_it_means() -> None:
    assert all(setting.metadata["meaning"] for setting in dataclasses.fields(BrokerSettings))


def test_every_bound_of_the_engine_that_is_a_setting_reaches_it() -> None:
    assert load_settings(environment={"CLARION_MAX_GET_MSGS": "7"}, flags={}).limits().max_get_msgs == 7


def test_sizes_and_durations_may_have_units_wherever_they_are_typed(file: Path) -> None:
    file.write_text('memory_bytes = "64MB"\ncredit_s = "1m30s"\nmax_batch_bytes = 1_000_000\n')
    environment = {"CLARION_MAX_STORE_BYTES": "10GiB", "CLARION_STAGED_EXPIRY_S": "1e3"}
    settings = load_settings(file=file, environment=environment, flags={"publisher_expiry_s": "7d"})
    assert (settings.memory_bytes, settings.credit_s, settings.max_batch_bytes) == (64_000_000, 90.0, 1_000_000)
    assert (settings.max_store_bytes, settings.staged_expiry_s) == (10 * 2**30, 1000.0)
    assert settings.publisher_expiry_s == 7 * 86_400.0
    for name, wrong in (("memory_bytes", "64XB"), ("memory_bytes", "7d"), ("credit_s", "5MB"), ("credit_s", "")):
        with pytest.raises(BadSettings, match=rf"{name}: a (size|duration) is like"):
            load_settings(environment={}, flags={name: wrong})
    with pytest.raises(BadSettings, match="max_topics is a whole number, not '5s'"):
        load_settings(environment={}, flags={"max_topics": "5s"})
    with pytest.raises(BadSettings, match="memory_bytes is a whole number, not '64MB'"):
        BrokerSettings(memory_bytes="64MB")  # type: ignore[arg-type]


def test_an_unknown_setting_in_the_file_is_refused_by_name(file: Path) -> None:
    file.write_text("max_topics = 1\nmax_topcis = 2\n[listen_on]\nport = 1\n")
    with pytest.raises(BadSettings, match=r"listen_on .*, max_topcis \(did you mean max_topics\?\)"):
        load_settings(file=file, environment={}, flags={})


def test_an_unknown_setting_in_the_environment_is_refused_by_name() -> None:
    with pytest.raises(BadSettings, match=r"CLARION_MAX_TOPCIS \(did you mean max_topics\?\)"):
        load_settings(environment={"CLARION_MAX_TOPCIS": "2"}, flags={})
    load_settings(environment={"CLARION_URL": "tcp://somewhere:1"}, flags={})


_KUBERNETES = {
    "CLARION_SERVICE_HOST": "10.0.0.7",
    "CLARION_SERVICE_PORT": "5590",
    "CLARION_SERVICE_PORT_CLIENTS": "5590",
    "CLARION_SERVICE_PORT_WEB_API": "8080",
    "CLARION_PORT": "tcp://10.0.0.7:5590",
    "CLARION_PORT_5590_TCP": "tcp://10.0.0.7:5590",
    "CLARION_PORT_5590_TCP_PROTO": "tcp",
    "CLARION_PORT_5590_TCP_PORT": "5590",
    "CLARION_PORT_5590_TCP_ADDR": "10.0.0.7",
}


@pytest.mark.parametrize("service", ["CLARION", "CLARION_WEB", "CLARION_WEB_2"])
def test_what_kubernetes_injects_for_a_service_of_our_name_is_no_setting(service: str) -> None:
    injected = {name.replace("CLARION", service, 1): text for name, text in _KUBERNETES.items()}
    assert load_settings(environment=injected, flags={}) == BrokerSettings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CLARION_PORT", "5590"),  # somebody wants another port, and must hear that this does not do it
        ("CLARION_PORT_5590", "tcp://10.0.0.7:5590"),
        ("CLARION_PORT_5590_TCP_HOST", "10.0.0.7"),
        ("CLARION_SERVICE_HOSTS", "10.0.0.7"),
        ("CLARION_LISTEN_PORT", "tcp://*:5590"),  # no service CLARION_LISTEN was injected
    ],
)
def test_what_kubernetes_does_not_inject_is_still_refused(name: str, text: str) -> None:
    with pytest.raises(BadSettings, match=name):
        load_settings(environment={**_KUBERNETES, name: text}, flags={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_topics", "many"),
        ("max_topics", "0"),
        ("max_topics", 1.5),
        ("max_topics", True),
        ("max_topics", [1]),
        ("credit_s", "soon"),
        ("credit_s", "nan"),
        ("credit_s", -1),
        ("listen", 5590),
        ("default_retention", "for ever"),
        ("log_level", "loud"),
        ("max_batch_bytes", 1023),
        ("max_batch_bytes", 2**64),
        ("max_topics", "9" * 400),
        ("max_get_wait_s", 1e300),
        ("data", ""),
        ("listen", "5590"),
        ("listen_publishers", "0.0.0.0:5590"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_setting(name: str, value: Any) -> None:
    with pytest.raises(BadSettings, match=name):
        load_settings(environment={}, flags={name: value})


@pytest.mark.parametrize(
    ("name", "text"),
    [("max_topics", "many"), ("max_topics", "0"), ("data", ""), ("listen", "5590"), ("log_level", "INFO")],
)
def test_a_bad_value_is_refused_with_where_it_is_from(file: Path, name: str, text: str) -> None:
    variable = f"CLARION_{name.upper()}"
    with pytest.raises(BadSettings, match=rf"{name}.* \({variable} in the environment\)$"):
        load_settings(file=file, environment={variable: text}, flags={})
    file.write_text(f'{name} = "{text}"\n')
    with pytest.raises(BadSettings, match=rf"{name}.* \(in {file}\)$"):
        load_settings(file=file, environment={}, flags={})
    with pytest.raises(BadSettings, match=f"{name}.*[^)]$"):
        load_settings(environment={}, flags={name: text})
    good = {"max_topics": "7", "data": "here", "listen": "tcp://127.0.0.1:5590", "log_level": "info"}[name]
    load_settings(file=file, environment={}, flags={name: good})  # what does not count is not looked at


@pytest.mark.parametrize("text", ["max_topics = ", "\x00", 'listen = "unclosed'])
def test_a_file_that_is_not_toml_is_refused_by_name(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(BadSettings, match=r"clarion\.toml"):
        load_settings(file=file, environment={}, flags={})


def test_a_file_that_is_not_text_or_not_there_is_refused_by_name(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadSettings, match=r"clarion\.toml"):
        load_settings(file=file, environment={}, flags={})
    with pytest.raises(BadSettings, match=r"missing\.toml"):
        load_settings(file=file.parent / "missing.toml", environment={}, flags={})


@pytest.mark.parametrize("name", ["listen", "listen_publishers", "listen_subscribers"])
def test_an_address_that_zeromq_would_read_as_another_is_refused(name: str) -> None:
    with pytest.raises(BadSettings, match="80x' is not an address to listen on"):
        load_settings(environment={}, flags={name: "tcp://127.0.0.1:80x"})


def test_the_common_address_may_be_empty_only_where_each_side_has_its_own() -> None:
    sides = {"listen_publishers": "tcp://127.0.0.1:*", "listen_subscribers": "ipc:///run/clarion"}
    load_settings(environment={}, flags={"listen": "", **sides})
    with pytest.raises(BadSettings, match="'' is not an address"):
        load_settings(environment={}, flags={"listen": "", "listen_publishers": "tcp://127.0.0.1:*"})
