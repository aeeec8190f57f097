"""Java is found, or it is said what to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.pipeline.java import NoJava, find_java, how_to_install, install_java, install_line, read_version


def _java(folder: Path, said: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s' '{said}' >&2\n")
    java.chmod(0o755)
    return java


def _only(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Have the path hold nothing but these."""
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25.0.1"', 25),
        ("command not found", None),
        ("", None),
    ],
)
def test_a_version_is_read_as_java_tells_it(said: str, version: int | None) -> None:
    assert read_version(said) == version


def test_the_java_of_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = _java(tmp_path / "path", 'openjdk version "17.0.1"')
    newer = _java(tmp_path / "home", 'openjdk version "21.0.1"')
    _only(monkeypatch, older.parent, Path("/bin"))
    assert find_java() == older
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == newer


def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, _java(tmp_path / "path", 'openjdk version "11.0.2"').parent, Path("/bin"))
    with pytest.raises(NoJava, match=r"needs Java 17 or newer; .*java is version 11\. "):
        find_java()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="JAVA_HOME"):
        find_java()


def test_without_java_it_is_said_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path)
    with pytest.raises(NoJava, match=r"none was found\. Install a JRE, version 17 or newer"):
        find_java()
    (tmp_path / "dnf").write_text("#!/bin/sh\n")
    (tmp_path / "dnf").chmod(0o755)
    assert how_to_install().endswith("dnf install -y java-17-openjdk-headless")
    with pytest.raises(NoJava, match=r"Run: .*dnf install"):
        find_java()


def test_installing_runs_the_systems_package_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path, Path("/bin"))
    monkeypatch.setattr("clarion.pipeline.java._INSTALLS", {"fetch-packages": "fetch-packages java"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None)
    with pytest.raises(NoJava, match="JAVA_HOME"):
        install_java()  # no package manager that is known
    manager = tmp_path / "fetch-packages"
    manager.write_text("#!/bin/sh\nexit 7\n")
    manager.chmod(0o755)
    with pytest.raises(NoJava, match="ended with 7"):
        install_java()
    java = tmp_path / "java"
    ready = _java(tmp_path / "ready", 'openjdk version "17.0.1"')
    manager.write_text(f"#!/bin/sh\ncp {ready} {java}\n")
    assert install_java() == java


def test_who_is_not_root_asks_with_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, tmp_path)
    (tmp_path / "apt-get").write_text("")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert install_line() == "sudo apt-get install -y default-jre-headless"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert install_line() == "apt-get install -y default-jre-headless"
