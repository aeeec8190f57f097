"""Settings come from file, environment and flags; what is not understood is refused."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.broker.engine import Limits
from clarion.broker.settings import BrokerSettings, load_settings
from clarion.cli.main import app
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


@pytest.mark.parametrize(
    ("flags", "lasts", "others"),
    [
        ({"tracking_peak_per_s": 20000}, "one lasts 0.125 s", {"tracking_peak_per_s": 6250}),
        ({"tracking_skew_s": 0.9, "tracking_peak_per_s": 1500}, "lasts 1.66667 s", {"tracking_peak_per_s": 1388}),
        ({"tracking_skew_s": 1.5, "tracking_efpp": 1e-3}, "may be 3 s apart", {"tracking_peak_per_s": 833.3}),
        ({"tracking_skew_s": 300}, "lasts 2.5 s", {"tracking_peak_per_s": 4.166}),
        ({"tracking_skew_s": 301, "tracking_peak_per_s": 1}, "lasts 600 s", {}),
    ],
)
def test_tracking_that_cannot_keep_its_promise_is_refused_with_settings_that_can(
    flags: dict[str, Any], lasts: str, others: dict[str, float]
) -> None:
    flags = {"tracking": "bloom", **flags}
    with pytest.raises(BadSettings) as told:
        load_settings(environment={}, flags=flags)
    text = str(told.value)
    assert lasts in text
    assert "is kept exactly" in text
    assert all(name not in text.replace("tracking_", "") for name in ("overlap", "capacity", "jitter", "persist"))
    skew = re.search(r"Set tracking_skew_s to at most ([0-9.]+)[,;]", text)
    assert skew is not None
    load_settings(environment={}, flags={**flags, "tracking_skew_s": skew[1]})
    advised = dict(re.findall(r"(tracking_p\w+) to at (?:most|least) ([0-9.]+)", text))
    assert {name: float(value) for name, value in advised.items()} == others
    if advised:
        load_settings(environment={}, flags={**flags, **advised})
    load_settings(environment={}, flags={**flags, "tracking": "log"})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("tracking_peak_per_s", 0, "tracking_peak_per_s is above 0, not 0"),
        ("tracking_efpp", 0, "tracking_efpp is a probability of at least 1e-12 and below 1, not 0;"),
        ("tracking_efpp", 1, "tracking_efpp is a probability of at least 1e-12 and below 1, not 1;"),
        ("tracking_efpp", "nan", "tracking_efpp is a probability of at least 1e-12 and below 1, not nan;"),
        ("tracking_efpp", 1e-13, "tracking_efpp is a probability of at least 1e-12 and below 1, not 1e-13;"),
        ("tracking_persist_s", "2h", r"tracking_persist_s is at most 3600 \(one hour\), not 7200:"),
        ("tracking_persist_s", "inf", r"tracking_persist_s is at most 3600 \(one hour\), not inf:"),
        ("tracking_persist_s", "nan", r"tracking_persist_s is at most 3600 \(one hour\), not nan:"),
        ("tracking_max_age_s", 59, r"tracking_max_age_s is 0 \(for ever\) or at least 60, not 59:"),
        ("tracking_max_bytes", 1000, r"tracking_max_bytes is 0 \(.*\) or at least 1048576 \(1MiB\), not 1000:"),
    ],
)
def test_a_setting_of_tracking_is_refused_by_its_own_name(name: str, value: Any, why: str) -> None:
    with pytest.raises(BadSettings, match=f"^{why}"):
        load_settings(environment={}, flags={name: value})


def test_what_is_noted_lives_until_it_is_saved() -> None:
    flags = {"tracking": "log", "tracking_persist_s": "10m"}
    with pytest.raises(BadSettings, match=r"tracking_max_age_s \(90\) is less than tracking_persist_s \(600\).* 600,"):
        load_settings(environment={}, flags={**flags, "tracking_max_age_s": 90})
    for age in (0, 600):
        load_settings(environment={}, flags={**flags, "tracking_max_age_s": age})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tracking_efpp", 1e-12),
        ("tracking_persist_s", "1h"),
        ("tracking_persist_s", "10ms"),
        ("tracking_max_age_s", "1m"),
        ("tracking_max_bytes", "1MiB"),
    ],
)
def test_a_setting_of_tracking_may_be_at_its_bound(name: str, value: Any) -> None:
    load_settings(environment={}, flags={"tracking": "bloom", name: value})


def test_tracking_without_numpy_is_refused_before_there_is_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "clarion.tracking.accuracy", None)
    for tracking in ("bloom", "log"):
        done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), "--set", f"tracking={tracking}"])
        assert done.exit_code == 1
        assert 'pip install "clarion[tracking]"' in done.output
    assert not (tmp_path / "data").exists()
    BrokerSettings()
